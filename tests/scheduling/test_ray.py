"""Leased Ray actors: process groups side by side, faults, threads, reuse. One cluster for all of it."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scheduling_play import attempt_of, poll_until_end, wait_for_workers
from scheduling_specs import make_spec

from gasweep.config.load import parse_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.config.run_spec import RunSpec
from gasweep.scheduling.backend import Cause, Event, Failed, Finished, Progress
from gasweep.scheduling.order import DEFAULT_ENTRY

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def backend(ray_backend: Any) -> Any:
    wait_for_workers(ray_backend, 4)
    return ray_backend


def ends(events: list[Event]) -> dict[str, Finished | Failed]:
    return {event.run_id: event for event in events if isinstance(event, (Finished, Failed))}


def failed(events: list[Event]) -> Failed:
    (end,) = ends(events).values()
    assert isinstance(end, Failed)
    return end


def run_one(backend: Any, folder: Path, run_id: str, **arguments: Any) -> Finished | Failed:
    backend.start(attempt_of(make_spec(run_id, **arguments), folder))
    (end,) = ends(poll_until_end(backend)).values()
    return end


def pid_of(end: Finished | Failed) -> int:
    assert isinstance(end, Finished)
    return int(end.result.extra["pid"])


def test_c14_two_process_groups_at_once_never_meet(backend: Any, tmp_path: Path) -> None:
    for repeat in range(20):
        for name, value in (("a", 1), ("b", 100)):
            spec = make_spec(f"{name}{repeat}", world_size=2, value=value)
            backend.start(attempt_of(spec, tmp_path))
        found = ends(poll_until_end(backend, num_ends=2))
        totals = {run_id: end.result.extra["total"] for run_id, end in found.items()}  # type: ignore[union-attr]
        assert totals == {f"a{repeat}": 3.0, f"b{repeat}": 300.0}
    assert backend.free_workers() == 4


def test_c32_gangs_fill_the_cluster_and_the_driver_holds_none_of_it(backend: Any, tmp_path: Path) -> None:
    for size, run_ids in ((4, ["w"]), (2, ["x", "y"]), (1, ["p", "q", "r", "s"])):
        for run_id in run_ids:
            backend.start(attempt_of(make_spec(run_id, world_size=size), tmp_path))
        assert backend.free_workers() == 0
        found = ends(poll_until_end(backend, num_ends=len(run_ids)))
        assert all(isinstance(end, Finished) for end in found.values())


def test_c69_threads_and_niceness_are_what_was_asked_for_not_what_ray_defaults_to(
    backend: Any, tmp_path: Path
) -> None:
    end = run_one(backend, tmp_path, "threads", report_threads=True)
    assert isinstance(end, Finished)
    extra = end.result.extra
    assert (extra["threads"], extra["omp"]) == (1, "1")
    assert extra["nice"] == os.nice(0)


def test_the_same_workers_serve_one_run_after_another(backend: Any, tmp_path: Path) -> None:
    pids = {pid_of(run_one(backend, tmp_path, f"r{i}")) for i in range(8)}
    assert len(pids) <= 4


def test_an_exception_on_one_rank_ends_all_of_them_and_names_the_culprit(
    backend: Any, tmp_path: Path
) -> None:
    started = time.monotonic()
    backend.start(attempt_of(make_spec("broken", behaviour="raise", rank=1, world_size=2), tmp_path))
    end = failed(poll_until_end(backend))
    assert time.monotonic() - started < 8.0
    assert end.cause is Cause.PYTHON_ERROR
    assert end.message == "rank 1: ValueError: the task is broken"
    assert end.log_path == tmp_path / "broken" / "log.rank1.txt"
    assert "ValueError" in end.log_path.read_text()


@pytest.mark.fault
def test_ranks_that_do_not_notice_are_killed_seconds_after_the_first_failure(
    backend: Any, tmp_path: Path
) -> None:
    """Rank 0 loops in Python, away from any collective, as an NCCL peer would."""
    spec = make_spec("stragglers", behaviour="hang", rank=0, world_size=2, steps=3)
    backend.start(attempt_of(spec, tmp_path))
    _until_progress(backend)
    (victim,) = _pids_named_in(tmp_path / "stragglers" / "log.rank1.txt")
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    end = failed(poll_until_end(backend))
    assert time.monotonic() - killed < 5.0
    assert end.cause is Cause.PROCESS_DEATH
    assert end.message.startswith("rank 1: worker lost")
    assert "_misbehave" in (tmp_path / "stragglers" / "log.txt").read_text()


@pytest.mark.fault
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_frees_the_lease_within_seconds(backend: Any, tmp_path: Path, rank: int) -> None:
    backend.start(attempt_of(make_spec("long", world_size=2, steps=10_000, seconds=0.01), tmp_path))
    _until_progress(backend)
    name = "log.txt" if rank == 0 else "log.rank1.txt"
    (victim,) = _pids_named_in(tmp_path / "long" / name)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    end = failed(poll_until_end(backend))
    assert time.monotonic() - killed < 5.0
    assert end.cause is Cause.PROCESS_DEATH
    assert end.retryable
    wait_for_workers(backend, 4)
    assert isinstance(run_one(backend, tmp_path, "after", world_size=4), Finished)


@pytest.mark.fault
def test_a_frozen_rank_is_found_by_its_silence_and_killed(backend: Any, tmp_path: Path) -> None:
    backend.start(attempt_of(make_spec("frozen", behaviour="freeze", rank=1, world_size=2), tmp_path))
    started = time.monotonic()
    end = failed(poll_until_end(backend))
    assert end.cause is Cause.TIMEOUT
    assert time.monotonic() - started < 10.0 + 8.0
    wait_for_workers(backend, 4)
    (frozen,) = _pids_named_in(tmp_path / "frozen" / "log.rank1.txt")
    assert not _is_running(frozen)


@pytest.mark.fault
def test_an_idle_worker_that_dies_is_replaced_before_anyone_leases_it(backend: Any, tmp_path: Path) -> None:
    victim = pid_of(run_one(backend, tmp_path, "before"))
    os.kill(victim, signal.SIGKILL)
    while backend.free_workers() == 4:
        backend.poll(0.1)
    wait_for_workers(backend, 4)
    assert isinstance(run_one(backend, tmp_path, "after", world_size=4), Finished)


def test_system_exit_in_a_task_is_its_failure_not_the_workers(backend: Any, tmp_path: Path) -> None:
    backend.start(attempt_of(make_spec("leaving", behaviour="leave"), tmp_path))
    end = failed(poll_until_end(backend))
    assert end.cause is Cause.PYTHON_ERROR
    assert "SystemExit" in end.message
    assert backend.free_workers() == 4


def test_a_stop_reaches_every_rank(backend: Any, tmp_path: Path) -> None:
    backend.start(attempt_of(make_spec("long", world_size=2, steps=10_000, seconds=0.01), tmp_path))
    _until_progress(backend)
    backend.stop("long")
    end = failed(poll_until_end(backend))
    assert end.cause is Cause.INTERRUPTED
    assert backend.free_workers() == 4


@contextmanager
def options(backend: Any, **changes: Any) -> Iterator[None]:
    """Other options for a while: a second backend would need workers of its own."""
    before = backend._options
    backend._options = dataclasses.replace(before, **changes)
    try:
        yield
    finally:
        backend._options = before


def test_fresh_isolation_gives_every_attempt_its_own_processes(backend: Any, tmp_path: Path) -> None:
    with options(backend, fresh=True):
        pids = set()
        for number in range(5):
            wait_for_workers(backend, 1)
            pids.add(pid_of(run_one(backend, tmp_path, f"r{number}")))
    assert len(pids) == 5
    wait_for_workers(backend, 4)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_on_a_used_worker_equals_one_on_a_fresh_worker_bit_for_bit(
    backend: Any, tmp_path: Path, world_size: int
) -> None:
    """Whatever ran before: here something that changes every global state it can think of."""
    spec = _digits_spec(world_size)
    for number in range(4):
        run_one(backend, tmp_path, f"polluter{number}", behaviour="pollute", at=1)
    with options(backend, entry=DEFAULT_ENTRY, fresh=True, attempt_timeout_s=120.0):
        used = _trajectory(backend, spec, tmp_path / "used")
        for number in range(1, 4 // world_size):  # use up the workers that have been polluted
            _trajectory(backend, spec, tmp_path / f"between{number}")
        wait_for_workers(backend, 4)
        fresh = _trajectory(backend, spec, tmp_path / "fresh")
    wait_for_workers(backend, 4)
    assert used == fresh


def _digits_spec(world_size: int) -> RunSpec:
    config = parse_sweep_config(
        {
            "task": {"_target_": "gasweep.tasks.Digits"},
            "grid": {
                "micro_batch_size": [8],
                "world_size": [world_size],
                "accumulation_steps": [2],
                "learning_rate": [0.1],
                "seed": [0],
            },
            "target": {"value": 1e-9},
            "budget": {"max_optimizer_steps": 30},
            "sweep": {"throughput_probes": False},
        }
    )
    (spec,) = plan_sweep(config).runs
    return spec


def _trajectory(backend: Any, spec: RunSpec, folder: Path) -> tuple[Any, ...]:
    backend.start(attempt_of(spec, folder))
    events = poll_until_end(backend)
    (end,) = ends(events).values()
    assert isinstance(end, Finished), end
    losses = [r.loss for event in events if isinstance(event, Progress) for r in event.steps]
    assert len(losses) == 30
    return losses, end.result.evaluations, end.result.parameter_sha256


def _until_progress(backend: Any) -> None:
    for _ in range(100):
        if any(isinstance(event, Progress) for event in backend.poll(0.2)):
            return
    raise AssertionError("no progress")


def _pids_named_in(log: Path) -> list[int]:
    text = log.read_text()
    return [int(line.split(" pid ")[1].split()[0]) for line in text.splitlines() if " pid " in line]


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
