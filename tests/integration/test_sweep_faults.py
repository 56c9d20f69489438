"""A real sweep through Ray, ended in every rude way, comes out as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gasweep.errors import SweepDirectoryError
from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState

pytestmark = [pytest.mark.ray, pytest.mark.fault, pytest.mark.timeout(900)]

CONFIG = """
name: faults
task: {_target_: gasweep.tasks.Digits}
grid:
  micro_batch_size: [8]
  world_size: [1, 2]
  accumulation_steps: [1, 2]
  learning_rate: [0.1]
  seed: [0, 1, 2]
target: {metric: eval_loss, value: 1.0e-9}
budget: {max_optimizer_steps: 2500}
sweep: {throughput_probes: false, mode: full}
cluster: {num_workers: 2}
checkpoint: {every_s: 0.5}
tracking: {wandb: null}
"""
MAX_STEPS = 2500
NUM_RUNS = 12
COMMAND = [sys.executable, "-c", "import sys; from gasweep.cli.main import main; sys.exit(main())"]


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _leave_nothing_running() -> Iterator[None]:
    yield
    for process in _STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    _STARTED.clear()


class Sweep:
    """`gasweep run` in a process group of its own, as a terminal starts it."""

    def __init__(self, config: Path, directory: Path) -> None:
        self.directory = directory
        self.started_at = time.time()
        self.process = self._started(config, directory)
        _STARTED.append(self.process)

    @staticmethod
    def _started(config: Path, directory: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", str(config), "--dir", str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, condition: Callable[[JournalReader], Any], *, timeout_s: float = 240.0) -> Any:
        """Until the journal holds what `condition` finds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()[0]
            try:
                with JournalReader.open(self.directory) as journal:
                    found = condition(journal)
            except SweepDirectoryError:
                found = None  # not made yet
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"the journal never came to hold it; {self.end_with(signal.SIGKILL)}")

    def end_with(self, *signals: int) -> tuple[int, float, str]:
        """Send signals 0.5 s apart to the process group; (exit code, seconds it took, output)."""
        started = time.monotonic()
        for number in signals:
            os.killpg(self.process.pid, number)
            time.sleep(0.5)
        output, _ = self.process.communicate(timeout=60.0)
        return self.process.returncode, time.monotonic() - started, output

    def descendants(self) -> set[int]:
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with _ignoring_the_gone():
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}


def _ignoring_the_gone() -> Any:
    import contextlib

    return contextlib.suppress(FileNotFoundError, ProcessLookupError)


def _alive(pids: set[int]) -> set[int]:
    living = set()
    for pid in pids:
        with _ignoring_the_gone():
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                living.add(pid)
    return living


