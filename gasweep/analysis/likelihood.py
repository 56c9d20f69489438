"""Log-likelihood of log-normal steps to target, exact, interval- or right-censored, vectorised.

Shapes: n rows (observations), g groups (batch sizes), m candidate values. All in natural logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from gasweep.analysis.observation import Observation

Array = NDArray[np.float64]
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
INTERPOLATION_SHARE = 0.1
"""Standard deviation of an interpolated crossing, as a share of its evaluation interval."""
NEGLIGIBLE_INTERVAL = 1e-6
"""An evaluation interval of a millionth of the steps is a point: its probability would be all rounding."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Observations as arrays, sorted by batch size.

    low, high [n]: log S lies between; equal where exact, infinite where open.
    group [n]: index into `batch_sizes`. log_batch [g].
    scale [n]: the row's seed variance is scale * sigma**2. extra [n]: added variance, of interpolation.
    shared [g]: variance that all rows of a group have in common. spacing [n]: log evaluation interval.
    is_bound [n]: the row only says log S <= high (best learning rate at the grid's edge).
    """

    low: Array
    high: Array
    group: NDArray[np.intp]
    log_batch: Array
    scale: Array
    extra: Array
    shared: Array
    spacing: Array
    is_bound: NDArray[np.bool_]

    @property
    def exact(self) -> NDArray[np.bool_]:
        return np.asarray(self.low == self.high)

    @property
    def two_sided(self) -> NDArray[np.bool_]:
        """[n] exact, or between two finite ends."""
        return np.asarray(np.isfinite(self.low) & np.isfinite(self.high))

    @property
    def centre(self) -> Array:
        """[n] a finite stand-in for each row: the middle, or the end that is finite."""
        low = np.where(np.isfinite(self.low), self.low, self.high)
        high = np.where(np.isfinite(self.high), self.high, self.low)
        return 0.5 * (low + high)

    def select(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows of `keep` [n], with groups that became empty removed."""
        used, group = np.unique(self.group[keep], return_inverse=True)
        return Rows(
            low=self.low[keep],
            high=self.high[keep],
            group=group,
            log_batch=self.log_batch[used],
            scale=self.scale[keep],
            extra=self.extra[keep],
            shared=self.shared[used],
            spacing=self.spacing[keep],
            is_bound=self.is_bound[keep],
        )

    def standard_deviations(self, sigma: float) -> Array:
        """[n] of each row about its group's S(B); a shared variance v counts n_g * v, so that means get v."""
        size = np.bincount(self.group, minlength=len(self.log_batch))
        shared = (self.shared * size)[self.group]
        return np.sqrt(self.scale * sigma**2 + self.extra + shared)


def build_rows(observations: Sequence[Observation]) -> Rows:
    """Arrays of `observations`; the seeds of an upper-bound batch become one row, log S <= their mean."""
    rows: list[tuple[float, float, float, float, float, float, bool]] = []
    shared: dict[float, float] = {}
    bounds: dict[float, list[Observation]] = {}
    for item in observations:
        shared[item.batch_size] = item.log_sd**2
        if item.is_upper_bound:
            bounds.setdefault(item.batch_size, []).append(item)
            continue
        low, high = (end + item.log_shift for end in item.log_interval)
        if high - low < NEGLIGIBLE_INTERVAL:
            low = high
        spread = (INTERPOLATION_SHARE * item.log_spacing) ** 2 if low == high else 0.0
        rows.append((item.batch_size, low, high, 1.0, spread, item.log_spacing, False))
    for batch, items in bounds.items():
        if all(item.is_reached for item in items):
            mean = math.fsum(item.log_interval[1] for item in items) / len(items)
            rows.append((batch, -math.inf, mean, 1.0 / len(items), 0.0, 0.0, True))
    rows.sort()
    batches = sorted({row[0] for row in rows})
    index = {batch: k for k, batch in enumerate(batches)}
    columns = [np.array([row[k] for row in rows], dtype=np.float64) for k in range(1, 6)]
    return Rows(
        low=columns[0],
        high=columns[1],
        group=np.array([index[row[0]] for row in rows], dtype=np.intp),
        log_batch=np.log(np.array(batches, dtype=np.float64)),
        scale=columns[2],
        extra=columns[3],
        shared=np.array([shared[batch] for batch in batches], dtype=np.float64),
        spacing=columns[4],
        is_bound=np.array([row[6] for row in rows], dtype=np.bool_),
    )


def log_probability(low: Array, high: Array, mean: Array, sd: Array) -> Array:
    """log P of each row: a density where low == high, else the probability of the interval. Broadcasts."""
    low, high, mean, sd = np.broadcast_arrays(low, high, mean, sd)
    exact = low == high
    if exact.all():
        return np.asarray(-0.5 * ((low - mean) / sd) ** 2 - np.log(sd) - LOG_SQRT_2PI)
    rest = ~exact
    result = np.empty(mean.shape)
    z = (low[exact] - mean[exact]) / sd[exact]
    result[exact] = -0.5 * z**2 - np.log(sd[exact]) - LOG_SQRT_2PI
    result[rest] = log_interval((low[rest] - mean[rest]) / sd[rest], (high[rest] - mean[rest]) / sd[rest])
    return result


def log_interval(z_low: Array, z_high: Array) -> Array:
    """log(Phi(z_high) - Phi(z_low)), by symmetry taken in the tail where it does not cancel."""
    flip = z_low + z_high > 0
    lower = np.where(flip, -z_high, z_low)
    upper = np.where(flip, -z_low, z_high)
    log_upper = log_ndtr(upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = np.where(np.isneginf(lower), -np.inf, log_ndtr(lower) - log_upper)
        return np.asarray(log_upper + np.log1p(-np.exp(difference)))
