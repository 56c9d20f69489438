"""What the driver tells whoever watches a sweep: a terminal, a test, a notebook."""

from __future__ import annotations

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.results.states import RunState
from gasweep.scheduling.backend import Capacity, Failed


class Observer:
    """Every method does nothing; override what you want to see.

    Called on the driver's thread, after the journal holds what is told. Must return quickly. An exception
    from an observer ends the sweep as an error of the program's, with every run resumable.
    """

    def sweep_started(self, specs: list[RunSpec], *, states: dict[str, RunState], capacity: Capacity) -> None:
        """Every run of the sweep, with its layout for this cluster and its state so far."""

    def run_changed(self, spec: RunSpec, state: RunState, *, reason: str | None, attempt: int) -> None:
        """A run changed state; `attempt` is its latest attempt's number, 0 before the first."""

    def run_progress(self, spec: RunSpec, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        """New measurements of a running run."""

    def run_finished(self, spec: RunSpec, result: RunResult) -> None:
        """A result was recorded (after `run_changed`)."""

    def attempt_failed(self, spec: RunSpec, failed: Failed, *, retried: bool) -> None:
        """An attempt ended without a result; `retried`: another one will follow in this sweep."""

    def note(self, text: str) -> None:
        """One line worth knowing: what was adopted, a changed code revision, a lost node."""

    def idle(self) -> None:
        """Called several times a second, so that a display can refresh."""
