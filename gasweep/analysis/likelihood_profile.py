"""The profile of log B_crit, and the confidence region of the hyperbola, at a known seed variance.

log S(B) = level + shape(theta, B), theta = log B_crit, level = log S at a reference batch inside the data, so
that both limits are ordinary points: theta = -inf (S constant) and theta = +inf (S proportional to 1/B).

Shapes: n rows, m values of theta.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gasweep.analysis.likelihood import LOG_SQRT_2PI, Array, Rows, log_interval, log_probability


def log_hyperbola(theta: Array, log_batch: Array, reference: float) -> Array:
    """[m, g] log S(B) - log S(reference) of the law S = S_min (1 + B_crit / B); theta may be infinite."""
    theta = np.asarray(theta, dtype=np.float64)[:, None]
    finite = np.where(np.isfinite(theta), theta, 0.0)
    inside = np.logaddexp(0.0, finite - log_batch) - np.logaddexp(0.0, finite - reference)
    limit = np.where(theta > 0, reference - log_batch, 0.0)
    return np.where(np.isfinite(theta), inside, limit)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Deviance (-2 log-likelihood) of `rows` at seed standard deviation `sigma` (natural log of steps)."""

    rows: Rows
    sigma: float
    reference: float

    def deviance(self, theta: Array, level: Array) -> Array:
        """[m] at pairs (theta, level)."""
        mean = level[:, None] + self._shape(theta)
        rows = self.rows
        terms = log_probability(rows.low, rows.high, mean, rows.standard_deviations(self.sigma))
        return np.asarray(-2.0 * terms.sum(axis=1))

    def best_level(self, theta: Array) -> Array:
        """[m] the level of least deviance at each theta: Newton's method on a convex function."""
        shape = self._shape(theta)
        level = np.median(self.rows.centre - shape, axis=1)
        limit = 2.0 * float(np.median(self.rows.standard_deviations(self.sigma))) + 0.1
        for _ in range(60):
            slope, curvature = self._derivatives(level, shape)
            step = np.clip(-slope / curvature, -limit, limit)
            level = level + step
            if np.max(np.abs(step)) < 1e-10:
                break
        return level

    def level_interval(self, theta: Array, best: Array, threshold: float) -> tuple[Array, Array]:
        """[m], [m] where the deviance crosses `threshold` below and above `best`, which must lie under it.

        A parabola where every row is exact; else Newton's method from outside, where a convex function is
        approached monotonically.
        """
        shape = self._shape(theta)
        if self.rows.exact.all():
            weight = float((self.rows.standard_deviations(self.sigma) ** -2.0).sum())
            half = np.sqrt(np.maximum(threshold - self._value(best, shape), 0.0) / weight)
            return best - half, best + half
        return self._outside_in(shape, best, threshold, -1.0), self._outside_in(shape, best, threshold, 1.0)

    def _shape(self, theta: Array) -> Array:
        return log_hyperbola(theta, self.rows.log_batch, self.reference)[:, self.rows.group]

    def _outside_in(self, shape: Array, best: Array, threshold: float, sign: float) -> Array:
        reach = np.full(best.shape, float(np.median(self.rows.standard_deviations(self.sigma))))
        for _ in range(60):
            inside = self._value(best + sign * reach, shape) <= threshold
            if not inside.any():
                break
            reach = np.where(inside, 2.0 * reach, reach)
        level = best + sign * reach
        for _ in range(60):
            slope, _ = self._derivatives(level, shape)
            step = (threshold - self._value(level, shape)) / np.where(slope == 0.0, sign, slope)
            step = -sign * np.minimum(np.abs(step), np.abs(level - best))
            level = level + step
            if np.max(np.abs(step)) < 1e-9:
                break
        return level

    def _value(self, level: Array, shape: Array) -> Array:
        rows = self.rows
        sd = rows.standard_deviations(self.sigma)
        terms = log_probability(rows.low, rows.high, level[:, None] + shape, sd)
        return np.asarray(-2.0 * terms.sum(axis=1))

    def _derivatives(self, level: Array, shape: Array) -> tuple[Array, Array]:
        """[m] first and second derivative of the deviance in the level; the second is kept positive."""
        rows = self.rows
        sd = rows.standard_deviations(self.sigma)
        mean = level[:, None] + shape
        exact = rows.exact
        weight = 1.0 / sd[exact] ** 2
        first = -2.0 * ((rows.low[exact] - mean[:, exact]) * weight).sum(axis=1)
        second = np.full(len(level), 2.0 * weight.sum())
        if not exact.all():
            rest = ~exact
            z_low = (rows.low[rest] - mean[:, rest]) / sd[rest]
            z_high = (rows.high[rest] - mean[:, rest]) / sd[rest]
            slope, curvature = _interval_derivatives(z_low, z_high)
            first = first - 2.0 * (slope / sd[rest]).sum(axis=1)
            second = second - 2.0 * (curvature / sd[rest] ** 2).sum(axis=1)
        return first, np.maximum(second, 1e-9)


def _interval_derivatives(z_low: Array, z_high: Array) -> tuple[Array, Array]:
    """d and d2 of log(Phi(z_high) - Phi(z_low)) with respect to the mean, in units of sd."""
    log_mass = log_interval(z_low, z_high)
    low = np.exp(np.clip(-0.5 * z_low**2 - LOG_SQRT_2PI - log_mass, None, 700.0))
    high = np.exp(np.clip(-0.5 * z_high**2 - LOG_SQRT_2PI - log_mass, None, 700.0))
    slope = low - high
    finite_low = np.where(np.isfinite(z_low), z_low, 0.0)
    finite_high = np.where(np.isfinite(z_high), z_high, 0.0)
    return slope, finite_low * low - finite_high * high - slope**2
