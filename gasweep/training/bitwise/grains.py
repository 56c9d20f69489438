"""Cutting an effective batch into grains: the unit whose forward and backward never changes shape."""

from __future__ import annotations

from dataclasses import dataclass

from gasweep.batching.arithmetic import require_positive_int
from gasweep.batching.partition import StepPartition
from gasweep.errors import RefusedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Grain:
    """Positions start..stop-1 of one effective batch, with `index` = start / grain size.

    All grains hold equally many examples but the last of an effective batch, which ends where B ends: its
    size depends on B and the grain size alone, so it is the same whatever the layout.
    """

    index: int
    start: int
    stop: int


def num_grains(effective_batch_size: int, *, grain: int) -> int:
    """K, the grains of one optimizer step over all ranks: ceil(B / grain)."""
    return -(-effective_batch_size // grain)


def cut(start: int, stop: int, *, grain: int) -> list[Grain]:
    """The grains of the group at positions start..stop-1; empty for an empty group.

    Raises RefusedError when the group does not start on a grain boundary.
    """
    if start < stop and start % grain != 0:
        raise RefusedError(
            f"determinism=bitwise: a group starts at position {start}, which is not a multiple of "
            f"grain={grain}; partition the step with unit={grain}"
        )
    return [
        Grain(index=first // grain, start=first, stop=min(first + grain, stop))
        for first in range(start, stop, grain)
    ]


def most_grains(partition: StepPartition, *, micro_step: int, grain: int) -> int:
    """Grains of the rank that has most of them in `micro_step`: how often a sharded model must run there."""
    return max(-(-(bounds[micro_step][1] - bounds[micro_step][0]) // grain) for bounds in partition.bounds)


def check_grain(*, grain: object, micro_batch_size: int) -> None:
    """Raises RefusedError unless the micro-batch is a whole number of grains."""
    size = require_positive_int(grain, field="grain", error=RefusedError)
    if micro_batch_size % size != 0:
        below, above = micro_batch_size // size * size, (micro_batch_size // size + 1) * size
        nearest = f"{below} or {above}" if below else f"{above}"
        raise RefusedError(
            f"determinism=bitwise: micro_batch_size={micro_batch_size} is not a multiple of grain={size}, so "
            f"its groups would run in shapes that other layouts lack; use micro_batch_size={nearest}, or "
            f"another grain"
        )
