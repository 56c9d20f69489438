"""A fitted law S(B) known at sampled batch sizes, such as `fit` prints, as a function of B."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gasweep.analysis.estimate import Estimate

NUM_SAMPLES = 97
BEYOND = 4.0
"""How far the samples reach beyond the measured batch sizes, as a factor."""


def sample_law(steps_at: Callable[[float], Estimate], batch_sizes: Sequence[float]) -> list[dict[str, Any]]:
    """The fitted law as JSON: [{effective_batch_size, steps: estimate}] on a geometric grid, ascending.

    The grid holds every measured batch size, reaches `BEYOND` times further on both sides but not below 1,
    and is empty where nothing was fitted.
    """
    if not batch_sizes or steps_at(batch_sizes[0]).value is None:
        return []
    low = min(min(batch_sizes), max(min(batch_sizes) / BEYOND, 1.0))
    grid = np.geomspace(low, max(batch_sizes) * BEYOND, NUM_SAMPLES)[1:-1]
    ends = {float(low), float(max(batch_sizes) * BEYOND)}
    batches = sorted({*(float(f"{batch:.6g}") for batch in grid), *map(float, batch_sizes)} | ends)
    return [{"effective_batch_size": batch, "steps": steps_at(batch).to_dict()} for batch in batches]


class SampledLaw:
    """Optimizer steps to target against effective batch size, between the samples of a fitted law.

    samples: (effective batch size, steps with their 95 % interval), any order, at least one.

    Assumes: samples dense enough for straight lines in log-log: between neighbours a factor r apart the error
    of a hyperbola is below (log r)²/32, 0.05 % for r = 1.13. Nothing is extrapolated.
    """

    def __init__(self, samples: Sequence[tuple[float, Estimate]]) -> None:
        ordered = sorted(samples, key=lambda sample: sample[0])
        self._batches = [batch for batch, _ in ordered]
        self._steps = [steps for _, steps in ordered]

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest sampled batch size."""
        return self._batches[0], self._batches[-1]

    def steps(self, effective_batch_size: float) -> Estimate:
        """S(B) in optimizer steps; None with the reason outside the samples."""
        low, high = self.range
        if not low <= effective_batch_size <= high:
            reason = f"B = {effective_batch_size:g} is outside {low:g}..{high:g}, where the law was fitted"
            return Estimate(value=None, low=None, high=None, reason=reason)
        right = bisect.bisect_left(self._batches, effective_batch_size)
        if self._batches[right] == effective_batch_size:
            return self._steps[right]
        share = math.log(effective_batch_size / self._batches[right - 1]) / math.log(
            self._batches[right] / self._batches[right - 1]
        )
        return _blend(self._steps[right - 1], self._steps[right], share)

    def examples(self, effective_batch_size: float) -> Estimate:
        """E(B) = B·S(B), in contributions."""
        return scale(self.steps(effective_batch_size), effective_batch_size)


def scale(estimate: Estimate, factor: float) -> Estimate:
    """An estimate times an exact positive factor."""
    return Estimate(
        value=None if estimate.value is None else estimate.value * factor,
        low=None if estimate.low is None else estimate.low * factor,
        high=None if estimate.high is None else estimate.high * factor,
        reason=estimate.reason,
    )


def _blend(left: Estimate, right: Estimate, share: float) -> Estimate:
    return Estimate(
        value=_log_mean(left.value, right.value, share),
        low=_log_mean(left.low, right.low, share),
        high=_log_mean(left.high, right.high, share),
        reason=left.reason or right.reason,
    )


def _log_mean(left: float | None, right: float | None, share: float) -> float | None:
    if left is None or right is None or left <= 0 or right <= 0:
        return None
    return float(left * (right / left) ** share)
