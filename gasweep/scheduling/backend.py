"""The backend contract: where attempts run. The driver asks, a backend leases workers and reports events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """num_workers: workers that can run at once, now. max_workers: what an autoscaling cluster can grow to
    (a run that needs more is infeasible). device: e.g. "cpu" or a card's name."""

    num_workers: int
    max_workers: int
    device: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try of one run. `number` counts from 1 within the run over the sweep's whole life."""

    spec: RunSpec
    number: int
    run_directory: Path  # runs/<id>/: logs, checkpoints, result.json


@dataclass(frozen=True, kw_only=True)
class Progress:
    run_id: str
    attempt: int
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvalRecord] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Finished:
    run_id: str
    attempt: int
    result: RunResult


@dataclass(frozen=True, kw_only=True)
class Failed:
    """cause: python_error | process_death | node_death | timeout | oom | user_error | interrupted.

    `retryable`: whether another attempt could end differently (a lost worker, not a user's bug).
    """

    run_id: str
    attempt: int
    cause: str
    message: str  # one line
    log_path: Path | None
    retryable: bool


Event = Progress | Finished | Failed


class Backend(ABC):
    """Runs attempts on leased workers. One thread calls it.

    For every started attempt exactly one `Finished` or `Failed` is reported by `poll`, after any number of
    `Progress`; the attempt's lease is free again when that event is returned. A backend never raises because
    an attempt failed. Leases are all or none: `start` is called only when `free_workers()` covers
    `spec.layout.world_size`.
    """

    @abstractmethod
    def capacity(self) -> Capacity:
        """What the cluster offers; may grow."""

    @abstractmethod
    def free_workers(self) -> int:
        """Workers not leased now."""

    @abstractmethod
    def infeasible_reason(self, spec: RunSpec) -> str | None:
        """Why this backend can never run `spec` (one line), or None."""

    @abstractmethod
    def start(self, attempt: Attempt) -> None:
        """Lease workers and begin; returns at once."""

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits at most `timeout_s` for the first."""

    @abstractmethod
    def stop(self, run_id: str) -> None:
        """Ask a running attempt to end soon; it reports `Failed(cause="interrupted")` or finishes."""

    @abstractmethod
    def close(self) -> None:
        """End all workers within seconds; attempts still running are killed. Safe to call twice."""
