"""Typed records of what runs measured; the journal stores them, everything downstream reads them.

Absent is `None`, never NaN. A record's floats may not be non-finite: a diverged loss is told by the run's
state and reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gasweep.results.states import RunState


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step, as logged."""

    optimizer_step: int  # 1 after the first applied update
    contributions: int  # examples used so far, repeats counted
    loss: float | None  # training loss per item over the effective batch; None: not finite
    learning_rate: float
    grad_norm: float | None = None  # of the synced gradient, before clipping
    seconds: float | None = None  # wall time of this optimizer step, evaluation excluded
    examples_per_s: float | None = None
    tokens_per_s: float | None = None
    bytes_on_wire: int = 0  # gradient collectives of this step, all ranks' payload as one rank sees it
    bytes_saved: int = 0  # what syncing every micro-step would have added
    extra: dict[str, float] = field(default_factory=dict)  # e.g. noise-scale measurements


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """One evaluation; optimizer_step 0 is the initial model."""

    optimizer_step: int
    contributions: int
    metrics: dict[str, float]  # finite only; holds target.metric


@dataclass(frozen=True, kw_only=True)
class CommunicationRecord:
    """What one rank sent in one optimizer step through one kind of collective.

    group: "data" are the data-parallel ranks, "tensor" those that share a micro-batch. num_ranks: of one such
    group. control: counts, losses and norms rather than gradients, parameters or activations.
    """

    collective: str
    dtype: str
    group: str
    num_ranks: int
    control: bool
    calls: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Steady-state cost of one optimizer step, warm-up excluded."""

    num_timed_optimizer_steps: int
    seconds_per_optimizer_step: float  # median; the mean, which a run adds up, is below
    seconds_per_optimizer_step_low: float  # 5 % quantile
    seconds_per_optimizer_step_high: float  # 95 % quantile
    examples_per_s: float
    tokens_per_s: float | None
    bytes_per_optimizer_step: int
    bytes_per_optimizer_step_unsaved: int
    control_bytes_per_optimizer_step: int
    collectives_per_optimizer_step: dict[str, int] = field(default_factory=dict)  # model traffic, by name
    peak_memory_bytes: int | None = None
    seconds_per_optimizer_step_mean: float | None = None
    seconds_per_optimizer_step_mean_error: float | None = None  # its standard error
    # Mean seconds of data, compute, optimizer and exposed_communication; empty where not measured.
    seconds_split: dict[str, float] = field(default_factory=dict)
    communication: list[CommunicationRecord] = field(default_factory=list)  # empty in older records

    @property
    def mean_seconds(self) -> float:
        """Per optimizer step, as a run adds them up; the median of a record that has no mean."""
        mean = self.seconds_per_optimizer_step_mean
        return self.seconds_per_optimizer_step if mean is None else mean


def mean_error_blocks(num_steps: int) -> int:
    """Blocks of consecutive steps whose means give a `seconds_per_optimizer_step_mean_error`: what disturbs a
    step disturbs its neighbours too, so single steps are not independent. 0 below three blocks of two."""
    num_blocks = min(10, num_steps // 2)
    return num_blocks if num_blocks >= 3 else 0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where an attempt ran; recorded beside the run, no part of its identity."""

    hostname: str
    device: str  # e.g. "cpu" or the card's name
    num_threads: int
    versions: dict[str, str]
    code_revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended. `state` is reached, censored, diverged or pruned (or reached for a probe)."""

    run_id: str
    state: RunState
    reason: str | None  # why, for anything but reached
    optimizer_steps: int  # applied updates
    attempted_optimizer_steps: int  # applied + skipped (GradScaler overflow, no valid item)
    contributions: int
    distinct_examples: int
    evaluations: list[EvalRecord]
    parameter_sha256: str | None
    throughput: Throughput | None
    environment: Environment
    wall_s: float
    layout: dict[str, int]
    extra: dict[str, Any] = field(default_factory=dict)
