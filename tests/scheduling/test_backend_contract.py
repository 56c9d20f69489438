"""What every backend promises, over every backend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scheduling_fakes import ENTRY
from scheduling_play import attempt_of, play, poll_until_end, wait_for_workers
from scheduling_specs import make_spec

from gasweep.results.directory import RESULT_FILE
from gasweep.results.files import read_result
from gasweep.scheduling.backend import Backend, Cause, Event, Failed, Finished, Progress
from gasweep.scheduling.inline import InlineBackend
from gasweep.scheduling.leased import LeaseOptions
from gasweep.scheduling.simulated import SimulatedCluster, simulated_backend

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

KILLS = ("simulated", "ray")
WRITES = ("inline", "ray")


@pytest.fixture(params=["inline", "simulated", pytest.param("ray", marks=pytest.mark.ray)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    if kind == "ray":
        shared = request.getfixturevalue("ray_backend")
        wait_for_workers(shared, 4)
        yield shared
        return
    made: Any
    if kind == "inline":
        made = InlineBackend(entry=ENTRY)
    else:
        made = simulated_backend(
            SimulatedCluster(play, workers_per_node=2), LeaseOptions(attempt_timeout_s=10.0)
        )
    wait_for_workers(made, made.capacity().num_workers)
    yield made
    made.close()


def ends(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, (Finished, Failed))]


def steps(events: list[Event]) -> list[int]:
    return [r.optimizer_step for event in events if isinstance(event, Progress) for r in event.steps]


def run(backend: Any, folder: Path, behaviour: str, **arguments: Any) -> list[Event]:
    spec = make_spec(f"{behaviour}-{time.monotonic_ns()}", behaviour=behaviour, **arguments)
    backend.start(attempt_of(spec, folder))
    return poll_until_end(backend)


def test_progress_then_one_end_and_the_lease_is_over(backend: Any, tmp_path: Path) -> None:
    free = backend.free_workers()
    spec = make_spec("fine", steps=7, seconds=0.02)
    backend.start(attempt_of(spec, tmp_path, number=3))
    assert backend.free_workers() == free - 1
    events = poll_until_end(backend)
    assert backend.free_workers() == free
    (end,) = ends(events)
    assert isinstance(end, Finished)
    assert events[-1] is end
    assert (end.run_id, end.attempt, end.result.run_id) == ("fine", 3, "fine")
    assert steps(events) == [1, 2, 3, 4, 5, 6, 7]
    assert backend.poll(0.0) == []


def test_two_runs_in_turn_do_not_mix(backend: Any, tmp_path: Path) -> None:
    for run_id, count in (("first", 3), ("second", 4)):
        backend.start(attempt_of(make_spec(run_id, steps=count), tmp_path))
        events = poll_until_end(backend)
        assert steps(events) == list(range(1, count + 1))
        assert {event.run_id for event in events if isinstance(event, Progress)} == {run_id}


def test_the_result_is_on_the_disk_before_it_is_reported(backend: Any, kind: str, tmp_path: Path) -> None:
    if kind not in WRITES:
        pytest.skip("a simulated worker has no disk")
    (end,) = ends(run(backend, tmp_path, "ok"))
    assert isinstance(end, Finished)
    assert read_result(tmp_path / end.run_id / RESULT_FILE) == end.result
    assert f"run {end.run_id} attempt 1" in (tmp_path / end.run_id / "log.txt").read_text()


def test_an_exception_is_reported_with_its_trace_and_log(backend: Any, kind: str, tmp_path: Path) -> None:
    (end,) = ends(run(backend, tmp_path, "raise"))
    assert isinstance(end, Failed)
    assert end.cause is Cause.PYTHON_ERROR
    assert not end.retryable
    assert "\n" not in end.message
    if kind in WRITES:
        assert end.message == "ValueError: the task is broken"
        assert end.trace is not None
        assert "_misbehave" in end.trace
        assert end.log_path is not None
        assert "ValueError: the task is broken" in end.log_path.read_text()


def test_what_the_user_can_mend_is_a_user_error(backend: Any, tmp_path: Path) -> None:
    (end,) = ends(run(backend, tmp_path, "refuse"))
    assert isinstance(end, Failed)
    assert end.cause is Cause.USER_ERROR
    assert not end.retryable


def test_a_stop_request_ends_the_attempt_soon(backend: Any, tmp_path: Path) -> None:
    backend.start(attempt_of(make_spec("endless", behaviour="spin"), tmp_path))
    backend.stop("no such run")
    assert ends(backend.poll(0.5)) == []
    backend.stop("endless")
    (end,) = ends(poll_until_end(backend, polls=40))
    assert isinstance(end, Failed)
    assert end.cause is Cause.INTERRUPTED
    assert not end.retryable


def test_a_run_that_finishes_in_spite_of_a_stop_request_is_finished(backend: Any, tmp_path: Path) -> None:
    (end,) = ends(run(backend, tmp_path, "ok"))
    assert isinstance(end, Finished)
    backend.stop(end.run_id)
    assert backend.poll(0.1) == []


def test_oom_is_told_apart(backend: Any, tmp_path: Path) -> None:
    (end,) = ends(run(backend, tmp_path, "oom"))
    assert isinstance(end, Failed)
    assert end.cause is Cause.OOM


@pytest.mark.parametrize("behaviour", ["exit", "kill"])
def test_a_lost_process_is_reported_and_replaced(
    backend: Any, kind: str, tmp_path: Path, behaviour: str
) -> None:
    if kind not in KILLS:
        pytest.skip("it would take this process with it")
    (end,) = ends(run(backend, tmp_path, behaviour))
    assert isinstance(end, Failed)
    assert end.cause is Cause.PROCESS_DEATH
    assert end.retryable
    wait_for_workers(backend, backend.capacity().num_workers)
    assert isinstance(ends(run(backend, tmp_path, "ok", world_size=2))[0], Finished)


def test_a_hung_attempt_is_killed_after_its_time(backend: Any, kind: str, tmp_path: Path) -> None:
    if kind not in KILLS:
        pytest.skip("a thread cannot be killed")
    (end,) = ends(run(backend, tmp_path, "hang"))
    assert isinstance(end, Failed)
    assert end.cause is Cause.TIMEOUT
    assert end.retryable
    assert "cluster.attempt_timeout_s=10" in end.message


def test_feasibility_is_told_before_anything_runs(backend: Any) -> None:
    assert backend.infeasible_reason(make_spec("small")) is None
    reason = backend.infeasible_reason(make_spec("huge", world_size=1000))
    assert reason is not None
    assert reason.startswith("world_size=1000 needs 1000 workers, but ")
    assert "\n" not in reason


def test_capacity_bounds_the_free_workers(backend: Any) -> None:
    capacity = backend.capacity()
    assert 1 <= backend.free_workers() <= capacity.num_workers <= capacity.max_workers
    assert capacity.device


def test_polling_an_idle_backend_waits_and_tells_nothing(backend: Any) -> None:
    assert backend.poll(0.0) == []
    assert backend.poll(0.05) == []


def test_closing_twice_is_safe_and_ends_running_attempts(kind: str, tmp_path: Path) -> None:
    if kind == "ray":
        pytest.skip("the shared backend is closed at the end of the session")
    made: Backend
    if kind == "inline":
        made = InlineBackend(entry=ENTRY)
    else:
        made = simulated_backend(SimulatedCluster(play, workers_per_node=2))
    while made.free_workers() == 0:
        made.poll(1.0)
    made.start(attempt_of(make_spec("endless", behaviour="spin"), tmp_path))
    made.close()
    made.close()
