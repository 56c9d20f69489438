"""The variance an interval rests on: between seeds, and between batch sizes where they miss the law.

Shapes: g batch sizes. Natural logs of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.stats import f as f_distribution

from gasweep.analysis.hyperbola import fit_hyperbola
from gasweep.analysis.likelihood import Array, Rows
from gasweep.analysis.one_sided import Contradiction, combine_one_sided, find_contradiction
from gasweep.analysis.seed_variance import (
    MIN_SIGMA,
    GroupSummary,
    between_variance,
    pure_error,
    refitted_between_variance,
    summarise_groups,
)
from gasweep.analysis.spread_trend import SpreadTrend, follow_trend, spread_trend

MISFIT_SIGNIFICANCE = {1: 0.02, 2: 0.07, 3: 0.15}
"""Lack of fit is believed below this p-value, by its degrees of freedom; 0.2 beyond those listed."""
NAMED_CONFLICTS = 3
HIDDEN_SPREAD_SDS = 0.5
"""Standard deviations of log seed_sd by which it is also taken larger where evaluation intervals hide it, at
a normal threshold. By measured coverage: 0 leaves ten quiet seeds between wide intervals at 0.91 – 0.94, and
1 makes the intervals of few seeds 1.4 times as wide as they need be."""


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """The variance the interval rests on. Standard deviations of log steps (0.05 is 5 %).

    seed_sd: between seeds. between_sd: between batch sizes, beyond what seeds explain; 0 when the law fits.
    misfit_p_value: of the lack-of-fit F test; None when no batch has two seeds or none is left to test.
    contradiction: of batch sizes bounded from one side, by the law through the others; None without.
    seed_sd_error: standard deviation of log seed_sd where evaluation intervals hide it, else 0: Student's t
        carries what exact seeds leave uncertain.
    """

    seed_sd: float
    between_sd: float
    degrees_of_freedom: float
    misfit_p_value: float | None
    contradiction: Contradiction | None = None
    seed_sd_error: float = 0.0

    def to_dict(self) -> dict[str, float | None]:
        return {
            "seed_log_sd": self.seed_sd,
            "between_batch_log_sd": self.between_sd,
            "degrees_of_freedom": self.degrees_of_freedom,
            "misfit_p_value": self.misfit_p_value,
            "contradiction_p_value": self.contradiction.p_value if self.contradiction else None,
        }

    def flags(self) -> list[str]:
        """Sentences for the user: what the interval had to be widened for."""
        if self.contradiction is not None:
            conflicts = [str(one) for one in self.contradiction.conflicts]
            more = len(conflicts) - NAMED_CONFLICTS
            text = "; ".join(conflicts[:NAMED_CONFLICTS]) + (f"; and {more} more" if more > 0 else "")
            return [
                f"contradiction: {text} (p = {self.contradiction.p_value:.1g}); the interval carries "
                f"{100 * self.between_sd:.2g} % between batch sizes"
            ]
        if self.between_sd == 0.0:
            return []
        return [
            f"misfit: batch sizes miss the law by {100 * self.between_sd:.2g} % beyond what seeds explain "
            f"(p = {self.misfit_p_value:.1g}); the interval carries it"
        ]


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Rows and the variance they are judged by: what one confidence region needs."""

    rows: Rows
    seed_sd: float
    degrees_of_freedom: float


