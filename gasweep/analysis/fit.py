"""B_crit, S_min and E_min with 95 % intervals, from observations at each batch size's best learning rate.

The law is log S = log S_min + log(1 + B_crit / B); seeds are log-normal about it. Exact, interval- and
right-censored observations and upper bounds enter one likelihood. The seed variance is pooled over batch
sizes and paid for with Student's t; where the batch sizes miss the law by more than their seeds explain, the
excess is a variance between batch sizes, paid for with their (few) degrees of freedom.

Source: McCandlish et al. 2018, eq. 2.11 (the law); docs/estimation.md (the statistics and their coverage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.stats import f as f_distribution
from scipy.stats import t as student_t

from gasweep.analysis.confidence_region import Region, confidence_region
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.hyperbola import fit_hyperbola
from gasweep.analysis.likelihood import Array, Rows, build_rows
from gasweep.analysis.likelihood_profile import Profile
from gasweep.analysis.observation import Observation
from gasweep.analysis.outlier_seeds import OutlierSeed, find_outlier_seeds
from gasweep.analysis.seed_variance import MIN_SIGMA, between_variance, pure_error, summarise_groups

CONFIDENCE = 0.95
MISFIT_SIGNIFICANCE = {1: 0.02, 2: 0.07, 3: 0.15}
"""Lack of fit is believed below this p-value, by its degrees of freedom; 0.2 beyond those listed."""
OVERHEAD = 1.2
"""Steps over perfect scaling that define the 20 % batch size."""


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """The variance the interval rests on. Standard deviations of log steps (0.05 is 5 %).

    seed_sd: between seeds. between_sd: between batch sizes, beyond what seeds explain; 0 when the law fits.
    misfit_p_value: of the lack-of-fit F test; None when no batch has two seeds or none is left to test.
    """

    seed_sd: float
    between_sd: float
    degrees_of_freedom: float
    misfit_p_value: float | None

    def to_dict(self) -> dict[str, float | None]:
        return {
            "seed_log_sd": self.seed_sd,
            "between_batch_log_sd": self.between_sd,
            "degrees_of_freedom": self.degrees_of_freedom,
            "misfit_p_value": self.misfit_p_value,
        }


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Estimates in examples (contributions) and optimizer steps; flags are sentences for the user.

    base_batch_size: where perfect scaling starts for `critical_batch_size_20pct`.
    region: None when nothing can be fitted.
    """

    critical_batch_size: Estimate
    min_steps: Estimate
    min_examples: Estimate
    critical_batch_size_20pct: Estimate
    flags: list[str]
    outliers: list[OutlierSeed]
    base_batch_size: float | None
    spread: SeedSpread | None
    region: Region | None

    def steps_at(self, batch_size: float) -> Estimate:
        """Optimizer steps at `batch_size` by the fitted law, with its 95 % interval."""
        if self.region is None:
            return Estimate(value=None, low=None, high=None, reason=self.critical_batch_size.reason)
        value, low, high = (math.exp(x) for x in self.region.log_steps(math.log(batch_size)))
        return Estimate(value=value, low=low, high=high)


def fit_critical_batch_size(
    observations: Sequence[Observation], *, base_batch_size: float | None = None
) -> FitResult:
    """Fit the law to observations of one target, taken at one learning rate per batch size.

    base_batch_size: the batch size from which the 20 % batch size counts perfect scaling; default the
        smallest that reached the target. 0 means the limit of small batches.
    Raises: ValueError when a batch size comes with several learning rates.
    Assumes: see the module; the learning rate is the best one, or its `log_shift` and `log_sd` say by how
        much it may not be.
    """
    _check_one_learning_rate(observations)
    kept, outliers = find_outlier_seeds(observations)
    flags = [str(outlier) for outlier in outliers]
    rows = build_rows(kept)
    reason = _why_not(rows)
    if reason is not None:
        return _unidentified(reason, flags, outliers)
    spread, rows = _measure_spread(rows)
    threshold = float(student_t.ppf(0.5 + CONFIDENCE / 2.0, spread.degrees_of_freedom)) ** 2
    profile = Profile(rows=rows, sigma=spread.seed_sd, reference=float(rows.log_batch.mean()))
    region = confidence_region(profile, threshold)
    base = base_batch_size
    if base is None:
        base = min(item.batch_size for item in kept if item.is_reached)
    flags += _misfit_flags(spread)
    return FitResult(
        critical_batch_size=_critical(region),
        min_steps=_positive(region.log_min_steps(), _reason(region)),
        min_examples=_positive(region.log_min_examples(), _reason(region)),
        critical_batch_size_20pct=_twenty_percent(region, base),
        flags=flags,
        outliers=outliers,
        base_batch_size=base,
        spread=spread,
        region=region,
    )


def _check_one_learning_rate(observations: Sequence[Observation]) -> None:
    rates: dict[float, float | None] = {}
    for item in observations:
        rate = rates.setdefault(item.batch_size, item.learning_rate)
        if rate != item.learning_rate:
            raise ValueError(
                f"learning_rate: batch {item.batch_size:g} comes with {rate} and {item.learning_rate}; "
                "choose one first (gasweep.analysis.study does)"
            )


