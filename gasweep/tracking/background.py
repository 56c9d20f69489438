"""Any tracker, moved off the driver's thread: its calls return at once whatever the tracker waits for."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.tracking.base import Tracker

Build = Callable[[Callable[[str], object]], Tracker]
"""Builds the tracker, given where it sends its warnings; called on the background thread, at first use."""


class BackgroundTracker(Tracker):
    """Feeds the tracker that `build` makes from one daemon thread, in order.

    max_pending: records waiting at most. Beyond it, optimizer steps are dropped (evaluations and the rest
        are kept) with one warning: a slow service costs detail, never memory or time of the sweep.
    close_timeout_s: how long `close` waits for what is pending before it leaves it behind, with a warning.

    Warnings of the tracker are issued on the caller's thread, by the next call.
    """

    def __init__(self, build: Build, *, max_pending: int = 50_000, close_timeout_s: float = 60.0) -> None:
        self._build = build
        self._max_pending = max_pending
        self._close_timeout_s = close_timeout_s
        self._calls: queue.SimpleQueue[tuple[int, Callable[[Tracker], None]] | None] = queue.SimpleQueue()
        self._pending = 0
        self._pending_lock = threading.Lock()
        self._warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._has_dropped = False
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="gasweep-tracker", daemon=True)
        self._thread.start()

    def start_run(self, spec: RunSpec) -> None:
        self._submit(lambda tracker: tracker.start_run(spec))

    def log(self, run_id: str, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        if steps and self._pending + len(steps) > self._max_pending:
            steps = []
            if not self._has_dropped:
                self._has_dropped = True
                self._warnings.put(
                    "tracking cannot keep up and leaves optimizer steps out; raise "
                    "tracking.every_optimizer_steps (the journal holds all of them)"
                )
        weight = len(steps) + len(evaluations)
        self._submit(lambda tracker: tracker.log(run_id, steps=steps, evaluations=evaluations), weight=weight)

    def finish_run(self, run_id: str, result: RunResult | None, *, state: str) -> None:
        self._submit(lambda tracker: tracker.finish_run(run_id, result, state=state))

    def summarize(self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]) -> None:
        self._submit(lambda tracker: tracker.summarize(summary, table=table, images=images))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._calls.put(None)
            self._thread.join(self._close_timeout_s)
            if self._thread.is_alive():
                self._warnings.put(
                    f"tracking was still behind after {self._close_timeout_s:g} s and is left there; the "
                    f"journal holds everything: `gasweep export DIR --format wandb` mirrors it"
                )
        self._pass_warnings_on()

    def wait(self, timeout_s: float) -> bool:
        """Whether all that was given has been handled, within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._pending > 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _submit(self, call: Callable[[Tracker], None], *, weight: int = 1) -> None:
        if not self._closed:
            with self._pending_lock:
                self._pending += weight
            self._calls.put((weight, call))
        self._pass_warnings_on()

    def _work(self) -> None:
        tracker: Tracker | None = None
        first = True
        while (item := self._calls.get()) is not None:
            weight, call = item
            try:
                if first:
                    first = False
                    tracker = self._build_or_warn()
                if tracker is not None:
                    call(tracker)
            except Exception as error:
                self._warnings.put(f"tracking stopped ({type(error).__name__}: {error}); the sweep goes on")
                tracker = None
            finally:
                with self._pending_lock:
                    self._pending -= weight
        if tracker is not None:
            with contextlib.suppress(Exception):
                tracker.close()

    def _build_or_warn(self) -> Tracker | None:
        try:
            return self._build(self._warnings.put)
        except Exception as error:
            self._warnings.put(f"tracking is off: {error}")
            return None

    def _pass_warnings_on(self) -> None:
        while True:
            try:
                text = self._warnings.get_nowait()
            except queue.Empty:
                return
            # Where warnings are errors, a tracker may still not raise into the sweep.
            with contextlib.suppress(Warning):
                warnings.warn(text, stacklevel=3)
