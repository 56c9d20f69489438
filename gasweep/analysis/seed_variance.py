"""The spread of seeds: pooled over batch sizes, and what is left between batch sizes once it is known.

Shapes: n rows, g groups (batch sizes). Natural logs of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from gasweep.analysis.likelihood import Array, Rows, log_probability

MIN_SIGMA = 1e-4
"""Smallest seed standard deviation taken seriously: 0.01 % of the steps."""
GRID = np.linspace(-6.0, 6.0, 81)


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """log S of each batch size by itself: mean [g], variance [g] of its likelihood, and the log of its area.

    usable [g]: False where no finite mean exists (every seed censored, or only an upper bound).
    """

    mean: Array
    variance: Array
    log_area: Array
    usable: np.ndarray[tuple[int], np.dtype[np.bool_]]


def summarise_groups(rows: Rows, sigma: float) -> GroupSummary:
    """Each group's likelihood of log S under a flat prior, with the seed standard deviation `sigma` given.

    Its area over log S, as a function of sigma, is the restricted likelihood of sigma.
    """
    count = len(rows.log_batch)
    mean, variance, area = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count)
    usable = np.zeros(count, dtype=np.bool_)
    sd = np.sqrt(rows.scale * sigma**2 + rows.extra)
    for group in range(count):
        members = rows.group == group
        low, high = rows.low[members], rows.high[members]
        if rows.is_bound[members].any() or not np.isfinite(high).any():
            continue
        usable[group] = True
        mean[group], variance[group], area[group] = _moments(low, high, sd[members])
    return GroupSummary(mean=mean, variance=variance, log_area=area, usable=usable)


def _moments(low: Array, high: Array, sd: Array) -> tuple[float, float, float]:
    """Mean, variance and log area of one group's likelihood: closed form where exact, else on a grid."""
    if np.array_equal(low, high):
        weight = 1.0 / sd**2
        total = float(weight.sum())
        centre = float((weight * low).sum()) / total
        log_area = (
            -0.5 * float((weight * (low - centre) ** 2).sum())
            - float(np.log(sd).sum())
            - 0.5 * math.log(total)
            - 0.5 * (len(low) - 1) * math.log(2.0 * math.pi)
        )
        return centre, 1.0 / total, log_area
    ends = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
    grid = np.linspace(ends.min() - 5.0 * sd.max(), ends.max() + 5.0 * sd.max(), 121)
    log_density = log_probability(low, high, grid[:, None], sd).sum(axis=1)
    peak = float(log_density.max())
    density = np.exp(log_density - peak)
    total = float(density.sum())
    centre = float((grid * density).sum()) / total
    variance = float(((grid - centre) ** 2 * density).sum()) / total
    return centre, variance, peak + math.log(total * float(grid[1] - grid[0]))


@dataclass(frozen=True, kw_only=True)
class PureError:
    """Seed standard deviation from seeds of equal batch size alone. sigma None: no batch has two seeds."""

    sigma: float | None
    degrees_of_freedom: int


def pure_error(rows: Rows) -> PureError:
    """Restricted maximum likelihood, pooled over batch sizes.

    Assumes: the relative seed spread is the same at every batch size; `diagnostics` tests that.
    """
    informative = np.isfinite(rows.high) & ~rows.is_bound
    sizes = np.bincount(rows.group[informative], minlength=len(rows.log_batch))
    freedom = int(np.maximum(sizes - 1, 0).sum())
    if freedom == 0:
        return PureError(sigma=None, degrees_of_freedom=0)
    intervals = informative & ~rows.exact
    if intervals.any():
        floor = max(MIN_SIGMA, 0.1 * float(np.median(rows.spacing[intervals])))
        return PureError(sigma=_mean_sigma(rows, floor), degrees_of_freedom=freedom)

    def loss(log_sigma: float) -> float:
        return -float(summarise_groups(rows, math.exp(log_sigma)).log_area.sum())

    found = minimize_scalar(loss, bounds=(math.log(MIN_SIGMA), math.log(3.0)), method="bounded")
    return PureError(sigma=math.exp(float(found.x)), degrees_of_freedom=freedom)


def _mean_sigma(rows: Rows, floor: float) -> float:
    """Mean of log sigma over its restricted likelihood, above `floor`.

    Evaluation intervals wider than the seed spread leave that likelihood flat towards zero, where its maximum
    would make every interval's end a wall; the mean stays where the data still allow sigma to be.
    """
    log_sigma = np.linspace(math.log(floor), math.log(max(1.0, 3.0 * floor)), 28)
    log_area = np.array([summarise_groups(rows, math.exp(value)).log_area.sum() for value in log_sigma])
    weight = np.exp(log_area - log_area.max())
    return math.exp(float((weight * log_sigma).sum() / weight.sum()))


def between_variance(residual: Array, variance: Array, degrees_of_freedom: int) -> float:
    """tau**2 >= 0 that brings the weighted squares of `residual` down to their degrees of freedom.

    Source: Paule & Mandel 1982, the moment estimator of a between-group variance.
    """

    def excess(tau_squared: float) -> float:
        return float((residual**2 / (variance + MIN_SIGMA**2 + tau_squared)).sum()) - degrees_of_freedom

    if degrees_of_freedom <= 0 or excess(0.0) <= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, float((residual**2).sum()) / degrees_of_freedom + 1e-12))
