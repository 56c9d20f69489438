"""Watching a driver: a live table on a terminal, lines at a bounded rate anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from gasweep.cli.eta import Eta
from gasweep.cli.output import console
from gasweep.cli.render import measured, progress_line, run_line, sweep_view
from gasweep.cli.view import RunView, SweepView, now_s, view_of_specs
from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.results.states import RunState
from gasweep.scheduling.backend import Capacity, Failed
from gasweep.scheduling.observer import Observer

REFRESH_S = 0.25
PROGRESS_LINE_S = 10.0
MAX_LINES_PER_S = 5.0


class Display(Observer):
    """Keeps a SweepView up to date; subclasses show it.

    on_start: called once the driver has taken up the sweep.
    has_seen_an_end: whether a run has ended since; not so where all had ended before.
    """

    def __init__(self, name: str, *, on_start: Callable[[], object] = lambda: None) -> None:
        self.sweep = SweepView(name=name, runs={})
        self._on_start = on_start
        self.has_seen_an_end = False

    def sweep_started(self, specs: list[RunSpec], *, states: dict[str, RunState], capacity: Capacity) -> None:
        self.sweep = view_of_specs(self.sweep.name, specs, states)
        self.sweep.num_workers = capacity.num_workers
        self.say(
            f"{len(specs)} runs, {sum(run.finished for run in self.sweep.runs.values())} of them finished "
            f"before; {capacity.num_workers} workers ({capacity.device})"
        )
        self._on_start()

    def run_changed(self, spec: RunSpec, state: RunState, *, reason: str | None, attempt: int) -> None:
        run = self.sweep.runs[spec.run_id]
        run.state, run.reason, run.num_attempts, run.changed_s = state, reason, attempt, now_s()
        self.has_seen_an_end = self.has_seen_an_end or state is not RunState.RUNNING

    def run_progress(self, spec: RunSpec, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        self.sweep.runs[spec.run_id].take_progress(steps, evaluations)

    def run_finished(self, spec: RunSpec, result: RunResult) -> None:
        self.sweep.runs[spec.run_id].take_result(result)

    def attempt_failed(self, spec: RunSpec, failed: Failed, *, retried: bool) -> None:
        log = "" if failed.log_path is None else f"; log: {failed.log_path}"
        what = "tried again" if retried else self.sweep.runs[spec.run_id].state.value
        self.say(
            f"attempt {failed.attempt} of {run_line(self.sweep.runs[spec.run_id])} ended "
            f"({failed.cause.value}): {failed.message}; {what}{log}"
        )

    def note(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        """Show one line that stays."""
        raise NotImplementedError

    def close(self) -> None:
        """Take down what is not meant to stay. Safe to call twice."""


class LiveDisplay(Display):
    """A table that is redrawn in place."""

    def __init__(self, name: str, *, on_start: Callable[[], object] = lambda: None) -> None:
        super().__init__(name, on_start=on_start)
        from rich.live import Live

        self._console = console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._drawn_s = 0.0

    def idle(self) -> None:
        now = time.monotonic()
        if now - self._drawn_s >= REFRESH_S:
            self._drawn_s = now
            size = self._console.size
            self._live.update(sweep_view(self.sweep, width=size.width, height=size.height), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class PlainDisplay(Display):
    """A line for what ends, as long as that is a few per second, and a progress line now and then.

    A reader that went away (a closed pipe) silences it; the sweep goes on.
    """

    def __init__(
        self,
        name: str,
        *,
        file: TextIO | None = None,
        on_start: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, on_start=on_start)
        self._file = file or sys.stdout
        self._clock = clock
        self._last_progress_s = clock()
        self._last_line_s = float("-inf")
        self._unsaid = 0

    def run_finished(self, spec: RunSpec, result: RunResult) -> None:
        super().run_finished(spec, result)
        self._ended(self.sweep.runs[spec.run_id])

    def run_changed(self, spec: RunSpec, state: RunState, *, reason: str | None, attempt: int) -> None:
        super().run_changed(spec, state, reason=reason, attempt=attempt)
        if state is RunState.INFEASIBLE:
            self._ended(self.sweep.runs[spec.run_id])

    def idle(self) -> None:
        if self._clock() - self._last_progress_s >= PROGRESS_LINE_S:
            self._last_progress_s = self._clock()
            more = f"; {self._unsaid} more runs ended" if self._unsaid else ""
            self._unsaid = 0
            self.say(progress_line(self.sweep, Eta(self.sweep)) + more)

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(f"{text}\n")
            self._file.flush()

    def _ended(self, run: RunView) -> None:
        now = self._clock()
        if now - self._last_line_s < 1.0 / MAX_LINES_PER_S:
            self._unsaid += 1
            return
        self._last_line_s = now
        why = f" ({run.reason})" if run.reason else ""
        done = f"[{self.sweep.num_done}/{len(self.sweep.runs)}]"
        self.say(f"{done} {run.state_word}: {run_line(run)}  {measured(run)}{why}".rstrip())


def open_display(name: str, *, on_start: Callable[[], object], file: TextIO | None = None) -> Display:
    """Live where there is a terminal that can redraw, lines elsewhere; `file` forces lines into it."""
    if file is None and sys.stdout.isatty() and not _dumb():
        return LiveDisplay(name, on_start=on_start)
    return PlainDisplay(name, file=file, on_start=on_start)


def _dumb() -> Any:
    return console().is_dumb_terminal