def measure_spread(rows: Rows) -> tuple[SeedSpread, list[Basis]]:
    """The spread, and the bases whose regions together are the answer, the best law's first.

    One basis, unless one-sided batch sizes contradict the others: then either may be wrong, and the region of
    the others by themselves belongs to the answer too. Where evaluation intervals hide the seed spread, a
    larger one is a further basis: a likelihood of walls is not widened by a higher threshold alone.
    Requires: two batch sizes with a seed known from both sides, and three such seeds.
    """
    trend = spread_trend(rows)
    rows = follow_trend(rows, trend)
    spread, summary = _two_sided_spread(rows, trend)
    found = find_contradiction(
        rows,
        summary,
        sigma=spread.seed_sd,
        between=spread.between_sd,
        degrees_of_freedom=spread.degrees_of_freedom,
    )
    if found is None:
        return spread, _with_larger_spread([_basis(rows, summary, spread)], spread)
    alone = _basis(rows.select(summary.usable[rows.group]), summary, spread)
    spread = replace(
        spread,
        between_sd=math.sqrt(found.between_variance),
        degrees_of_freedom=float(found.degrees_of_freedom),
        contradiction=found,
    )
    return spread, _with_larger_spread([_basis(rows, summary, spread), alone], spread)


def _with_larger_spread(bases: list[Basis], spread: SeedSpread) -> list[Basis]:
    if spread.seed_sd_error == 0.0:
        return bases
    factor = math.exp(HIDDEN_SPREAD_SDS * spread.seed_sd_error)
    larger = [replace(one, seed_sd=factor * one.seed_sd, degrees_of_freedom=math.inf) for one in bases]
    return bases + larger


def _basis(rows: Rows, summary: GroupSummary, spread: SeedSpread) -> Basis:
    """`rows` with the spread between batch sizes, which their seeds share."""
    if spread.between_sd > 0.0:
        rows = replace(rows, shared=rows.shared + spread.between_sd**2)
        if len(rows.log_batch) == len(summary.usable):
            rows = combine_one_sided(rows, summary.usable, spread.seed_sd)
    return Basis(rows=rows, seed_sd=spread.seed_sd, degrees_of_freedom=spread.degrees_of_freedom)


def _two_sided_spread(rows: Rows, trend: SpreadTrend) -> tuple[SeedSpread, GroupSummary]:
    """From the batch sizes with a seed known from both sides, and their summary."""
    pure = pure_error(rows)
    pure_freedom = max(1.0, pure.degrees_of_freedom - trend.degrees_of_freedom)
    summary = summarise_groups(rows, pure.sigma or 0.1)
    usable = summary.usable
    log_batch, mean, shared = rows.log_batch[usable], summary.mean[usable], rows.shared[usable]
    freedom = int(usable.sum()) - 2
    if pure.sigma is None:
        residual = fit_hyperbola(log_batch, mean, shared + 1.0).residual
        sigma = math.sqrt(max(between_variance(residual, shared, freedom), MIN_SIGMA**2))
        return _spread(sigma, 0.0, freedom, None), summarise_groups(rows, sigma)
    variance = summary.variance[usable] + shared
    residual = fit_hyperbola(log_batch, mean, variance).residual
    squares = float((residual**2 / variance).sum())
    error = pure.log_sigma_sd
    if freedom == 0:
        return _spread(pure.sigma, 0.0, pure_freedom, None, error), summary
    p_value = float(f_distribution.sf(squares / freedom, freedom, pure_freedom))
    if p_value >= MISFIT_SIGNIFICANCE.get(freedom, 0.2):
        total = pure_freedom + freedom
        sigma = pure.sigma * math.sqrt((pure_freedom + squares) / total)
        return _spread(sigma, 0.0, total, p_value, error), summary
    tau_squared = _between(log_batch, mean, variance, freedom)
    return _spread(pure.sigma, math.sqrt(tau_squared), freedom, p_value, error), summary


def _between(log_batch: Array, mean: Array, variance: Array, freedom: int) -> float:
    """tau**2 between batch sizes, with the law refitted under the weights it implies."""
    return refitted_between_variance(
        lambda tau_squared: fit_hyperbola(log_batch, mean, variance + tau_squared).residual, variance, freedom
    )


def _spread(
    seed_sd: float, between_sd: float, freedom: float, p_value: float | None, error: float = 0.0
) -> SeedSpread:
    return SeedSpread(
        seed_sd=seed_sd,
        between_sd=between_sd,
        degrees_of_freedom=float(freedom),
        misfit_p_value=p_value,
        seed_sd_error=error,
    )
