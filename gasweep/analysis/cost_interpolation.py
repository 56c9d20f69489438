"""Seconds per optimizer step at accumulation steps that were not measured, between those that were."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable

from gasweep.analysis.cost import GridPoint, StepTime
from gasweep.analysis.estimate import Estimate

Family = tuple[int, int]
"""(micro_batch_size, world_size): points of one family differ in G alone."""


class StepTimeTable:
    """Measured seconds per optimizer step, looked up by (b, N, G) and interpolated in G.

    Assumes: at fixed (b, N) the seconds are linear in G between two measured G (each pass costs the same, the
    sync and the update once). Nothing is extrapolated: outside the measured G the answer is None.
    """

    def __init__(self, measured: Iterable[tuple[GridPoint, StepTime]]) -> None:
        self._families: dict[Family, dict[int, StepTime]] = {}
        for point, step_time in measured:
            family = self._families.setdefault((point.micro_batch_size, point.world_size), {})
            family[point.accumulation_steps] = step_time

    @property
    def families(self) -> list[Family]:
        return sorted(self._families)

    def at(self, point: GridPoint) -> StepTime | None:
        """The measured value, or the one between its measured neighbours, or None."""
        family = (point.micro_batch_size, point.world_size)
        return self.between(family, accumulation_steps=float(point.accumulation_steps))

    def between(self, family: Family, *, accumulation_steps: float) -> StepTime | None:
        """Like `at`, for a G that need not be whole (an average over incomplete groups)."""
        known = self._families.get(family, {})
        if accumulation_steps in known:
            return known[int(accumulation_steps)]
        ordered = sorted(known)
        above = bisect.bisect(ordered, accumulation_steps)
        if above in (0, len(ordered)):
            return None
        low, high = ordered[above - 1], ordered[above]
        share = (accumulation_steps - low) / (high - low)
        return _mix(known[low].seconds, known[high].seconds, share)


def _mix(left: Estimate, right: Estimate, share: float) -> StepTime | None:
    value = _between(left.value, right.value, share)
    if value is None or not math.isfinite(value):
        return None
    low, high = _between(left.low, right.low, share), _between(left.high, right.high, share)
    return StepTime(seconds=Estimate(value=value, low=low, high=high), source="interpolated")


def _between(left: float | None, right: float | None, share: float) -> float | None:
    return None if left is None or right is None else left + share * (right - left)
