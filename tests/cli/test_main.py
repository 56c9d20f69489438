"""The command line itself: light imports, one-line errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gasweep.cli import main as cli
from gasweep.errors import ConfigError, RunError

HEAVY = ("torch", "ray", "wandb", "matplotlib", "pyarrow", "scipy", "numpy", "omegaconf", "rich", "sqlite3")

PROBE = """
import json, sys
from gasweep.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write(json.dumps([code, sorted(set({heavy!r}) & set(sys.modules))]))
"""


def run_fresh(*words: str) -> tuple[int, list[str], str]:
    """Exit code, heavy modules loaded and stdout of a command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=HEAVY), *words], capture_output=True, text=True, check=True
    )
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    return code, loaded, done.stdout


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code, loaded, out = run_fresh(*words)
    assert (code, loaded) == (0, [])
    assert "gasweep" in out


@pytest.mark.parametrize("name", ["run", "plan", "status", "fit", "report", "export"])
def test_the_help_of_a_command_loads_nothing_heavy(name: str) -> None:
    code, loaded, out = run_fresh(name, "--help")
    assert code == 0
    assert not set(loaded) & {"torch", "ray", "wandb", "matplotlib", "pyarrow", "scipy"}
    assert f"usage: gasweep {name}" in out


def test_plan_loads_neither_torch_nor_ray(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        """
task: {_target_: gasweep.tasks.FashionMnist}
grid: {micro_batch_size: [8], world_size: [1], accumulation_steps: [1], learning_rate: [0.1], seed: [0]}
target: {value: 0.5}
budget: {max_examples: 1000}
"""
    )
    code, loaded, out = run_fresh("plan", str(config), "--json")
    assert code == 0
    assert not {"torch", "ray", "wandb", "matplotlib"} & set(loaded)
    assert json.loads(out)["num_points"] == 1


def test_help_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    times = []
    for _ in range(3):
        before = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gasweep.cli.main", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - before)
    with capsys.disabled():
        sys.stdout.write(f"[gasweep --help: best of 3 {min(times):.2f} s] ")


def test_every_listed_command_exists_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        assert cli.main([name, "--help"]) == 0
        assert f"usage: gasweep {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plna"], 2, "command 'plna' is unknown; did you mean 'plan'?"),
        (["plan", "absent.yaml"], 2, "config file 'absent.yaml' does not exist"),
        (["status", "absent"], 2, "directory=absent holds no sweep (journal.sqlite is missing)"),
        (["fit", "absent"], 2, "absent"),
        (["report", "absent"], 2, "directory=absent holds no sweep"),
        (["export", "absent"], 2, "directory=absent holds no sweep"),
        (["run", "."], 2, "directory=. holds no sweep (sweep.yaml is missing)"),
        (["plan"], 2, "the following arguments are required: CONFIG|DIR; `gasweep plan --help` lists"),
        (["status", "--jsn"], 2, "`gasweep status --help` lists what it takes"),
        (["status", ".", "--interval", "x"], 2, "argument --interval: invalid float value: 'x'"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(
    words: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == code
    error = capsys.readouterr().err
    assert error.startswith("gasweep: error: ")
    assert said in error
    assert error.count("\n") == 1


def test_no_command_shows_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: gasweep COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("grid.seed=[]: give a value"), 2, "grid.seed=[]: give a value"),
        (RunError("the workers did not start"), 1, "the workers did not start"),
        (KeyboardInterrupt(), 130, "stopped"),
        (
            PermissionError(13, "Permission denied", "/there/report.html"),
            2,
            "/there/report.html: Permission denied",
        ),
        (OSError("no name"), 1, "internal error: OSError: no name; --debug shows where"),
        (ValueError("two\nlines"), 1, "internal error: ValueError: two lines; --debug shows where"),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_a_traceback_only_with_debug(
    error: BaseException,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str, words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["plan", "x"]) == code
    quiet = capsys.readouterr().err
    assert quiet == f"gasweep: error: {said}\n"
    assert cli.main(["plan", "x", "--debug"]) == code
    loud = capsys.readouterr().err
    assert ("Traceback" in loud) == (not isinstance(error, KeyboardInterrupt))


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m gasweep.cli.main --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