def _assert_gone(pids: set[int], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while _alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = {pid: Path(f"/proc/{pid}/cmdline").read_text().strip("\0")[:99] for pid in _alive(pids)}
    assert left == {}


def _finished(count: int) -> Callable[[JournalReader], bool]:
    return lambda journal: len(journal.results()) >= count


def _mid_run(since: float, world_size: int | None = None) -> Callable[[JournalReader], str | None]:
    """A run that was started after `since` (a killed driver leaves its runs `running`), on that many ranks if
    given, and has taken some steps and has many to go."""

    def find(journal: JournalReader) -> str | None:
        progress = journal.last_progress()
        for run in journal.runs():
            steps = progress[run.run_id].optimizer_step if run.run_id in progress else 0
            wanted = world_size is None or run.world_size == world_size
            is_running = run.state is RunState.RUNNING and journal.attempts(run.run_id)[-1].started_at > since
            if is_running and wanted and 50 < steps < MAX_STEPS - 500:
                return run.run_id
        return None

    return find


def _trajectories(directory: Path) -> dict[str, tuple[Any, ...]]:
    with JournalReader.open(directory) as journal:
        return {
            run_id: (
                [(step.optimizer_step, step.contributions, step.loss) for step in journal.steps(run_id)],
                result.evaluations,
                result.parameter_sha256,
            )
            for run_id, result in journal.results().items()
        }


def _results(directory: Path) -> set[str]:
    with JournalReader.open(directory) as journal:
        return set(journal.results())


def test_c70_a_sweep_survives_sigkill_ctrl_c_and_lost_workers_bit_for_bit(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    undisturbed = Sweep(config, tmp_path / "undisturbed")
    output, _ = undisturbed.process.communicate(timeout=600.0)
    assert undisturbed.process.returncode == 0, output

    directory = tmp_path / "disturbed"
    finished = _kill_a_worker_then_the_driver(config, directory)
    finished = _press_ctrl_c(config, directory, finished)
    finished = _press_ctrl_c_twice(config, directory, finished)
    last = Sweep(config, directory)
    output, _ = last.process.communicate(timeout=600.0)
    assert last.process.returncode == 0, output

    assert _trajectories(directory) == _trajectories(undisturbed.directory)
    with JournalReader.open(directory) as journal:
        causes = [attempt.cause for attempt in journal.attempts()]
        assert len(journal.results()) == NUM_RUNS
        assert {"driver_lost", "interrupted", "process_death"} <= set(causes)
        for run_id in journal.results():
            assert [a.cause for a in journal.attempts(run_id)].count("finished") <= 1


def _kill_a_worker_then_the_driver(config: Path, directory: Path) -> set[str]:
    sweep = Sweep(config, directory)
    run_id = sweep.wait_for(_mid_run(sweep.started_at, 1))
    os.kill(_pid_of_rank_0(directory, run_id), signal.SIGKILL)
    sweep.wait_for(lambda journal: "process_death" in {a.cause for a in journal.attempts(run_id)})
    sweep.wait_for(lambda journal: _finished(1)(journal) and _mid_run(sweep.started_at, 2)(journal))
    started_by_it = sweep.descendants()
    assert len(started_by_it) > 2
    os.kill(sweep.process.pid, signal.SIGKILL)
    sweep.process.communicate(timeout=60.0)
    _assert_gone(started_by_it, within_s=10.0)
    return _results(directory)


def _press_ctrl_c(config: Path, directory: Path, before: set[str]) -> set[str]:
    sweep = Sweep(config, directory)
    running = sweep.wait_for(_mid_run(sweep.started_at))
    started_by_it = sweep.descendants()
    code, seconds, output = sweep.end_with(signal.SIGINT)
    assert code == 130, output
    assert seconds < 15.0, output
    assert "Traceback" not in output
    _assert_gone(started_by_it, within_s=5.0)
    with JournalReader.open(directory) as journal:
        states = {run.run_id: run.state for run in journal.runs()}
    assert set(states.values()) <= {RunState.CENSORED, RunState.INTERRUPTED, RunState.WAITING}
    if states[running] is RunState.INTERRUPTED:
        assert any((directory / "runs" / running / "checkpoints").iterdir())
    assert before <= _results(directory)
    return _results(directory)


def _press_ctrl_c_twice(config: Path, directory: Path, before: set[str]) -> set[str]:
    sweep = Sweep(config, directory)
    sweep.wait_for(_mid_run(sweep.started_at))
    started_by_it = sweep.descendants()
    code, seconds, output = sweep.end_with(signal.SIGINT, signal.SIGINT)
    assert code == 130, output
    assert seconds < 8.0, output
    _assert_gone(started_by_it, within_s=5.0)
    assert before <= _results(directory)
    return _results(directory)


def _pid_of_rank_0(directory: Path, run_id: str) -> int:
    text = (directory / "runs" / run_id / "log.txt").read_text()
    return int([line for line in text.splitlines() if " pid " in line][-1].split(" pid ")[1].split()[0])


def test_a_second_driver_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("num_workers: 2", "backend: inline").replace("[1, 2]", "[1]"))
    first = Sweep(config, tmp_path / "sweep")
    first.wait_for(lambda journal: journal.runs())
    second = Sweep(config, tmp_path / "sweep")
    output, _ = second.process.communicate(timeout=60.0)
    assert second.process.returncode == 2
    assert f"is being written by pid {first.process.pid} on " in output
    code, _, output = first.end_with(signal.SIGTERM)
    assert code == 130, output


def test_a_signal_to_the_whole_process_group_ends_in_time_and_resumes(tmp_path: Path) -> None:
    """`timeout` and batch systems signal the servers of a local cluster together with the driver."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("seed: [0, 1, 2]", "seed: [0]").replace("2500", "400"))
    first = Sweep(config, tmp_path / "sweep")
    first.wait_for(lambda journal: journal.last_progress())
    for pid in {first.process.pid, *first.descendants()}:
        with _ignoring_the_gone():
            os.kill(pid, signal.SIGTERM)
    output, _ = first.process.communicate(timeout=60.0)
    assert first.process.returncode == 130, output
    again = Sweep(config, tmp_path / "sweep")
    output, _ = again.process.communicate(timeout=300.0)
    assert again.process.returncode == 0, output
    assert len(_results(tmp_path / "sweep")) == 4
