"""The backend contract: where attempts run. The driver asks, a backend leases workers and reports events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, RunResult, StepRecord


class Cause(StrEnum):
    """Why an attempt failed."""

    PYTHON_ERROR = "python_error"
    PROCESS_DEATH = "process_death"
    NODE_DEATH = "node_death"
    TIMEOUT = "timeout"  # no progress in cluster.attempt_timeout_s
    OOM = "oom"
    DEVICE_ERROR = "device_error"  # CUDA or NCCL: the process's device context is not to be trusted
    COMMUNICATION = "communication"  # a collective failed although every process lives
    USER_ERROR = "user_error"  # an error of gasweep's that the user can mend, such as a refused promise
    INTERRUPTED = "interrupted"  # stopped on request


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
    """An attempt that ended without a result.

    retryable: whether another attempt could end differently (a lost worker, not a user's bug).
    trace: the traceback where Python had one. log_path: what the attempt wrote, on the worker's node.
    """

    run_id: str
    attempt: int
    cause: Cause
    message: str  # one line
    log_path: Path | None
    retryable: bool
    trace: str | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """One line about the cluster itself: workers starting, a lost node, a folder that is not shared."""

    text: str


Event = Progress | Finished | Failed | Note


class Backend(ABC):
    """Runs attempts on leased workers. One thread calls it.

    For every started attempt exactly one `Finished` or `Failed` is reported by `poll`, after any number of
    `Progress`; the attempt's lease is over when that event is returned (workers that were killed come back to
    `free_workers()` once they are replaced). A backend never raises because an attempt failed. Leases are all
    or none: `start` is called only when `free_workers()` covers `spec.layout.world_size`.
    """

    isolated_workers: bool
    """Whether attempts side by side leave each other's speed alone (a device each) or share a machine's
    cores, memory bandwidth and turbo, so that a timed probe must run alone."""

    @abstractmethod
    def capacity(self) -> Capacity:
        """What the cluster offers; may grow."""

    @abstractmethod
    def free_workers(self) -> int:
        """Workers ready to be leased now."""

    def want(self, num_workers: int) -> None:  # noqa: B027  (a backend of fixed size has nothing to do)
        """The runs that wait could use `num_workers` workers in all; a backend that can grow may begin to."""

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
