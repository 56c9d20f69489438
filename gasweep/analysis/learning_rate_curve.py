"""From the best learning rate tried to the best there is: how many steps a finer grid would have saved.

Steps at the best rate of a grid exceed those at the best rate there is by an amount that differs from batch
size to batch size, which the fit would take for a feature of S(B). The winner and its neighbours tell: under
each of several shapes of the curve (parabolas in log rate; the law of one curvature direction) the best
rate's place is averaged over, and the shapes are weighted by how well they fit all batch sizes together.

Shapes: s curve shapes, p places of the best rate, k rates of one batch size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from gasweep.analysis.likelihood import Array

CURVATURES = np.geomspace(0.03, 6.0, 121)
NUM_PLACES = 61
LARGEST_STABLE_RATIO = 1.95
DIVERGENCE_MARGIN = 1.25
"""A rate that diverges is taken to be at least this many times the best one."""
FLOOR_SD = 0.006
"""Standard deviation of a mean's departure from any smooth curve, in log steps."""


@dataclass(frozen=True, kw_only=True)
class RatePoint:
    """Mean log steps of `num_seeds` seeds at one log learning rate."""

    log_rate: float
    mean: float
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class RateNeighbourhood:
    """The winner and the usable rates next to it. limit: log rate that diverged above."""

    winner: RatePoint
    below: RatePoint | None
    above: RatePoint | None
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class RateShift:
    """log(steps at the best rate / measured steps of the winner), and what it adds to the error.

    Mostly negative: a finer grid would have saved steps. Positive where the winner was luckier than its
    neighbours allow, since the least of several noisy means is biased low.
    """

    log_shift: float
    log_sd: float


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """What one batch size says: chi_squared [s, p] of its points, shift [s, p] of the level from the winner.

    variance_beyond_winner: of the level given shape and place, less that of the winner's mean (negative: the
        neighbours help).
    """

    chi_squared: Array
    shift: Array
    num_points: int
    variance_beyond_winner: float


def rate_shifts(
    neighbourhoods: Mapping[float, RateNeighbourhood], *, seed_sd: float
) -> dict[float, RateShift]:
    """Per batch size, what the best rate would have saved.

    seed_sd: standard deviation of log steps between seeds.
    Assumes: one shape of the curve for all batch sizes, its place free in each; where no shape fits as well
        as the seeds' noise says it should, all are believed less in proportion.
    """
    if not neighbourhoods:
        return {}
    readings = {batch: _read(around, seed_sd) for batch, around in neighbourhoods.items()}
    temper = _temper(list(readings.values()))
    evidence = np.array([
        logsumexp(-0.5 * reading.chi_squared / temper, axis=1) for reading in readings.values()
    ])  # fmt: skip
    log_weight = _log_prior() + evidence.sum(axis=0)
    weight = np.exp(log_weight - logsumexp(log_weight))
    return {batch: _shift(reading, weight, temper) for batch, reading in readings.items()}


def _log_excesses(x: Array) -> Array:
    """[s, ...] log(steps / steps at the best rate) at `x` = log(rate / best rate), for each shape."""
    parabolas = CURVATURES.reshape(-1, *(1,) * x.ndim) * x**2
    return np.concatenate([parabolas, _one_curvature(x)[None]])


def _one_curvature(x: Array) -> Array:
    """Along one direction of curvature h, a step gains rate * (2 - rate * h): S ~ 1 / (r (2 - r)).

    Source: McCandlish et al. 2018, eq. 2.7 with the rate off its optimum.
    """
    ratio = np.exp(np.minimum(x, math.log(LARGEST_STABLE_RATIO)))
    beyond = np.maximum(x - math.log(LARGEST_STABLE_RATIO), 0.0)
    return np.asarray(-np.log(ratio * (2.0 - ratio)) + 20.0 * beyond)


def _log_prior() -> Array:
    """Half for the parabolas together, half for the one-curvature law."""
    count = len(CURVATURES)
    return np.asarray(np.log(np.concatenate([np.full(count, 0.5 / count), [0.5]])))


def _read(around: RateNeighbourhood, seed_sd: float) -> _Reading:
    points = [point for point in (around.below, around.winner, around.above) if point is not None]
    x = np.array([point.log_rate for point in points])
    y = np.array([point.mean for point in points])
    weight = 1.0 / np.array([seed_sd**2 / point.num_seeds + FLOOR_SD**2 for point in points])
    place = np.linspace(*_reach(around), NUM_PLACES)
    rest = y - _log_excesses(x - place[:, None])
    level = (weight * rest).sum(axis=2) / weight.sum()
    chi_squared = (weight * (rest - level[:, :, None]) ** 2).sum(axis=2)
    return _Reading(
        chi_squared=chi_squared,
        shift=level - around.winner.mean,
        num_points=len(points),
        variance_beyond_winner=1.0 / float(weight.sum()) - seed_sd**2 / around.winner.num_seeds,
    )


def _reach(around: RateNeighbourhood) -> tuple[float, float]:
    """Where the best rate may lie: no further from the winner than its neighbours, tried or diverged."""
    here = around.winner.log_rate
    low = around.below.log_rate if around.below else here
    if around.above is not None:
        return low, around.above.log_rate
    return low, here if around.limit is None else max(here, around.limit - math.log(DIVERGENCE_MARGIN))


def _temper(readings: list[_Reading]) -> float:
    """Chi-squared per degree of freedom of the best shape, at least 1 (the Birge ratio, squared)."""
    freedom = sum(reading.num_points - 2 for reading in readings) - 1
    if freedom < 1:
        return 1.0
    least = float(sum(reading.chi_squared.min(axis=1) for reading in readings).min())
    return max(1.0, least / freedom)


def _shift(reading: _Reading, weight: Array, temper: float) -> RateShift:
    """Mean of the shift over places and shapes, and what its error adds to that of the winner's mean."""
    log_density = -0.5 * reading.chi_squared / temper
    density = np.exp(log_density - logsumexp(log_density, axis=1)[:, None])
    mean = float(weight @ (density * reading.shift).sum(axis=1))
    square = float(weight @ (density * reading.shift**2).sum(axis=1))
    variance = square - mean**2 + reading.variance_beyond_winner
    return RateShift(log_shift=mean, log_sd=math.sqrt(max(variance, 0.0)))
