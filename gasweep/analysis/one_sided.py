"""Batch sizes bounded from one side only: can what they say be true of the law through the others?

A batch size none of whose seeds reached says that S(B) is larger; one whose best learning rate is not
bracketed says that it is smaller. Such evidence pulls the likelihood with the full strength of the seeds'
spread: where it cannot be true of the law, the law moves, and the scatter of the others shows nothing of it.

Shapes: n rows, g groups (batch sizes), k limits. Natural logs of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution

from gasweep.analysis.hyperbola import HyperbolaFit, fit_hyperbola
from gasweep.analysis.likelihood import Array, Rows
from gasweep.analysis.seed_variance import GroupSummary, refitted_between_variance

SIGNIFICANCE = 0.02
"""One-sided evidence contradicts the law below this p-value."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the seeds of each one-sided batch size say together, of one side.

    group [k]: index of the batch size. limit [k]: log S lies beyond it, above where `side` [k] is 1, below
    where it is -1. scale [k]: variance of the limit, in units of sigma**2.
    """

    group: NDArray[np.intp]
    limit: Array
    side: Array
    scale: Array


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """One batch size at odds with the law through those that reached; optimizer steps.

    limit_steps: S(B) is at least that where `is_lower`, else at most. law_steps: what the law has there.
    """

    batch_size: float
    limit_steps: float
    law_steps: float
    is_lower: bool

    def __str__(self) -> str:
        side = "more" if self.is_lower else "fewer"
        return (
            f"batch {self.batch_size:.6g} takes {side} than {self.limit_steps:.4g} steps, where the law "
            f"through the batch sizes that reached has {self.law_steps:.4g}"
        )


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """One-sided evidence that the law cannot meet.

    degrees_of_freedom, between_variance: of the spread between batch sizes that would reconcile both.
    """

    conflicts: tuple[Conflict, ...]
    p_value: float
    degrees_of_freedom: int
    between_variance: float


def one_sided_limits(rows: Rows, usable: NDArray[np.bool_], sigma: float) -> Limits:
    """The limits of the groups that are not `usable` [g]."""
    found: list[tuple[int, float, float, float]] = []
    for group in np.flatnonzero(~usable):
        for side, ends in ((1.0, rows.low), (-1.0, rows.high)):
            members = (rows.group == group) & np.isfinite(ends)
            if members.any():
                found.append((int(group), *_strongest(ends[members], rows.scale[members], side, sigma), side))
    return Limits(
        group=np.array([one[0] for one in found], dtype=np.intp),
        limit=np.array([one[1] for one in found], dtype=np.float64),
        scale=np.array([one[2] for one in found], dtype=np.float64),
        side=np.array([one[3] for one in found], dtype=np.float64),
    )


def _strongest(ends: Array, scale: Array, side: float, sigma: float) -> tuple[float, float]:
    """Limit and scale of the mean over the seeds that together say the most.

    Any set of seeds beyond their ends has its mean beyond the mean of the ends; seeds stopped early would
    only blunt it.
    """
    order = np.argsort(-side * ends)
    count = np.arange(1, len(ends) + 1)
    mean = np.cumsum(ends[order]) / count
    scales = np.cumsum(scale[order]) / count**2
    best = int(np.argmax(side * mean - sigma * np.sqrt(scales)))
    return float(mean[best]), float(scales[best])


def combine_one_sided(rows: Rows, usable: NDArray[np.bool_], sigma: float) -> Rows:
    """`rows` with one row for all seeds of a one-sided batch size.

    A product over seeds would count what they share (`rows.shared`) once for each of them.
    """
    limits = one_sided_limits(rows, usable, sigma)
    keep = usable[rows.group]
    zeros = np.zeros(len(limits.group))

    def joined(values: Array, added: Array) -> Array:
        return np.concatenate([values[keep], added])

    return replace(
        rows,
        low=joined(rows.low, np.where(limits.side > 0, limits.limit, -math.inf)),
        high=joined(rows.high, np.where(limits.side > 0, math.inf, limits.limit)),
        group=np.concatenate([rows.group[keep], limits.group]),
        scale=joined(rows.scale, limits.scale),
        extra=joined(rows.extra, zeros),
        spacing=joined(rows.spacing, zeros),
        is_bound=np.concatenate([rows.is_bound[keep], limits.side < 0]),
    )


def find_contradiction(
    rows: Rows, summary: GroupSummary, *, sigma: float, between: float, degrees_of_freedom: float
) -> Contradiction | None:
    """Whether the one-sided batch sizes contradict the law through the others.

    Judged by how much they raise the least squares of the fit.

    summary: of `rows` at `sigma`. sigma, between: standard deviations between seeds and batch sizes.
        degrees_of_freedom: of both.
    Assumes: given which limits pull, the rise is F distributed, which is exact for a law linear in its
        parameters (chi-bar-squared; Robertson, Wright and Dykstra 1988, theorem 2.3.1).
    """
    usable = summary.usable
    limits = one_sided_limits(rows, usable, sigma)
    if len(limits.group) == 0:
        return None
    data = _data(rows, summary, limits, sigma)
    two_sided = data.side == 0.0
    alone = data.fit(between**2, two_sided)
    joint = data.fit(between**2)
    pulling = np.flatnonzero((joint.residual != 0.0) & ~two_sided)
    rise = data.squares(joint, between**2) - data.squares(alone, between**2, two_sided)
    if len(pulling) == 0 or rise <= 0.0:
        return None
    p_value = float(f_distribution.sf(rise / len(pulling), len(pulling), degrees_of_freedom))
    if p_value >= SIGNIFICANCE:
        return None
    freedom = int(two_sided.sum()) - 2 + len(pulling)
    return Contradiction(
        conflicts=tuple(data.conflict(int(index), alone) for index in pulling),
        p_value=p_value,
        degrees_of_freedom=freedom,
        between_variance=data.between_variance(freedom),
    )


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Means of the two-sided batch sizes (side 0), then the limits of the others."""

    log_batch: Array
    log_steps: Array
    variance: Array
    side: Array

    def fit(self, between: float, keep: NDArray[np.bool_] | None = None) -> HyperbolaFit:
        keep = np.ones(len(self.side), dtype=np.bool_) if keep is None else keep
        variance = self.variance[keep] + between
        return fit_hyperbola(self.log_batch[keep], self.log_steps[keep], variance, side=self.side[keep])

    def squares(self, fit: HyperbolaFit, between: float, keep: NDArray[np.bool_] | None = None) -> float:
        variance = self.variance if keep is None else self.variance[keep]
        return float((fit.residual**2 / (variance + between)).sum())

    def between_variance(self, freedom: int) -> float:
        """tau**2, with the law refitted under the weights it implies."""
        return refitted_between_variance(lambda tau: self.fit(tau).residual, self.variance, freedom)

    def conflict(self, index: int, law: HyperbolaFit) -> Conflict:
        log_batch = self.log_batch[index]
        return Conflict(
            batch_size=math.exp(log_batch),
            limit_steps=math.exp(self.log_steps[index]),
            law_steps=math.exp(float(law.log_steps(np.array([log_batch]))[0])),
            is_lower=bool(self.side[index] > 0),
        )


def _data(rows: Rows, summary: GroupSummary, limits: Limits, sigma: float) -> _Data:
    usable = summary.usable
    shared = rows.shared
    return _Data(
        log_batch=np.concatenate([rows.log_batch[usable], rows.log_batch[limits.group]]),
        log_steps=np.concatenate([summary.mean[usable], limits.limit]),
        variance=np.concatenate([
            summary.variance[usable] + shared[usable], limits.scale * sigma**2 + shared[limits.group]
        ]),
        side=np.concatenate([np.zeros(int(usable.sum())), limits.side]),
    )  # fmt: skip