def _why_not(rows: Rows) -> str | None:
    """Why no fit is possible at all, or None."""
    summary = summarise_groups(rows, 0.1)
    usable = int(summary.usable.sum())
    if usable == 0:
        if rows.is_bound.any():
            return "no batch size has a learning rate that its grid brackets"
        return "no run reached the target"
    if usable == 1:
        return "the target was reached at one batch size only, or its rate is bracketed at one only"
    if int(rows.two_sided.sum()) < 3:
        return "two runs determine the law exactly and leave nothing to tell its uncertainty from"
    return None


def _measure_spread(rows: Rows) -> tuple[SeedSpread, Rows]:
    """Seed variance, and the lack of fit beyond it, which is added to the rows' shared variance."""
    pure = pure_error(rows)
    pilot = summarise_groups(rows, pure.sigma or 0.1)
    usable = pilot.usable
    log_batch, mean, shared = rows.log_batch[usable], pilot.mean[usable], rows.shared[usable]
    freedom = int(usable.sum()) - 2
    if pure.sigma is None:
        residual = fit_hyperbola(log_batch, mean, shared + 1.0).residual
        sigma = math.sqrt(max(between_variance(residual, shared, freedom), MIN_SIGMA**2))
        return _spread(sigma, 0.0, freedom, None), rows
    variance = pilot.variance[usable] + shared
    residual = fit_hyperbola(log_batch, mean, variance).residual
    squares = float((residual**2 / variance).sum())
    if freedom == 0:
        return _spread(pure.sigma, 0.0, pure.degrees_of_freedom, None), rows
    p_value = float(f_distribution.sf(squares / freedom, freedom, pure.degrees_of_freedom))
    if p_value >= MISFIT_SIGNIFICANCE.get(freedom, 0.2):
        total = pure.degrees_of_freedom + freedom
        sigma = pure.sigma * math.sqrt((pure.degrees_of_freedom + squares) / total)
        return _spread(sigma, 0.0, total, p_value), rows
    tau_squared = _between(log_batch, mean, variance, freedom)
    widened = replace(rows, shared=rows.shared + tau_squared)
    return _spread(pure.sigma, math.sqrt(tau_squared), freedom, p_value), widened


def _between(log_batch: Array, mean: Array, variance: Array, freedom: int) -> float:
    """tau**2 between batch sizes, with the law refitted under the weights it implies."""
    tau_squared = 0.0
    for _ in range(5):
        residual = fit_hyperbola(log_batch, mean, variance + tau_squared).residual
        tau_squared = between_variance(residual, variance, freedom)
    return tau_squared


def _spread(seed_sd: float, between_sd: float, freedom: int, p_value: float | None) -> SeedSpread:
    return SeedSpread(
        seed_sd=seed_sd, between_sd=between_sd, degrees_of_freedom=float(freedom), misfit_p_value=p_value
    )


def _misfit_flags(spread: SeedSpread) -> list[str]:
    if spread.between_sd == 0.0:
        return []
    return [
        f"misfit: batch sizes miss the law by {100 * spread.between_sd:.2g} % beyond what seeds explain "
        f"(p = {spread.misfit_p_value:.1g}); the interval carries it"
    ]


def _reason(region: Region) -> str | None:
    low, high = math.isinf(region.theta_low), math.isinf(region.theta_high)
    if low and high:
        return "not identifiable: neither perfect scaling nor no scaling at all can be excluded"
    if high:
        return "steps still fall in proportion to the batch size: larger batch sizes are needed"
    if low:
        return "steps hardly depend on the batch size: smaller batch sizes are needed"
    return None


def _critical(region: Region) -> Estimate:
    return _positive((region.theta_best, region.theta_low, region.theta_high), _reason(region))


def _positive(log_interval: tuple[float, float, float], reason: str | None) -> Estimate:
    """exp of (value, low, high); an end at infinity is absent, and with it the value."""
    value, low, high = log_interval
    low_end = math.exp(low) if math.isfinite(low) else None
    high_end = math.exp(high) if math.isfinite(high) else None
    if low_end is None or high_end is None or not math.isfinite(value):
        return Estimate(value=None, low=low_end, high=high_end, reason=reason or "not identifiable")
    return Estimate(value=math.exp(value), low=low_end, high=high_end)


def _twenty_percent(region: Region, base: float) -> Estimate:
    """1.2 B0 + 0.2 B_crit: where S(B) = 1.2 * S(B0) * B0 / B.

    Source: Zhang et al. 2024 (How Does Critical Batch Size Scale in Pre-training?), section 2: 20 % more
        steps than linear scaling from a batch size B0.
    """

    def at(theta: float) -> float | None:
        return OVERHEAD * base + (OVERHEAD - 1.0) * math.exp(theta) if theta < math.inf else None

    low, high, reason = at(region.theta_low), at(region.theta_high), _reason(region)
    value = at(region.theta_best)
    if reason is None:
        return Estimate(value=value, low=low, high=high)
    low = None if math.isinf(region.theta_low) else low
    return Estimate(value=None, low=low, high=high, reason=reason)


def _unidentified(reason: str, flags: list[str], outliers: list[OutlierSeed]) -> FitResult:
    unknown = Estimate(value=None, low=None, high=None, reason=reason)
    return FitResult(
        critical_batch_size=unknown,
        min_steps=unknown,
        min_examples=unknown,
        critical_batch_size_20pct=unknown,
        flags=flags,
        outliers=outliers,
        base_batch_size=None,
        spread=None,
        region=None,
    )
