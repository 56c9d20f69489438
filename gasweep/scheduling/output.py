"""Where what an attempt prints goes: its run's log file, at the level of file descriptors."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def captured(path: Path) -> Iterator[Callable[[str], None]]:
    """Append all that is written to stdout and stderr to `path`, by native libraries and child processes too.

    Gives a function that writes one line there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    _flush()
    saved = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    try:
        for descriptor, _ in saved:
            os.dup2(target, descriptor)
        yield lambda line: _write(target, line)
    finally:
        _flush()
        for descriptor, copy in saved:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(target)


def append_stacks(path: Path) -> None:
    """Append the stack of every thread of this process to `path`."""
    with path.open("a") as file:
        file.write("stacks of all threads, the newest call first:\n")
        file.flush()
        faulthandler.dump_traceback(file=file, all_threads=True)


def _write(descriptor: int, line: str) -> None:
    _flush()
    os.write(descriptor, f"{line}\n".encode(errors="backslashreplace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
