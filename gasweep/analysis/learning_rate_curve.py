"""From the best learning rate tried to the best there is: a parabola in log rate around the winner.

Steps at the best rate of a grid exceed those at the best rate by up to curvature * (half a grid step)**2, a
different excess at every batch size. One curvature is shared by the batch sizes as far as they agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gasweep.analysis.seed_variance import between_variance

MODEL_SHARE = 0.3
"""Standard deviation of the shift because curves are not parabolas, as a share of the shift."""


@dataclass(frozen=True, kw_only=True)
class RatePoint:
    """Mean log steps of `num_seeds` seeds at one log learning rate."""

    log_rate: float
    mean: float
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class RateNeighbourhood:
    """The winner and the usable rates next to it; limit: log rate that diverged above."""

    winner: RatePoint
    below: RatePoint | None
    above: RatePoint | None
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class RateShift:
    """log(steps at the best rate / steps at the winner), its standard deviation, and the best log rate."""

    log_shift: float
    log_sd: float
    log_rate: float


@dataclass(frozen=True, kw_only=True)
class Curvature:
    value: float
    variance: float


def rate_shifts(
    neighbourhoods: Mapping[float, RateNeighbourhood], *, seed_sd: float
) -> dict[float, RateShift]:
    """Per batch size, what the best rate would have saved; absent where the curvature cannot be told from 0.

    seed_sd: standard deviation of log steps between seeds.
    Assumes: curves close to a parabola in log rate within a grid step of their minimum; `MODEL_SHARE` of the
        shift is added to its error for that.
    """
    curvatures = _shared_curvatures(neighbourhoods, seed_sd)
    shifts = {}
    for batch, around in neighbourhoods.items():
        curvature = curvatures.get(batch)
        if curvature is not None and curvature.value > 2.0 * math.sqrt(curvature.variance):
            shifts[batch] = _shift(around, curvature, seed_sd)
    return shifts


def _shared_curvatures(
    neighbourhoods: Mapping[float, RateNeighbourhood], seed_sd: float
) -> dict[float, Curvature]:
    """Each batch size's curvature, drawn towards the common one by as much as the batch sizes agree.

    Source: the random-effects mean and shrinkage of DerSimonian & Laird 1986, with the Paule-Mandel variance.
    """
    own = {
        batch: _curvature(around.below, around.winner, around.above, seed_sd)
        for batch, around in neighbourhoods.items()
        if around.below is not None and around.above is not None
    }
    if not own:
        return {}
    values = np.array([item.value for item in own.values()])
    variances = np.array([item.variance for item in own.values()]) + 1e-12
    mean = float((values / variances).sum() / (1.0 / variances).sum())
    spread = between_variance(values - mean, variances, len(values) - 1)
    weight = 1.0 / (variances + spread)
    mean, mean_variance = float((values * weight).sum() / weight.sum()), float(1.0 / weight.sum())
    result = {}
    for batch in neighbourhoods:
        if batch not in own:
            result[batch] = Curvature(value=mean, variance=mean_variance + spread)
            continue
        share = spread / (spread + own[batch].variance + 1e-12)
        value = share * own[batch].value + (1.0 - share) * mean
        result[batch] = Curvature(
            value=value, variance=share * own[batch].variance + (1.0 - share) ** 2 * mean_variance
        )
    return result


def _curvature(below: RatePoint, winner: RatePoint, above: RatePoint, seed_sd: float) -> Curvature:
    """Second divided difference of the three means: y = ... + value * log_rate**2."""
    points = (below, winner, above)
    x = [point.log_rate for point in points]
    weights = [
        1.0 / ((x[0] - x[1]) * (x[0] - x[2])),
        1.0 / ((x[1] - x[0]) * (x[1] - x[2])),
        1.0 / ((x[2] - x[0]) * (x[2] - x[1])),
    ]
    value = sum(w * point.mean for w, point in zip(weights, points, strict=True))
    variance = sum(w**2 * seed_sd**2 / point.num_seeds for w, point in zip(weights, points, strict=True))
    return Curvature(value=value, variance=variance)


def _shift(around: RateNeighbourhood, curvature: Curvature, seed_sd: float) -> RateShift:
    """From the slope at the winner: winner - slope**2 / (4 curvature), freed of its noise's bias."""
    winner, c = around.winner, curvature.value
    points = [point for point in (around.below, winner, around.above) if point is not None]
    x = np.array([point.log_rate - winner.log_rate for point in points])
    y = np.array([point.mean for point in points]) - c * x**2
    weight = np.array([float(point.num_seeds) for point in points])
    centre = float((weight * x).sum() / weight.sum())
    square = float((weight * (x - centre) ** 2).sum())
    slope = float((weight * (x - centre) * y).sum()) / square
    slope_variance = seed_sd**2 / square
    best = float(np.clip(-slope / (2.0 * c), *_reach(around)))
    shift = -c * best**2 + slope_variance / (4.0 * c)
    variance = (
        best**2 * slope_variance
        + slope_variance**2 / (8.0 * c**2)
        + best**4 * curvature.variance
        + (MODEL_SHARE * c * best**2) ** 2
    )
    return RateShift(log_shift=shift, log_sd=math.sqrt(variance), log_rate=winner.log_rate + best)


def _reach(around: RateNeighbourhood) -> tuple[float, float]:
    """How far from the winner the minimum may be sought: no further than its neighbours."""
    here = around.winner.log_rate
    low = around.below.log_rate - here if around.below else 0.0
    high = around.above.log_rate - here if around.above else 0.0
    if around.above is None and around.limit is not None:
        high = 0.5 * (around.limit - here)
    return low, high
