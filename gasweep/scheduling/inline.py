"""One worker: a thread of this process. For debugging, notebooks, and machines without Ray."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gasweep.config.run_spec import RunSpec
from gasweep.scheduling.backend import Attempt, Backend, Capacity, Event, Failed, Finished, Progress
from gasweep.scheduling.execute import execute, header
from gasweep.scheduling.failures import failed_outcome
from gasweep.scheduling.gang import log_name
from gasweep.scheduling.mailbox import Mailbox
from gasweep.scheduling.order import DEFAULT_ENTRY, WorkOrder
from gasweep.scheduling.outcome import Outcome

_TICK_S = 0.05


@dataclass(eq=False, kw_only=True)
class _Running:
    attempt: Attempt
    mailbox: Mailbox = field(default_factory=Mailbox)
    stop: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    thread: threading.Thread | None = None


class InlineBackend(Backend):
    """Runs attempts one at a time beside the caller's thread.

    A thread cannot be killed: an attempt that hangs hangs the sweep (there is no timeout), and one that ends
    the process ends the driver with it. What a task prints stays on the terminal.
    """

    isolated_workers = False

    def __init__(self, *, num_threads: int = 1, entry: str = DEFAULT_ENTRY) -> None:
        self._num_threads = num_threads
        self._entry = entry
        self._running: _Running | None = None

    def capacity(self) -> Capacity:
        return Capacity(num_workers=1, max_workers=1, device="cpu")

    def free_workers(self) -> int:
        return 0 if self._running is not None else 1

    def infeasible_reason(self, spec: RunSpec) -> str | None:
        if spec.layout.world_size == 1:
            return None
        return (
            f"world_size={spec.layout.world_size} needs {spec.layout.world_size} workers, but "
            "cluster.backend=inline has 1; set cluster.backend=ray"
        )

    def start(self, attempt: Attempt) -> None:
        assert self._running is None, "started without a free worker"
        running = _Running(attempt=attempt)
        self._running = running
        # A daemon: a run that never asks whether to stop must not keep the process from ending.
        running.thread = threading.Thread(
            target=self._serve, args=(running,), daemon=True, name="gasweep-run"
        )
        running.thread.start()

    def poll(self, timeout_s: float) -> list[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            events = self._collect()
            left = deadline - time.monotonic()
            if events or left <= 0:
                return events
            time.sleep(min(left, _TICK_S))

    def stop(self, run_id: str) -> None:
        if self._running is not None and self._running.attempt.spec.run_id == run_id:
            self._running.stop.set()

    def close(self) -> None:
        if self._running is not None:
            self._running.stop.set()

    def _collect(self) -> list[Event]:
        running = self._running
        if running is None:
            return []
        outcome = running.outcome  # read before the mailbox: nothing is put into it afterwards
        attempt, batch = running.attempt, running.mailbox.take()
        events: list[Event] = []
        if batch.steps or batch.evaluations:
            events.append(
                Progress(
                    run_id=attempt.spec.run_id,
                    attempt=attempt.number,
                    steps=batch.steps,
                    evaluations=batch.evaluations,
                )
            )
        if outcome is not None:
            self._running = None
            events.append(_ending(attempt, outcome))
        return events

    def _serve(self, running: _Running) -> None:
        """Whatever happens here, the attempt ends: a thread without an outcome would be awaited forever."""
        try:
            outcome = self._run(running)
        except BaseException as error:
            outcome = failed_outcome(error)
        with contextlib.suppress(OSError):
            log = running.attempt.run_directory / log_name(0)
            _append(log, outcome.trace or f"--- {outcome.cause or 'finished'} {outcome.message}".rstrip())
        running.outcome = outcome

    def _run(self, running: _Running) -> Outcome:
        from gasweep.training.reuse import clean_slate, clean_up

        (order,) = WorkOrder.for_ranks(running.attempt, entry=self._entry, timeout_s=0.0)
        log = running.attempt.run_directory / log_name(0)
        _append(log, header(order, where="the driver's process"))
        with clean_slate(num_threads=self._num_threads):
            outcome = execute(order, device="cpu", mailbox=running.mailbox, should_stop=running.stop.is_set)
        clean_up()
        return outcome


def _ending(attempt: Attempt, outcome: Outcome) -> Event:
    run_id, number = attempt.spec.run_id, attempt.number
    if outcome.cause is None:
        assert outcome.result is not None
        return Finished(run_id=run_id, attempt=number, result=outcome.result)
    return Failed(
        run_id=run_id,
        attempt=number,
        cause=outcome.cause,
        message=outcome.message,
        log_path=attempt.run_directory / log_name(0),
        retryable=False,  # in the same process the same happens again
        trace=outcome.trace,
    )


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{text}\n")
