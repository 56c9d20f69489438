"""A real sweep through Ray, ended in every rude way, comes out as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from integration_sweep import Sweep, assert_gone, ignoring_the_gone, mid_run, results, trajectories

from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState
from gasweep.scheduling.interrupts import OVERDUE_S

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
MIDDLE = (50, 2000)  # optimizer steps of the 2500 that a run takes
NUM_RUNS = 12


def _finished(count: int) -> Callable[[JournalReader], bool]:
    return lambda journal: len(journal.results()) >= count


def test_c70_a_sweep_survives_sigkill_ctrl_c_and_lost_workers_bit_for_bit(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    undisturbed = Sweep(config, tmp_path / "undisturbed")
    undisturbed.finish()

    directory = tmp_path / "disturbed"
    finished = _kill_a_worker_then_the_driver(config, directory)
    finished = _press_ctrl_c(config, directory, finished)
    finished = _press_ctrl_c_twice(config, directory, finished)
    Sweep(config, directory).finish()

    assert trajectories(directory) == trajectories(undisturbed.directory)
    with JournalReader.open(directory) as journal:
        causes = [attempt.cause for attempt in journal.attempts()]
        assert len(journal.results()) == NUM_RUNS
        assert {"driver_lost", "interrupted", "process_death"} <= set(causes)
        for run_id in journal.results():
            assert [a.cause for a in journal.attempts(run_id)].count("finished") <= 1


def _kill_a_worker_then_the_driver(config: Path, directory: Path) -> set[str]:
    sweep = Sweep(config, directory)
    run_id = sweep.wait_for(mid_run(sweep.started_at, 1, steps=MIDDLE))
    os.kill(_pid_of_rank_0(directory, run_id), signal.SIGKILL)
    sweep.wait_for(lambda journal: "process_death" in {a.cause for a in journal.attempts(run_id)})
    sweep.wait_for(
        lambda journal: _finished(1)(journal) and mid_run(sweep.started_at, 2, steps=MIDDLE)(journal)
    )
    started_by_it = sweep.descendants()
    assert len(started_by_it) > 2
    os.kill(sweep.process.pid, signal.SIGKILL)
    sweep.process.communicate(timeout=60.0)
    assert_gone(started_by_it, within_s=10.0)
    return results(directory)


def _press_ctrl_c(config: Path, directory: Path, before: set[str]) -> set[str]:
    sweep = Sweep(config, directory)
    running = sweep.wait_for(mid_run(sweep.started_at, steps=MIDDLE))
    started_by_it = sweep.descendants()
    code, seconds, output = sweep.end_with(signal.SIGINT)
    assert code == 130, output
    assert seconds < 15.0, output
    assert "Traceback" not in output
    assert_gone(started_by_it, within_s=5.0)
    with JournalReader.open(directory) as journal:
        states = {run.run_id: run.state for run in journal.runs()}
    assert set(states.values()) <= {RunState.CENSORED, RunState.INTERRUPTED, RunState.WAITING}
    if states[running] is RunState.INTERRUPTED:
        assert any((directory / "runs" / running / "checkpoints").iterdir())
    assert before <= results(directory)
    return results(directory)


def _press_ctrl_c_twice(config: Path, directory: Path, before: set[str]) -> set[str]:
    sweep = Sweep(config, directory)
    sweep.wait_for(mid_run(sweep.started_at, steps=MIDDLE))
    started_by_it = sweep.descendants()
    code, seconds, output = sweep.end_with(signal.SIGINT, signal.SIGINT)
    assert code == 130, output
    assert seconds < 8.0, output
    assert_gone(started_by_it, within_s=5.0)
    assert before <= results(directory)
    return results(directory)


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
        with ignoring_the_gone():
            os.kill(pid, signal.SIGTERM)
    output, _ = first.process.communicate(timeout=OVERDUE_S + 15.0)
    assert first.process.returncode == 130, output
    Sweep(config, tmp_path / "sweep").finish()
    assert len(results(tmp_path / "sweep")) == 4
