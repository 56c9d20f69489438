"""The tracker contract. Trackers live in the driver, are fed from the journal, and may not hurt a sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord


class Tracker(ABC):
    """Receives what the journal already holds. One thread calls it. No method raises: a tracker that breaks
    warns once (through `warnings.warn`), drops what it was given and stays silent from then on.

    Records of one run arrive with increasing optimizer_step; records at or below a step already given
    (a retried attempt that recomputed them) are ignored by the tracker. `start_run` of a run already open
    does nothing; a call for a run never started is ignored.
    """

    @abstractmethod
    def start_run(self, spec: RunSpec) -> None:
        """Open the run's record: config, group = the sweep, job type = its kind."""

    @abstractmethod
    def log(self, run_id: str, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        """Add measurements."""

    @abstractmethod
    def finish_run(self, run_id: str, result: RunResult | None, *, state: str) -> None:
        """Close the run with its summary; `result` is None for a failed or interrupted run."""

    @abstractmethod
    def summarize(self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]) -> None:
        """The sweep's own record: estimates, the table of runs, plots. Called once, at the end."""

    @abstractmethod
    def close(self) -> None:
        """Close whatever is open. Safe to call twice."""


class NoTracker(Tracker):
    """Tracks nothing."""

    def start_run(self, spec: RunSpec) -> None:
        pass

    def log(self, run_id: str, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        pass

    def finish_run(self, run_id: str, result: RunResult | None, *, state: str) -> None:
        pass

    def summarize(self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]) -> None:
        pass

    def close(self) -> None:
        pass
