"""The `gasweep` command: finds the subcommand, imports only that, turns errors into one line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import gasweep
from gasweep.errors import GasweepError, nearest

COMMANDS = {
    "run": "run, or resume, a sweep; Ctrl-C is safe",
    "plan": "what would run: B of each point, what collapses; runs nothing",
    "status": "the runs of a sweep and how far they are, from another terminal",
    "fit": "B_crit, S_min, E_min with intervals, from a sweep or a data file",
    "verify": "are the layouts (b, N, G) of one effective batch really the same run?",
    "bench": "seconds, bytes and memory per optimizer step of each layout, with and without no_sync",
    "size": "choose B, b, N, G, learning rate and warm-up, with the reasons",
    "report": "one self-contained HTML file, and PNGs",
    "export": "the runs, evaluations and optimizer steps as CSV or Parquet, or into W&B",
}

INTERRUPTED = 130

_EPILOG = """\
exit codes: 0 done; 1 a run failed; 2 something to mend in the request; 130 stopped by Ctrl-C, resumable
`gasweep COMMAND --help` says more about one command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print_help(error=not words)
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"gasweep {gasweep.__version__}\n")
        return 0
    if words[0] not in COMMANDS:
        return _fail(f"command {words[0]!r} is unknown; {nearest(words[0], COMMANDS)}", code=2)
    return _guarded(words[0], words[1:])


def print_help(*, error: bool = False) -> None:
    """The list of commands; on stderr when the command line was incomplete."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    text = "\n".join(
        [
            "usage: gasweep COMMAND ...",
            "",
            "Choose a batch size with evidence: critical batch size, noise scale and step cost.",
            "",
            "commands:",
            *lines,
            "",
            _EPILOG,
        ]
    )
    (sys.stderr if error else sys.stdout).write(text)


def _guarded(name: str, words: list[str]) -> int:
    debug = "--debug" in words
    warnings.showwarning = _show_warning
    try:
        return _run(name, words)
    except SystemExit as stop:
        # argparse has said what it had to: --help, or a wrong option.
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _fail("stopped", code=INTERRUPTED)
    except BrokenPipeError:
        # The reader (`| head`) has gone: nothing more to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except GasweepError as error:
        if debug:
            traceback.print_exc()
        return _fail(str(error), code=error.exit_code)
    except OSError as error:
        # A file that is not there, may not be written, or a full disk: the user's to mend, if it has a name.
        if debug:
            traceback.print_exc()
        if error.filename is None:
            return _fail(f"internal error: {type(error).__name__}: {error}; --debug shows where", code=1)
        return _fail(f"{error.filename}: {error.strerror or type(error).__name__}", code=2)
    except Exception as error:
        if debug:
            traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return _fail(f"internal error: {text}; --debug shows where", code=1)


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, where argparse adds a usage of several."""

    def error(self, message: str) -> NoReturn:
        message = message.removesuffix(", key=value")  # named although it may be empty
        sys.stderr.write(f"gasweep: error: {message}; `{self.prog} --help` lists what it takes\n")
        raise SystemExit(2)


def _run(name: str, words: list[str]) -> int:
    command = importlib.import_module(f"gasweep.cli.{name}")
    parser = _Parser(
        prog=f"gasweep {name}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    code: int = command.main(parser.parse_intermixed_args(words))
    with contextlib.suppress(ValueError):
        sys.stdout.flush()
    return code


def _fail(message: str, *, code: int) -> int:
    sys.stderr.write(f"gasweep: error: {message}\n")
    return code


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if issubclass(category, UserWarning):
        sys.stderr.write(f"gasweep: warning: {message}\n")


if __name__ == "__main__":
    raise SystemExit(main())
