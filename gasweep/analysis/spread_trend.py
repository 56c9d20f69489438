"""Seeds that scatter more at small batch sizes than at large ones, or less.

The seeds' standard deviation is taken to go as B ** exponent. Few seeds say little of the exponent, so it is
averaged over its restricted likelihood and a prior around 0 instead of tested for: where nothing speaks for a
trend the spread stays one number, where many seeds do it follows them.

Shapes: n rows, g groups (batch sizes), m candidate exponents.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gasweep.analysis.likelihood import Rows
from gasweep.analysis.seed_variance import MIN_SIGMA

PRIOR_SD = 0.15
"""Of the exponent: 0.15 is a factor of 2.3 in the spread over batch sizes that differ 256-fold."""
EXPONENTS = np.linspace(-0.6, 0.6, 121)


@dataclass(frozen=True, kw_only=True)
class SpreadTrend:
    """exponent: of the seeds' standard deviation in B. degrees_of_freedom: its cost, 0 to 1."""

    exponent: float
    degrees_of_freedom: float


def spread_trend(rows: Rows) -> SpreadTrend:
    """The trend of the batch sizes whose seeds are all known exactly.

    Assumes: log-normal seeds. With nu = seeds - 1 and x = log B about its mean weighted by nu, the restricted
        log-likelihood of the exponent e is -(sum(nu) / 2) log sum(squares exp(-2 e x)), the level maximised.
    """
    count = np.bincount(rows.group, minlength=len(rows.log_batch))
    exact = np.bincount(rows.group, weights=rows.exact, minlength=len(rows.log_batch))
    used = (exact == count) & (count > 1)
    if used.sum() < 3:
        return SpreadTrend(exponent=0.0, degrees_of_freedom=0.0)
    low = np.where(rows.exact, rows.low, 0.0)
    mean = np.bincount(rows.group, weights=low, minlength=len(count)) / np.maximum(count, 1)
    deviation = (low - mean[rows.group]) ** 2
    squares = np.bincount(rows.group, weights=deviation, minlength=len(count))[used]
    freedom = count[used] - 1.0
    squares = squares + freedom * MIN_SIGMA**2
    x = rows.log_batch[used] - float((freedom @ rows.log_batch[used]) / freedom.sum())
    pooled = (squares * np.exp(-2.0 * EXPONENTS[:, None] * x)).sum(axis=1)
    log_density = -0.5 * freedom.sum() * np.log(pooled) - 0.5 * (EXPONENTS / PRIOR_SD) ** 2
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    exponent = float(weight @ EXPONENTS)
    variance = float(weight @ (EXPONENTS - exponent) ** 2)
    return SpreadTrend(exponent=exponent, degrees_of_freedom=max(0.0, 1.0 - variance / PRIOR_SD**2))


def follow_trend(rows: Rows, trend: SpreadTrend) -> Rows:
    """`rows` with the seed variance of each scaled along the trend, 1 on average over them."""
    log_batch = rows.log_batch[rows.group]
    factor = 2.0 * trend.exponent * (log_batch - log_batch.mean())
    return replace(rows, scale=rows.scale * np.exp(factor))
