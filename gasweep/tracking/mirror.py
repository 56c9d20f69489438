"""A tracker over any service that keeps runs as rows: what is sent, once each, in order, and what is not."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol

from gasweep.analysis.noise_scale_ema import SmoothedNoise
from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.tracking.base import Tracker
from gasweep.tracking.rows import Row, merge_rows, run_config, run_name, run_summary

P = ParamSpec("P")

History = Callable[[str], tuple[list[StepRecord], list[EvalRecord]]]
"""Run id -> what the journal holds of that run; empty for a run it does not know."""

Warn = Callable[[str], object]


class RemoteRun(Protocol):
    """One open run of the service."""

    @property
    def last_step(self) -> int:
        """The last optimizer step the service held when the run was opened; -1 when it held none."""

    def log(self, row: Row, *, optimizer_step: int) -> None: ...

    def finish(self, summary: dict[str, Any], *, succeeded: bool) -> None: ...


class Client(Protocol):
    """The service. May raise anything; may block only for a bounded time."""

    def open_run(self, *, run_id: str, name: str, job_type: str, config: dict[str, Any]) -> RemoteRun: ...

    def log_summary(
        self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]
    ) -> None: ...

    def close(self) -> None: ...


@dataclass(kw_only=True)
class _Mirrored:
    """A run between `start_run` and `finish_run`; `remote` None: it waits for one of the open places.

    newest: the newest row, held back until a later one comes: its evaluation may still follow, and a row that
        the service has taken (also from a driver that was killed) cannot be completed any more.
    """

    spec: RunSpec
    remote: RemoteRun | None = None
    last_step: int = -1
    last_evaluation: int = -1
    newest: tuple[int, Row] | None = None
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvalRecord] = field(default_factory=list)
    noise: SmoothedNoise = field(default_factory=SmoothedNoise)


def _guarded(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Run `method` unless the tracker is broken; an exception breaks it."""

    def guarded(tracker: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if tracker.broken:
            return
        try:
            method(tracker, *args, **kwargs)
        except Exception as error:
            tracker.give_up(error)

    return functools.update_wrapper(guarded, method)


class MirrorTracker(Tracker):
    """Mirrors runs into `client`; the first exception it meets ends it, with one warning.

    history: read when a run is opened, so that what was measured before (an earlier driver, a run that
        waited for its place) is there, and so that nothing is sent twice.
    every_optimizer_steps: rows of other optimizer steps are left out, unless they hold an evaluation
        or a measurement.
    max_open: runs open at once; further ones wait, their records kept, until one finishes.
    """

    def __init__(
        self,
        client: Client,
        *,
        history: History = lambda run_id: ([], []),
        every_optimizer_steps: int = 1,
        max_open: int = 16,
        warn: Warn = warnings.warn,
    ) -> None:
        self._client = client
        self._history = history
        self._every = every_optimizer_steps
        self._max_open = max_open
        self._warn = warn
        self._runs: dict[str, _Mirrored] = {}
        self.broken = False

    @_guarded
    def start_run(self, spec: RunSpec) -> None:
        if spec.run_id in self._runs:
            return
        self._runs[spec.run_id] = _Mirrored(spec=spec)
        self._open_waiting()

    @_guarded
    def log(self, run_id: str, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        if run.remote is None:
            run.steps += steps
            run.evaluations += evaluations
        else:
            self._send(run, run.remote, steps, evaluations)

    @_guarded
    def finish_run(self, run_id: str, result: RunResult | None, *, state: str) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        remote = run.remote or self._open(run)
        if result is not None:
            self._send(run, remote, [], result.evaluations)
        self._flush(run, remote)
        del self._runs[run_id]
        remote.finish(run_summary(run.spec, result, state=state), succeeded=result is not None)
        self._open_waiting()

    @_guarded
    def summarize(self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]) -> None:
        self._client.log_summary(summary, table=table, images=images)

    def close(self) -> None:
        for run_id in list(self._runs):
            self.finish_run(run_id, None, state="interrupted")
        self._close_client()

    @_guarded
    def _close_client(self) -> None:
        self._client.close()

    def give_up(self, error: Exception) -> None:
        """Warn once and drop everything from now on; what is open at the service is closed if it can be."""
        self.broken = True
        first_line = (str(error).splitlines() or [""])[0]
        self._warn(
            f"tracking stopped ({type(error).__name__}: {first_line}); the sweep goes on and its journal "
            f"holds everything: `gasweep export DIR --format wandb` mirrors it later"
        )
        for run in self._runs.values():
            try:
                if run.remote is not None:
                    run.remote.finish({"state": "interrupted"}, succeeded=False)
            except Exception:
                break
        self._runs.clear()

    def _open_waiting(self) -> None:
        num_open = sum(run.remote is not None for run in self._runs.values())
        waiting = [run for run in self._runs.values() if run.remote is None]
        for run in waiting[: max(self._max_open - num_open, 0)]:
            self._open(run)

    def _open(self, run: _Mirrored) -> RemoteRun:
        spec = run.spec
        remote = self._client.open_run(
            run_id=spec.run_id, name=run_name(spec), job_type=spec.kind, config=run_config(spec)
        )
        run.remote = remote
        run.last_step = run.last_evaluation = remote.last_step
        self._send(run, remote, *self._history(spec.run_id))
        self._send(run, remote, run.steps, run.evaluations)
        run.steps, run.evaluations = [], []
        return remote

    def _send(
        self, run: _Mirrored, remote: RemoteRun, steps: list[StepRecord], evaluations: list[EvalRecord]
    ) -> None:
        # Each kind has its own last step, since an evaluation may follow in a later call than its optimizer
        # step; a row behind the newest would be refused by the service.
        floor = max(run.last_step, run.last_evaluation)
        new_steps = [
            record
            for record in steps
            if record.optimizer_step > run.last_step and record.optimizer_step >= floor
        ]
        new_evaluations = [
            record
            for record in evaluations
            if record.optimizer_step > run.last_evaluation and record.optimizer_step >= floor
        ]
        evaluated = {record.optimizer_step for record in new_evaluations}
        kept = [
            record
            for record in new_steps
            if record.optimizer_step % self._every == 0
            or record.optimizer_step in evaluated
            or record.extra  # a measurement, however rarely steps are sent
        ]
        for optimizer_step, row in merge_rows(kept, new_evaluations, noise=run.noise):
            if run.newest is not None and run.newest[0] == optimizer_step:
                row = {**run.newest[1], **row}
            else:
                self._flush(run, remote)
            run.newest = (optimizer_step, row)
        run.last_step = max((record.optimizer_step for record in new_steps), default=run.last_step)
        run.last_evaluation = max(evaluated, default=run.last_evaluation)

    def _flush(self, run: _Mirrored, remote: RemoteRun) -> None:
        if run.newest is not None:
            optimizer_step, row = run.newest
            run.newest = None
            remote.log(row, optimizer_step=optimizer_step)
