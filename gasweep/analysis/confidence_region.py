"""Intervals of everything the hyperbola says, from one region of laws (B_crit, level).

The interval of any quantity is its range over the region (a profile-likelihood interval), so B_crit, S_min,
E_min and the curve's band agree with each other, and one-sided answers come out as one-sided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gasweep.analysis.hyperbola import theta_grid
from gasweep.analysis.likelihood import Array
from gasweep.analysis.likelihood_profile import Profile, log_hyperbola

COARSE, FINE = 97, 31


@dataclass(frozen=True, kw_only=True)
class Region:
    """The 95 % region of the law, as a boundary [m] in theta = log B_crit with levels between low and high.

    theta_best, level_best: the most likely law; theta_best may be infinite.
    theta_low, theta_high: the interval of theta; infinite where the limit cannot be rejected.
    level_half_width: of what moves S(B) at all batch sizes alike; independent of the rest of the region.
    """

    theta_best: float
    level_best: float
    theta_low: float
    theta_high: float
    theta: Array
    level_low: Array
    level_high: Array
    reference: float
    deviance_best: float
    level_half_width: float = 0.0

    def log_steps(self, log_batch: float) -> tuple[float, float, float]:
        """log S at one batch size: most likely, low, high."""
        shape = log_hyperbola(self.theta, np.array([log_batch]), self.reference)[:, 0]
        best = log_hyperbola(np.array([self.theta_best]), np.array([log_batch]), self.reference)[0, 0]
        low, high = (self.level_low + shape).min(), (self.level_high + shape).max()
        return self._widened(self.level_best + float(best), float(low), float(high))

    def log_min_steps(self) -> tuple[float, float, float]:
        """log S_min: most likely, low, high; -inf where the law has no bend (theta = inf)."""
        offset = _log_one_plus(self.theta - self.reference)
        best = self.level_best - float(_log_one_plus(np.array([self.theta_best - self.reference]))[0])
        low, high = (self.level_low - offset).min(), (self.level_high - offset).max()
        return self._widened(best, float(low), float(high))

    def log_min_examples(self) -> tuple[float, float, float]:
        """log E_min: most likely, low, high; -inf where steps do not depend on the batch (theta = -inf)."""
        offset = _log_one_plus(self.reference - self.theta) - self.reference
        best_offset = _log_one_plus(np.array([self.reference - self.theta_best]))[0] - self.reference
        best = self.level_best - float(best_offset)
        low, high = (self.level_low - offset).min(), (self.level_high - offset).max()
        return self._widened(best, float(low), float(high))

    def _widened(self, best: float, low: float, high: float) -> tuple[float, float, float]:
        """Both ends moved out by the independent error, in quadrature."""
        if self.level_half_width == 0.0 or not math.isfinite(best):
            return best, low - self.level_half_width, high + self.level_half_width
        extra = self.level_half_width
        return best, best - math.hypot(best - low, extra), best + math.hypot(high - best, extra)


def confidence_region(profile: Profile, threshold: float) -> Region:
    """All laws whose deviance exceeds the least by at most `threshold`."""
    theta = theta_grid(profile.rows.log_batch, COARSE)
    deviance = _profiled(profile, theta)
    best = int(np.argmin(deviance))
    if 0 < best < len(theta) - 1:
        theta, deviance = _refine(profile, theta, deviance, best)
        best = int(np.argmin(deviance))
    limit = float(deviance[best]) + threshold
    low = _crossing(profile, theta, deviance, limit, step=1)
    high = _crossing(profile, theta, deviance, limit, step=-1)
    inside = _inside(theta, low, high)
    level = profile.best_level(inside)
    level_low, level_high = profile.level_interval(inside, level, limit + 1e-9)
    return Region(
        theta_best=float(theta[best]),
        level_best=float(profile.best_level(theta[best : best + 1])[0]),
        theta_low=low,
        theta_high=high,
        theta=inside,
        level_low=level_low,
        level_high=level_high,
        reference=profile.reference,
        deviance_best=float(deviance[best]),
    )


def hull(regions: Sequence[Region]) -> Region:
    """One region whose ranges hold those of all `regions`; the best law is the first one's.

    Requires: one reference for all.
    """
    if len(regions) == 1:
        return regions[0]
    return replace(
        regions[0],
        theta_low=min(region.theta_low for region in regions),
        theta_high=max(region.theta_high for region in regions),
        theta=np.concatenate([region.theta for region in regions]),
        level_low=np.concatenate([region.level_low for region in regions]),
        level_high=np.concatenate([region.level_high for region in regions]),
    )


def _profiled(profile: Profile, theta: Array) -> Array:
    return profile.deviance(theta, profile.best_level(theta))


def _refine(profile: Profile, theta: Array, deviance: Array, best: int) -> tuple[Array, Array]:
    """Add candidates around the best one, so that its deviance is the least to well below the threshold."""
    for _ in range(2):
        left, right = theta[best - 1], theta[best + 1]
        if not (np.isfinite(left) and np.isfinite(right)):
            break
        extra = np.linspace(left, right, FINE)[1:-1]
        extra = extra[extra != theta[best]]
        order = np.argsort(np.concatenate([theta, extra]))
        deviance = np.concatenate([deviance, _profiled(profile, extra)])[order]
        theta = np.concatenate([theta, extra])[order]
        best = int(np.argmin(deviance))
        if not 0 < best < len(theta) - 1:
            break
    return theta, deviance


def _crossing(profile: Profile, theta: Array, deviance: Array, limit: float, *, step: int) -> float:
    """The outermost theta at which the deviance crosses `limit`, from the low (step 1) or the high end."""
    order = theta[::step]
    inside = np.flatnonzero(deviance[::step] <= limit)
    first = int(inside[0])
    if first == 0:
        return float(order[0])
    outer, inner = order[first - 1], order[first]
    if not (np.isfinite(outer) and np.isfinite(inner)):
        return float(inner if np.isfinite(inner) else outer)
    grid = np.linspace(outer, inner, FINE)
    values = _profiled(profile, grid)
    index = int(np.flatnonzero(values <= limit)[0]) if (values <= limit).any() else FINE - 1
    if index == 0:
        return float(grid[0])
    share = (values[index - 1] - limit) / (values[index - 1] - values[index])
    return float(grid[index - 1] + share * (grid[index] - grid[index - 1]))


def _inside(theta: Array, low: float, high: float) -> Array:
    finite = theta[np.isfinite(theta)]
    ends = np.linspace(max(low, finite[0]), min(high, finite[-1]), 2 * FINE)
    limits = [end for end in (low, high) if math.isinf(end)]
    return np.concatenate([ends, limits])


def _log_one_plus(x: Array) -> Array:
    """log(1 + exp(x)), with its limits at infinite x."""
    return np.logaddexp(0.0, x)
