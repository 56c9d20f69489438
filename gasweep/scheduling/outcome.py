"""How one rank's part of an attempt ended: plain data that crosses processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.scheduling.backend import Cause


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """cause: None when the rank finished.

    result: rank 0's, of a finished run. message: one line. reusable: whether the process may serve another
    attempt. steps, evaluations: measurements (rank 0's) that were not polled yet.
    """

    cause: Cause | None = None
    result: RunResult | None = None
    message: str = ""
    trace: str | None = None
    reusable: bool = True
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvalRecord] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What rank 0 measured since the last call; `moved`: whether it has shown any sign of life since then."""

    steps: list[StepRecord]
    evaluations: list[EvalRecord]
    moved: bool


RETRYABLE = frozenset({Cause.PROCESS_DEATH, Cause.NODE_DEATH, Cause.TIMEOUT, Cause.COMMUNICATION})
"""Causes after which another attempt could end differently whatever the workers' history."""

SUSPECT = frozenset({Cause.OOM, Cause.DEVICE_ERROR})
"""Causes that a worker's earlier runs may have brought about: retried if any of the gang was used before."""

# When ranks fail for different causes, the first of these is the root: the others are its echo.
_ROOTS = (
    Cause.NODE_DEATH,
    Cause.PROCESS_DEATH,
    Cause.OOM,
    Cause.DEVICE_ERROR,
    Cause.USER_ERROR,
    Cause.PYTHON_ERROR,
    Cause.TIMEOUT,
    Cause.INTERRUPTED,
    Cause.COMMUNICATION,
)


def root_failure(outcomes: Iterable[tuple[int, Outcome]]) -> tuple[int, Outcome]:
    """The (rank, outcome) that explains why an attempt failed; outcomes are given in the order they ended.

    A lost process outranks what its peers say of the broken connection; an exception in user code, or a stop
    that reached one rank before the others, outranks the timeout or connection error it caused there.
    """
    failed = [(rank, outcome) for rank, outcome in outcomes if outcome.cause is not None]
    return min(failed, key=lambda item: _ROOTS.index(item[1].cause or Cause.INTERRUPTED))


def is_retryable(cause: Cause, *, used_workers: bool) -> bool:
    """Whether another attempt could end differently."""
    return cause in RETRYABLE or (cause in SUSPECT and used_workers)
