"""S = S_min (1 + B_crit / B) fitted to one number per batch size, in log space.

Shapes: g batch sizes. Natural logs. The quick fit behind tests and weights; intervals come from `fit`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gasweep.analysis.likelihood import Array
from gasweep.analysis.likelihood_profile import log_hyperbola

SPAN = float(np.log(1e4))
"""How far beyond the batch sizes tried B_crit is searched, in logs; further out only the limits remain."""


@dataclass(frozen=True, kw_only=True)
class HyperbolaFit:
    """theta = log B_crit (possibly infinite), level = log S at `reference`, residual [g] = log S - fit."""

    theta: float
    level: float
    reference: float
    residual: Array

    def log_steps(self, log_batch: Array) -> Array:
        """[g] log S of the fitted law."""
        shape = log_hyperbola(np.array([self.theta]), np.asarray(log_batch, dtype=np.float64), self.reference)
        return np.asarray(self.level + shape[0])


def theta_grid(log_batch: Array, size: int) -> Array:
    """[size + 2] candidates for log B_crit, with both limits at the ends."""
    inner = np.linspace(float(log_batch.min()) - SPAN, float(log_batch.max()) + SPAN, size)
    return np.concatenate([[-np.inf], inner, [np.inf]])


def fit_hyperbola(
    log_batch: Array, log_steps: Array, variance: Array, *, side: Array | None = None
) -> HyperbolaFit:
    """Weighted least squares over a grid of theta, refined twice.

    side [g]: where it is 1 or -1, log S only lies above or below `log_steps`, and the residual is 0 where it
        does; 0, the default, where `log_steps` is log S.
    """
    reference = float(log_batch.mean())
    weight = 1.0 / variance
    theta = theta_grid(log_batch, 121)
    for _ in range(3):
        rest = log_steps - log_hyperbola(theta, log_batch, reference)
        level = _levels(rest, weight, side)
        residual = _pull(rest - level[:, None], side)
        best = int(np.argmin((residual**2 * weight).sum(axis=1)))
        found = HyperbolaFit(
            theta=float(theta[best]), level=float(level[best]), reference=reference, residual=residual[best]
        )
        left, right = theta[max(best - 1, 0)], theta[min(best + 1, len(theta) - 1)]
        if not (np.isfinite(left) and np.isfinite(right)):
            break
        theta = np.linspace(left, right, 41)
    return found


def _levels(rest: Array, weight: Array, side: Array | None) -> Array:
    """[m] the level of least squares of `rest` [m, g]; by bisection of the slope where some are one-sided."""
    if side is None or not side.any():
        return np.asarray((rest * weight).sum(axis=1) / weight.sum())
    low, high = rest.min(axis=1), rest.max(axis=1)
    for _ in range(50):
        middle = 0.5 * (low + high)
        rises = (_pull(rest - middle[:, None], side) * weight).sum(axis=1) > 0.0
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    return np.asarray(0.5 * (low + high))


def _pull(residual: Array, side: Array | None) -> Array:
    """`residual` [m, g] with those of inequalities that hold set to 0."""
    return residual if side is None else np.asarray(np.where(side * residual < 0.0, 0.0, residual))
