"""How the B contributions of one optimizer step fall on ranks and micro-steps."""

from __future__ import annotations

from dataclasses import dataclass

from gasweep.batching.arithmetic import require_positive_int
from gasweep.errors import BatchError


@dataclass(frozen=True, kw_only=True)
class StepPartition:
    """The positions 0..B-1 of one optimizer step, split over ranks and then over micro-steps.

    `bounds[rank][micro_step]` is the half-open range of positions that rank runs in that micro-step; the
    ranges are contiguous, disjoint and cover 0..B-1, and every rank has the same number of micro-steps (a
    rank that runs out holds empty ranges and still joins the last backward).
    """

    effective_batch_size: int
    micro_batch_size: int
    world_size: int
    bounds: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def accumulation_steps(self) -> int:
        return len(self.bounds[0])

    def counts(self, rank: int) -> list[int]:
        """Contributions of each micro-step on `rank`."""
        return [stop - start for start, stop in self.bounds[rank]]

    def rank_count(self, rank: int) -> int:
        """Contributions of `rank` in one optimizer step."""
        return sum(self.counts(rank))

    def group_counts(self) -> list[int]:
        """Sizes of all non-empty groups, rank by rank."""
        return [n for rank in range(self.world_size) for n in self.counts(rank) if n > 0]


def partition_step(
    *, effective_batch_size: int, micro_batch_size: int, world_size: int, unit: int = 1
) -> StepPartition:
    """Split B positions over `world_size` ranks, then into micro-batches of at most `micro_batch_size`.

    Ranks get equal shares, the first ones one `unit` more when B does not divide; within a rank every group
    holds `micro_batch_size` but the last. 20 positions on two ranks with b=4 give 4, 4, 2 on each.

    `unit`: shares and group boundaries fall on multiples of it (the grain of bitwise mode), except at B.
    Raises BatchError when B < N, or when `unit` does not divide `micro_batch_size`.
    """
    total = require_positive_int(effective_batch_size, field="effective_batch_size")
    b = require_positive_int(micro_batch_size, field="micro_batch_size")
    n = require_positive_int(world_size, field="world_size")
    u = require_positive_int(unit, field="grain")
    if total < n:
        raise BatchError(
            f"effective_batch_size={total} is smaller than world_size={n}: every rank needs at least one "
            f"example per optimizer step; use world_size <= {total}"
        )
    if b % u != 0:
        raise BatchError(f"micro_batch_size={b} is not a multiple of grain={u}; use one that is")
    num_units = (total + u - 1) // u
    share, extra = divmod(num_units, n)
    starts = [min((rank * share + min(rank, extra)) * u, total) for rank in range(n + 1)]
    num_micro_steps = max((starts[r + 1] - starts[r] + b - 1) // b for r in range(n))
    bounds = tuple(
        tuple(
            (min(starts[r] + i * b, starts[r + 1]), min(starts[r] + (i + 1) * b, starts[r + 1]))
            for i in range(num_micro_steps)
        )
        for r in range(n)
    )
    return StepPartition(effective_batch_size=total, micro_batch_size=b, world_size=n, bounds=bounds)
