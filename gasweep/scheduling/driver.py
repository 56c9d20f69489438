"""The loop that runs a sweep: the one writer of its journal, which it trusts more than itself.

Every state and result is durable before it is acted upon or told to anyone, so a driver that is killed at any
instant loses no finished result and repeats none.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gasweep.config.run_spec import RunSpec
from gasweep.errors import SourceError
from gasweep.results.directory import run_directory
from gasweep.results.journal import Journal
from gasweep.results.records import RunResult
from gasweep.results.states import RunState
from gasweep.scheduling.backend import Attempt, Backend, Cause, Event, Failed, Finished, Note, Progress
from gasweep.scheduling.interrupts import Interrupts
from gasweep.scheduling.observer import Observer
from gasweep.scheduling.resume import result_left
from gasweep.scheduling.scheduler import BACKFILL_DEPTH, Request, place, wanted_workers
from gasweep.scheduling.spool import recover_records, remove_spool
from gasweep.scheduling.study import Study, company_of
from gasweep.tracking.base import Tracker

POLL_S = 0.25
STOP_S = 8.0  # after a first Ctrl-C, running attempts get this long to write a checkpoint and end
SHRUNK_S = 60.0  # a cluster must be smaller for this long before runs that need more are called infeasible
STALLED_S = 60.0  # nothing runs although runs wait: said after this long, once
PATIENCE_TURNOVERS = 2  # a waiting run may be passed by this many times the cluster's workers


@dataclass(eq=False, kw_only=True)
class _Open:
    """A running attempt. company: the most other attempts that ran beside it at any time."""

    spec: RunSpec
    number: int
    company: int = 0


@dataclass(kw_only=True)
class Driver:
    """Drives the waiting runs of a sweep to their ends.

    states: of every run; all running ones are this driver's own. now_s: a monotonic clock (the simulation
    gives its own).
    """

    study: Study
    backend: Backend
    journal: Journal
    directory: Path
    tracker: Tracker
    observer: Observer
    interrupts: Interrupts
    states: dict[str, RunState]
    specs: dict[str, RunSpec]
    max_retries: int
    now_s: Callable[[], float]
    _open: dict[str, _Open] = field(default_factory=dict)
    _requests: dict[str, Request] = field(default_factory=dict)
    _passed: dict[str, int] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)
    _stop_by_s: float | None = None
    _room: int = 0
    _shrunk_since_s: float | None = None
    _idle_since_s: float | None = None

    def run(self) -> None:
        """Until nothing waits or runs, or a stop was asked for and has been carried out.

        Attempts still running at the end of a stop are interrupted. Whatever is raised, no run stays
        `running` in the journal.
        """
        self._room = self.backend.capacity().max_workers
        self._idle_since_s = self.now_s()
        self._requests = {
            spec.run_id: Request(
                run_id=spec.run_id,
                world_size=spec.layout.world_size,
                company=company_of(spec, isolated_workers=self.backend.isolated_workers),
            )
            for spec in self.specs.values()
        }
        try:
            while self._goes_on():
                if self._stop_by_s is None:
                    self._place()
                self._handle(self.backend.poll(POLL_S))
                self._watch_room()
                self._watch_stall()
                self.observer.idle()
        finally:
            self._give_up()

    def _goes_on(self) -> bool:
        if self.interrupts.asked and self._stop_by_s is None:
            self._begin_stop()
        if self._stop_by_s is not None:
            late = self.interrupts.insisted or self.now_s() >= self._stop_by_s
            return bool(self._open) and not late
        return bool(self._open) or self.study.num_waiting > 0

    def _begin_stop(self) -> None:
        self._stop_by_s = self.now_s() + STOP_S
        for run_id in self._open:
            self.backend.stop(run_id)
        if self._open:
            self.observer.note(
                f"stopping: {len(self._open)} running attempts write a checkpoint; again to end at once"
            )

    def _place(self) -> None:
        waiting = [self._requests[spec.run_id] for spec in self.study.ask(BACKFILL_DEPTH)]
        running = [self._requests[run_id] for run_id in self._open]
        self.backend.want(wanted_workers(waiting, running))
        free = self.backend.free_workers()
        if not waiting or free == 0:
            return
        placement = place(
            waiting,
            running=running,
            free_workers=free,
            passed=self._passed,
            patience_workers=PATIENCE_TURNOVERS * max(self.backend.capacity().num_workers, 1),
        )
        self._passed = placement.passed
        if placement.start:
            self._start(placement.start)

    def _start(self, run_ids: Sequence[str]) -> None:
        with self.journal.transaction():
            for run_id in run_ids:
                number = self.journal.start_attempt(run_id)
                self.journal.transition(run_id, RunState.RUNNING)
                self._open[run_id] = _Open(spec=self.specs[run_id], number=number)
        for run_id in run_ids:
            item = self._open[run_id]
            folder = self._folder(run_id)
            folder.mkdir(parents=True, exist_ok=True)
            self.backend.start(Attempt(spec=item.spec, number=item.number, run_directory=folder))
            self.tracker.start_run(item.spec)
            self._told(run_id, RunState.RUNNING, reason=None, number=item.number)
        for item in self._open.values():
            item.company = max(item.company, len(self._open) - 1)

    def _handle(self, events: Sequence[Event]) -> None:
        if not events:
            return
        with self.journal.transaction():
            after = [self._record(event) for event in events]
        for tell in after:
            tell()

    def _record(self, event: Event) -> Callable[[], None]:
        """Write an event into the journal; what is to be told once that is durable."""
        if isinstance(event, Note):
            return lambda: self.observer.note(event.text)
        if isinstance(event, Progress):
            return self._record_progress(event)
        if isinstance(event, Finished):
            return self._record_result(self._open.pop(event.run_id), event.result)
        return self._record_failure(self._open.pop(event.run_id), event)

    def _record_progress(self, event: Progress) -> Callable[[], None]:
        steps, evaluations = event.steps, event.evaluations
        self.journal.append(event.run_id, event.attempt, steps=steps, evaluations=evaluations)

        def tell() -> None:
            self.tracker.log(event.run_id, steps=steps, evaluations=evaluations)
            self.observer.run_progress(self.specs[event.run_id], steps=steps, evaluations=evaluations)

        return tell

    def _record_result(self, item: _Open, result: RunResult) -> Callable[[], None]:
        if item.spec.kind == "probe":
            result = replace(result, extra={**result.extra, "timed_beside_attempts": item.company})
        self.journal.record_result(result)

        def tell() -> None:
            remove_spool(self._folder(result.run_id), item.number)
            self._told(result.run_id, result.state, reason=result.reason, number=item.number, result=result)
            self.tracker.finish_run(result.run_id, result, state=result.state.value)
            self.observer.run_finished(item.spec, result)

        return tell

    def _record_failure(self, item: _Open, failed: Failed) -> Callable[[], None]:
        run_id = failed.run_id
        state = self._state_after(failed)
        reason = describe(failed)
        recover_records(self.journal, self._folder(run_id), run_id, failed.attempt)
        self.journal.end_attempt(run_id, failed.attempt, failed.cause.value, reason)
        self.journal.transition(run_id, state, reason)

        def tell() -> None:
            remove_spool(self._folder(run_id), failed.attempt)
            self._told(run_id, state, reason=reason, number=item.number)
            if state is not RunState.WAITING:
                self.tracker.finish_run(run_id, None, state=state.value)
            self.observer.attempt_failed(item.spec, failed, retried=state is RunState.WAITING)

        return tell

    def _state_after(self, failed: Failed) -> RunState:
        if failed.cause is Cause.INTERRUPTED:
            return RunState.INTERRUPTED
        self._failures[failed.run_id] += 1
        if not failed.retryable or self._failures[failed.run_id] > self.max_retries:
            return RunState.FAILED
        return RunState.WAITING if self._stop_by_s is None else RunState.INTERRUPTED

    def _watch_room(self) -> None:
        """Judge feasibility again when the cluster has grown, or has been smaller for a while."""
        room = self.backend.capacity().max_workers
        if room == self._room:
            self._shrunk_since_s = None
            return
        if room < self._room:
            self._shrunk_since_s = self._shrunk_since_s or self.now_s()
            if self.now_s() - self._shrunk_since_s < SHRUNK_S:
                return
        self._shrunk_since_s = None
        self.observer.note(f"the cluster has room for {room} workers now, before for {self._room}")
        self._room = room
        for run_id, state in list(self.states.items()):
            if state in (RunState.WAITING, RunState.INFEASIBLE):
                reason = self.backend.infeasible_reason(self.specs[run_id])
                new = RunState.WAITING if reason is None else RunState.INFEASIBLE
                if new is not state:
                    self.journal.transition(run_id, new, reason)
                    self._told(run_id, new, reason=reason, number=0)

    def _watch_stall(self) -> None:
        if self._open or self.study.num_waiting == 0:
            self._idle_since_s = self.now_s()
        elif self._idle_since_s is not None and self.now_s() - self._idle_since_s > STALLED_S:
            self._idle_since_s = None
            needed = self.study.ask(1)[0].layout.world_size
            self.observer.note(
                f"{self.study.num_waiting} runs wait and none runs: the first needs {needed} workers, "
                f"{self.backend.free_workers()} are ready and the cluster has given no more for "
                f"{STALLED_S:g} s (others may hold them)"
            )

    def _give_up(self) -> None:
        """End the workers; what still ran is interrupted, unless it left a result after all."""
        self.backend.close()
        for run_id, item in list(self._open.items()):
            result = None
            with contextlib.suppress(SourceError):
                result = result_left(self.directory, item.spec)
            if result is not None:
                recover_records(self.journal, self._folder(run_id), run_id, item.number)
                self._record_result(self._open.pop(run_id), result)()
                continue
            reason = "the sweep was stopped before the attempt had written its checkpoint"
            with self.journal.transaction():
                recover_records(self.journal, self._folder(run_id), run_id, item.number)
                self.journal.end_attempt(run_id, item.number, Cause.INTERRUPTED.value, reason)
                self.journal.transition(run_id, RunState.INTERRUPTED, reason)
            remove_spool(self._folder(run_id), item.number)
            del self._open[run_id]
            self._told(run_id, RunState.INTERRUPTED, reason=reason, number=item.number)
            self.tracker.finish_run(run_id, None, state=RunState.INTERRUPTED.value)

    def _folder(self, run_id: str) -> Path:
        return run_directory(self.directory, run_id)

    def _told(
        self,
        run_id: str,
        state: RunState,
        *,
        reason: str | None,
        number: int,
        result: RunResult | None = None,
    ) -> None:
        """Tell study and observer of a state that the journal holds."""
        self.states[run_id] = state
        self.study.tell(run_id, state, result)
        self.observer.run_changed(self.specs[run_id], state, reason=reason, attempt=number)


def describe(failed: Failed) -> str:
    """One line: what happened, and where to read on."""
    log = "" if failed.log_path is None else f" (log: {failed.log_path})"
    return f"{failed.cause.value}: {failed.message}{log}"
