"""Which process of a run this is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gasweep.errors import GasweepError
from gasweep.results.records import EvalRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """One rank. For world_size > 1 the default torch process group is already initialised by the caller
    (`gasweep.training.reuse.join_group`), with gloo for CPU tensors and, on GPUs, NCCL for CUDA tensors.

    device: "cpu" or "cuda:<local index>"; already made current by the caller.
    """

    rank: int = 0
    world_size: int = 1
    device: str = "cpu"


class Sink(Protocol):
    """Receives measurements on rank 0, in order, as they are made. Must not block."""

    def __call__(self, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None: ...


StopRequested = Callable[[], bool]


class Interrupted(GasweepError):
    """The run was asked to stop; it can be resumed from the checkpoint it has just written."""
