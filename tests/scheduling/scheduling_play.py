"""Scripts for the simulated cluster that match what the fake trainer does."""

from __future__ import annotations

from pathlib import Path

from scheduling_fakes import make_result, step_record

from gasweep.config.run_spec import RunSpec
from gasweep.scheduling.backend import Attempt, Cause, Event, Failed, Finished
from gasweep.scheduling.leased import LeasedBackend
from gasweep.scheduling.simulated import Script

CAUSES = {
    "raise": Cause.PYTHON_ERROR,
    "oom": Cause.OOM,
    "refuse": Cause.USER_ERROR,
    "exit": Cause.PROCESS_DEATH,
    "kill": Cause.PROCESS_DEATH,
}


def play(spec: RunSpec, attempt: int) -> Script:
    """The script of a run by its `task` section; see `scheduling_fakes.train`."""
    task = spec.config.task
    behaviour, steps = task["behaviour"], task.get("steps", 5)
    if attempt > task.get("attempts", 10**9):
        behaviour = "ok"
    duration_s = steps * task.get("seconds", 0.1)
    if behaviour in ("hang", "freeze"):
        return Script(duration_s=duration_s, hangs=True)
    if behaviour == "spin":
        return Script(duration_s=1e6)
    records = [step_record(step, batch=spec.effective_batch_size) for step in range(1, steps + 1)]
    return Script(
        duration_s=duration_s,
        result=make_result(spec, steps=steps),
        cause=CAUSES.get(behaviour),
        rank=task.get("rank", 0),
        steps=records if behaviour == "ok" else records[:1],
    )


def attempt_of(spec: RunSpec, folder: Path, *, number: int = 1) -> Attempt:
    directory = folder / spec.run_id
    directory.mkdir(parents=True, exist_ok=True)
    return Attempt(spec=spec, number=number, run_directory=directory)


def poll_until_end(backend: LeasedBackend, *, num_ends: int = 1, polls: int = 600) -> list[Event]:
    """Events until `num_ends` attempts have ended."""
    events: list[Event] = []
    for _ in range(polls):
        events += backend.poll(0.25)
        if sum(isinstance(event, (Finished, Failed)) for event in events) >= num_ends:
            return events
    raise AssertionError(f"no end in sight: {events}")


def wait_for_workers(backend: LeasedBackend, count: int, *, polls: int = 600) -> None:
    """Until `count` workers are free."""
    for _ in range(polls):
        if backend.free_workers() >= count:
            return
        backend.want(count)
        backend.poll(0.25)
    raise AssertionError(f"{backend.free_workers()} free workers, wanted {count}")
