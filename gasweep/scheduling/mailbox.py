"""Measurements on their way from the training thread to whoever polls."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gasweep.results.records import EvalRecord, StepRecord
from gasweep.scheduling.outcome import Measurements

PATIENCE_S = 0.5  # longest wait of a poll that finds nothing
PAUSE_S = 0.2  # a poll that finds something waits for more: a few messages a second, not one per step


class Mailbox:
    """Filled by one thread, emptied by another. Never blocks the one that fills it."""

    def __init__(self, *, patience_s: float = PATIENCE_S, pause_s: float = PAUSE_S) -> None:
        self._patience_s = patience_s
        self._pause_s = pause_s
        self._condition = threading.Condition()
        self._steps: list[StepRecord] = []
        self._evaluations: list[EvalRecord] = []
        self._beats = 0
        self._beats_told = 0
        self._closed = False

    def put(self, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        """The sink of a run."""
        with self._condition:
            self._steps += steps
            self._evaluations += evaluations
            self._beats += 1
            self._condition.notify_all()

    def beat(self) -> None:
        """A sign of life without a measurement."""
        self._beats += 1

    def close(self) -> None:
        """No more will come: a waiting poll returns at once."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def take(self) -> Measurements:
        """What has come since the last call, at once."""
        with self._condition:
            steps, self._steps = self._steps, []
            evaluations, self._evaluations = self._evaluations, []
            moved = self._beats != self._beats_told
            self._beats_told = self._beats
        return Measurements(steps=steps, evaluations=evaluations, moved=moved)

    def wait_and_take(self) -> Measurements:
        """What has come, after a wait that keeps the number of messages low."""
        with self._condition:
            full: Callable[[], bool] = lambda: bool(self._steps or self._evaluations or self._closed)  # noqa: E731
            if self._condition.wait_for(full, timeout=self._patience_s):
                self._condition.wait_for(lambda: self._closed, timeout=self._pause_s)
        return self.take()
