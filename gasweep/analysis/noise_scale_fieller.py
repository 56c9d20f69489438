"""The 95 % set for a ratio of two means measured together over the steps of a window.

What is covered is the window's *true* ratio of means: Σ E[x_t] / Σ E[y_t], whatever the drift of E[x_t] and
E[y_t] as training goes on. Given the parameters of a step, its groups are fresh draws, so the errors
x_t − E[x_t] are uncorrelated over steps however strongly x_t itself is. The variance of the means is taken
from differences of neighbouring blocks' means: slow drift cancels in them, and noise that is correlated over
a few steps stays within its block. Variances about the overall mean would count the drift as noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from gasweep.analysis.noise_scale_checks import require_share, require_whole
from gasweep.errors import MeasurementError

NUM_BLOCKS = 16
MIN_BLOCKS = 4

FiellerShape = Literal["interval", "at_least", "negative", "anything"]


@dataclass(frozen=True, kw_only=True)
class FiellerSet:
    """Which ratios ≥ 0 the data allow.

    interval: [low, high]; the denominator is resolved from 0, on the positive side.
    at_least: [low, ∞).
    negative: the denominator is resolved on the wrong side of 0: no ratio ≥ 0 fits.
    anything: [0, ∞).
    """

    shape: FiellerShape
    low: float | None = None
    high: float | None = None


def fieller_set(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    confidence: float = 0.95,
    num_blocks: int = NUM_BLOCKS,
) -> FiellerSet:
    """The set of ρ with (x̄ − ρ ȳ)² ≤ t² Var(x̄ − ρ ȳ), cut to ρ ≥ 0.

    numerator, denominator: x_t and y_t, shape [num_steps ≥ MIN_BLOCKS] each, in order.
    num_blocks: consecutive steps are averaged into at most this many blocks; 16 held its coverage over drift,
        skew and window lengths where 8 was wider and one block per step too narrow (docs/noise-scale.md).

    Raises MeasurementError for sequences that differ in length, are shorter than MIN_BLOCKS or hold anything
    not finite, for confidence outside (0, 1) and for fewer than MIN_BLOCKS blocks.

    Source: Fieller 1954, J. R. Stat. Soc. B 16(2); von Neumann 1941 for the variance from differences, whose
        degrees of freedom are about 2/3 of the blocks.
    Assumes: block means near normal.
    """
    require_share("confidence", confidence, up_to_one=False)
    require_whole("num_blocks", num_blocks, at_least=MIN_BLOCKS)
    values = _checked(numerator, denominator)
    # Ratios do not depend on the units, but squares of very large or small values would not be representable.
    units = np.maximum(np.abs(values).max(axis=1), np.finfo(float).tiny)
    blocks, lengths = _block_means(values / units[:, None], num_blocks)
    count = len(lengths)
    share = lengths / lengths.sum()
    x, y = (float(mean) for mean in blocks @ share)
    steps = np.diff(blocks, axis=1)
    covariance = steps @ steps.T / (2.0 * (count - 1)) * float((share**2).sum())
    t_squared = float(stats.t.ppf(0.5 + confidence / 2.0, df=(count - 1) * 2.0 / 3.0)) ** 2
    found = _solve(
        a=y * y - t_squared * float(covariance[1, 1]),
        b=x * y - t_squared * float(covariance[0, 1]),
        c=x * x - t_squared * float(covariance[0, 0]),
        denominator=y,
    )
    return _in_units(found, float(units[0]), float(units[1]))


def _checked(
    numerator: Sequence[float], denominator: Sequence[float]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    if len(numerator) != len(denominator) or len(numerator) < MIN_BLOCKS:
        raise MeasurementError(
            f"numerator and denominator must hold one number per step, {MIN_BLOCKS} steps or more, not "
            f"{len(numerator)} and {len(denominator)}"
        )
    values = np.array([numerator, denominator], dtype=float)
    if not np.isfinite(values).all():
        step = int(np.argmin(np.isfinite(values).all(axis=0)))
        raise MeasurementError(
            f"numerator={numerator[step]!r}, denominator={denominator[step]!r} at step {step} must be "
            "finite; leave such a step out"
        )
    return values


def _in_units(found: FiellerSet, numerator: float, denominator: float) -> FiellerSet:
    """The set of ratios of values that were divided by these; a bound too large for a float is none."""
    low, high = (
        None if bound is None else bound / denominator * numerator for bound in (found.low, found.high)
    )
    if low is not None and not math.isfinite(low):
        return FiellerSet(shape="anything")
    if found.shape == "interval" and high is not None and not math.isfinite(high):
        return FiellerSet(shape="at_least", low=low)
    return FiellerSet(shape=found.shape, low=low, high=high)


def _solve(*, a: float, b: float, c: float, denominator: float) -> FiellerSet:
    """Where a ρ² − 2 b ρ + c ≤ 0 with ρ ≥ 0; a > 0 says that the denominator is resolved from 0."""
    root = math.sqrt(max(b * b - a * c, 0.0))
    if a > 0.0:
        if denominator < 0.0:
            return FiellerSet(shape="negative")
        return FiellerSet(shape="interval", low=max((b - root) / a, 0.0), high=max((b + root) / a, 0.0))
    if c <= 0.0 or b + root <= 0.0:
        return FiellerSet(shape="anything")
    return FiellerSet(shape="at_least", low=c / (b + root))


def _block_means(
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]], num_blocks: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Means of consecutive steps [2, blocks], and how many steps each block holds [blocks]."""
    num_steps = values.shape[1]
    edges = np.round(np.linspace(0, num_steps, min(num_blocks, num_steps) + 1)).astype(int)
    lengths = np.diff(edges).astype(float)
    return np.add.reduceat(values, edges[:-1], axis=1) / lengths, lengths
