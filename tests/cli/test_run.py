"""`gasweep run` in processes of its own: the answer, resume, changed grids, Ctrl-C, SIGKILL, W&B."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gasweep.cli.main import main
from gasweep.errors import GasweepError
from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState

CONFIG = """
name: tiny
task: {_target_: gasweep.tasks.NoisyQuadratic, dimension: 4, noise_scale: 20.0}
grid:
  micro_batch_size: [2, 8]
  world_size: [1]
  accumulation_steps: [1, 4]
  learning_rate: [0.1, 0.4]
  seed: [0, 1]
target: {metric: eval_loss, value: 0.3}
budget: {max_optimizer_steps: 150}
cluster: {backend: inline}
sweep: {probe_optimizer_steps: 5}
checkpoint: {every_s: null}
tracking: {wandb: {mode: offline}}
"""
NUM_RUNS, NUM_PROBES = 12, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "gasweep.cli.main", "run", *words]


def environment() -> dict[str, str]:
    dropped = ("WANDB_SERVICE", "WANDB_MODE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "OMP_NUM_THREADS": "1"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *words),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def attempts(directory: Path) -> dict[str, int]:
    with JournalReader.open(directory) as reader:
        return {run.run_id: run.num_attempts for run in reader.runs()}


def test_a_sweep_answers_resumes_and_follows_a_changed_grid(folder: Path) -> None:
    first = run(folder, "tiny.yaml")
    assert first.returncode == 0, first.stderr
    for text in (
        f"16 grid points collapse to {NUM_RUNS} convergence runs and {NUM_PROBES} throughput probes",
        "B_crit (examples)",
        "S_min (optimizer steps)",
        "E_min (examples)",
        "B at 20 % overhead (examples)",
        "learning rate",
        "over factorisations",
        "over seeds",
        "sweeps/tiny/journal.sqlite",
        "sweeps/tiny/critical_batch_size.png",
    ):
        assert text in first.stdout
    directory = folder / "sweeps" / "tiny"
    assert (directory / "critical_batch_size.png").read_bytes().startswith(b"\x89PNG")
    done = attempts(directory)
    assert len(done) == NUM_RUNS + NUM_PROBES
    assert set(done.values()) == {1}

    wider = run(folder, "sweeps/tiny", "grid.learning_rate=[0.1,0.4,0.8]", "--json")
    assert wider.returncode == 0, wider.stderr
    now = attempts(directory)
    assert {run_id: now[run_id] for run_id in done} == done
    assert len(now) == len(done) + 6
    assert "16 runs finished before and kept" in wider.stderr
    assert "grid.learning_rate" in wider.stderr
    answer: dict[str, Any] = json.loads(wider.stdout)
    assert (answer["exit_code"], answer["num_runs"], answer["counts"]["waiting"]) == (0, NUM_RUNS + 6, 0)
    assert answer["targets"][0]["observations"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("gird.seed=[0]", "did you mean 'grid'?"),
        ("task.dimension=0", "dimension=0"),
        ("task._target_=no_such_module.Task", "no_such_module"),
        ("target.metric=accuracy", "target.metric='accuracy'"),
    ],
)
def test_refused_requests_leave_no_directory_behind(
    override: str,
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(["run", "tiny.yaml", override]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["tiny.yaml"]


@pytest.mark.long
def test_a_run_that_fails_is_exit_code_1_and_retried_on_request(folder: Path) -> None:
    (folder / "shaky.py").write_text(
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "from gasweep.tasks.noisy_quadratic import NoisyQuadratic\n"
        "@dataclass(kw_only=True)\n"
        "class Shaky(NoisyQuadratic):\n"
        "    def build_model(self):\n"
        "        if Path('broken').exists():\n"
        "            raise ValueError('the model file is gone')\n"
        "        return super().build_model()\n"
    )
    (folder / "broken").touch()
    words = ("tiny.yaml", "task._target_=shaky.Shaky", "grid.seed=[0]", "tracking.wandb=null")
    broken = run(folder, *words)
    assert broken.returncode == 1
    assert "ValueError: the model file is gone" in broken.stdout
    assert "--retry-failed" in broken.stdout
    (folder / "broken").unlink()
    mended = run(folder, *words, "--retry-failed")
    assert mended.returncode == 0, mended.stdout
    assert set(attempts(folder / "sweeps" / "tiny").values()) == {2}


@pytest.mark.fault
def test_c70_ctrl_c_stops_in_order_and_the_same_command_goes_on(folder: Path) -> None:
    process = start(folder, "tiny.yaml")
    wait_for_results(folder / "sweeps" / "tiny", 5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "`gasweep run sweeps/tiny` goes on from here" in out
    with JournalReader.open(folder / "sweeps" / "tiny") as reader:
        finished = {run.run_id: run.num_attempts for run in reader.runs() if run.finished}
        assert not any(run.state is RunState.RUNNING for run in reader.runs())
    assert run(folder, "sweeps/tiny").returncode == 0
    now = attempts(folder / "sweeps" / "tiny")
    assert {run_id: now[run_id] for run_id in finished} == finished


@pytest.mark.fault
@pytest.mark.long
def test_killed_drivers_lose_nothing_in_the_journal_or_in_wandb(folder: Path) -> None:
    from gasweep.tracking.readback import read_back

    directory = folder / "sweeps" / "tiny"
    moments = random.Random(3)
    for wanted in (3, 10):
        process = start(folder, "tiny.yaml")
        wait_for_results(directory, wanted)
        time.sleep(moments.uniform(0.0, 0.3))
        process.kill()
        process.communicate()
    last = run(folder, "tiny.yaml")
    assert last.returncode == 0, last.stderr
    with JournalReader.open(directory) as reader:
        assert reader.counts()[RunState.WAITING] == 0
        ended = [attempt for attempt in reader.attempts() if attempt.cause == "finished"]
        assert len({attempt.run_id for attempt in ended}) == len(ended)
    found = read_back(directory)
    assert found.problems == []
    assert found.num_runs == NUM_RUNS + NUM_PROBES
    assert found.has_summary


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(folder, *words),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_results(directory: Path, count: int) -> None:
    for _ in range(1200):
        try:
            with JournalReader.open(directory) as reader:
                if sum(run.finished for run in reader.runs()) >= count:
                    return
        except GasweepError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{directory} did not get {count} results")
