"""The spread of seeds: pooled over batch sizes, and what is left between batch sizes once it is known.

Shapes: n rows, g groups (batch sizes), m candidate standard deviations. Natural logs of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from gasweep.analysis.likelihood import Array, Rows, log_probability

MIN_SIGMA = 1e-4
"""Smallest seed standard deviation taken seriously: 0.01 % of the steps."""
GRID_SIZE = 81


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """log S of each batch size by itself: mean [g] and variance [g] of its likelihood.

    usable [g]: False where every seed is bounded from one side only; mean and variance are then meaningless.
    """

    mean: Array
    variance: Array
    usable: NDArray[np.bool_]


def summarise_groups(rows: Rows, sigma: float) -> GroupSummary:
    """Each group's likelihood of log S under a flat prior, at the seed standard deviation `sigma`."""
    usable = _usable(rows)
    mean, variance = np.zeros(len(usable)), np.ones(len(usable))
    for group in np.flatnonzero(usable):
        centre, spread, _ = _moments(rows, int(group), np.array([sigma]))
        mean[group], variance[group] = centre[0], spread[0]
    return GroupSummary(mean=mean, variance=variance, usable=usable)


def restricted_likelihood(rows: Rows, sigma: Array) -> Array:
    """[m] log restricted likelihood of each `sigma`: every group's log S is integrated out."""
    total = np.zeros(len(sigma))
    for group in np.flatnonzero(_usable(rows)):
        total += _moments(rows, int(group), sigma)[2]
    return total


def _usable(rows: Rows) -> NDArray[np.bool_]:
    return np.bincount(rows.group[rows.two_sided], minlength=len(rows.log_batch)) > 0


def _moments(rows: Rows, group: int, sigma: Array) -> tuple[Array, Array, Array]:
    """[m] mean, variance and log area of one group's likelihood: closed form where exact, else on a grid."""
    members = rows.group == group
    low, high = rows.low[members], rows.high[members]
    sd = np.sqrt(rows.scale[members] * sigma[:, None] ** 2 + rows.extra[members])
    if np.array_equal(low, high):
        weight = 1.0 / sd**2
        total = weight.sum(axis=1)
        centre = (weight * low).sum(axis=1) / total
        squares = (weight * (low - centre[:, None]) ** 2).sum(axis=1)
        constant = 0.5 * (len(low) - 1) * math.log(2.0 * math.pi)
        return centre, 1.0 / total, -0.5 * squares - np.log(sd).sum(axis=1) - 0.5 * np.log(total) - constant
    ends = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
    reach = 5.0 * sd.max(axis=1)
    grid = np.linspace(ends.min() - reach, ends.max() + reach, GRID_SIZE, axis=1)
    log_density = log_probability(low, high, grid[:, :, None], sd[:, None, :]).sum(axis=2)
    peak = log_density.max(axis=1)
    density = np.exp(log_density - peak[:, None])
    total = density.sum(axis=1)
    centre = (grid * density).sum(axis=1) / total
    variance = ((grid - centre[:, None]) ** 2 * density).sum(axis=1) / total
    return centre, variance, peak + np.log(total * (grid[:, 1] - grid[:, 0]))


@dataclass(frozen=True, kw_only=True)
class PureError:
    """Seed standard deviation from seeds of equal batch size alone. sigma None: no batch has two seeds.

    log_sigma_sd: how uncertain log sigma is beyond what `degrees_of_freedom` says; 0 where seeds are exact.
    """

    sigma: float | None
    degrees_of_freedom: int
    log_sigma_sd: float = 0.0


def pure_error(rows: Rows) -> PureError:
    """Restricted maximum likelihood, pooled over batch sizes.

    Assumes: the relative seed spread is the same at every batch size.
    """
    sizes = np.bincount(rows.group[rows.two_sided], minlength=len(rows.log_batch))
    freedom = int(np.maximum(sizes - 1, 0).sum())
    if freedom == 0:
        return PureError(sigma=None, degrees_of_freedom=0)
    intervals = rows.two_sided & ~rows.exact
    if intervals.any():
        floor = max(MIN_SIGMA, 0.1 * float(np.median(rows.spacing[intervals])))
        log_sigma, log_sigma_sd = _log_sigma(rows, floor)
        return PureError(sigma=math.exp(log_sigma), degrees_of_freedom=freedom, log_sigma_sd=log_sigma_sd)
    inside = rows.select(_usable(rows)[rows.group])
    if inside.exact.all() and not inside.extra.any():
        return PureError(sigma=_pooled(inside, freedom), degrees_of_freedom=freedom)

    def loss(log_sigma: float) -> float:
        return -float(restricted_likelihood(rows, np.array([math.exp(log_sigma)]))[0])

    found = minimize_scalar(loss, bounds=(math.log(MIN_SIGMA), math.log(3.0)), method="bounded")
    return PureError(sigma=math.exp(float(found.x)), degrees_of_freedom=freedom)


def _pooled(rows: Rows, freedom: int) -> float:
    """What restricted maximum likelihood comes to where all rows are exact."""
    weight = 1.0 / rows.scale
    mean = np.bincount(rows.group, weights=weight * rows.low) / np.bincount(rows.group, weights=weight)
    squares = float((weight * (rows.low - mean[rows.group]) ** 2).sum())
    return max(math.sqrt(squares / freedom), MIN_SIGMA)


def _log_sigma(rows: Rows, floor: float) -> tuple[float, float]:
    """Mean and standard deviation of log sigma over its restricted likelihood, above `floor`.

    Evaluation intervals wider than the seed spread leave that likelihood flat towards zero, where its maximum
    would make every interval's end a wall; the mean stays where the data still allow sigma to be.
    """
    log_sigma = np.linspace(math.log(floor), math.log(max(1.0, 3.0 * floor)), 28)
    log_area = restricted_likelihood(rows, np.exp(log_sigma))
    weight = np.exp(log_area - log_area.max())
    weight /= weight.sum()
    mean = float((weight * log_sigma).sum())
    return mean, math.sqrt(float((weight * (log_sigma - mean) ** 2).sum()))


def refitted_between_variance(
    residual_at: Callable[[float], Array], variance: Array, degrees_of_freedom: int
) -> float:
    """`between_variance` of a law that is refitted under the weights it implies.

    residual_at: residuals of the law fitted with that much variance between batch sizes.
    """
    tau_squared = 0.0
    for _ in range(5):
        tau_squared = between_variance(residual_at(tau_squared), variance, degrees_of_freedom)
    return tau_squared


def between_variance(residual: Array, variance: Array, degrees_of_freedom: int) -> float:
    """tau**2 >= 0 that brings the weighted squares of `residual` down to their degrees of freedom.

    Source: Paule & Mandel 1982, the moment estimator of a between-group variance.
    """

    def excess(tau_squared: float) -> float:
        return float((residual**2 / (variance + MIN_SIGMA**2 + tau_squared)).sum()) - degrees_of_freedom

    if degrees_of_freedom <= 0 or excess(0.0) <= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, float((residual**2).sum()) / degrees_of_freedom + 1e-12))
