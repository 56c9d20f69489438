"""B_crit, S_min and E_min with 95 % intervals, from observations at each batch size's best learning rate.

The law is log S = log S_min + log(1 + B_crit / B); seeds are log-normal about it. Exact, interval- and
right-censored observations and upper bounds enter one likelihood. The seed variance is pooled over batch
sizes and paid for with Student's t; where the batch sizes miss the law by more than their seeds explain, or
those bounded from one side contradict it, the excess is a variance between batch sizes, paid for with their
(few) degrees of freedom.

Source: McCandlish et al. 2018, eq. 2.11 (the law); docs/estimation.md (the statistics and their coverage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t as student_t

from gasweep.analysis.confidence_region import Region, confidence_region, hull
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.likelihood import Rows, build_rows
from gasweep.analysis.likelihood_profile import Profile
from gasweep.analysis.observation import Observation
from gasweep.analysis.outlier_seeds import OutlierSeed, find_outlier_seeds
from gasweep.analysis.seed_effect import common_seed_effect
from gasweep.analysis.seed_variance import summarise_groups
from gasweep.analysis.spread import Basis, SeedSpread, measure_spread

CONFIDENCE = 0.95
OVERHEAD = 1.2
"""Steps over perfect scaling that define the 20 % batch size."""


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
    problem = _why_not(rows)
    if problem is not None:
        return _unidentified(problem, flags, outliers)
    spread, bases = measure_spread(rows)
    region = hull([_region(basis, float(rows.log_batch.mean())) for basis in bases])
    effect = common_seed_effect(kept)
    if effect is not None:
        region = replace(region, level_half_width=effect.half_width)
        flags.append(str(effect))
    base = base_batch_size
    if base is None:
        base = min(item.batch_size for item in kept if item.is_reached)
    flags += spread.flags()
    reason = _reason(region, spread)
    return FitResult(
        critical_batch_size=_positive((region.theta_best, region.theta_low, region.theta_high), reason),
        min_steps=_positive(region.log_min_steps(), reason),
        min_examples=_positive(region.log_min_examples(), reason),
        critical_batch_size_20pct=_twenty_percent(region, base, reason),
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


def _region(basis: Basis, reference: float) -> Region:
    threshold = float(student_t.ppf(0.5 + CONFIDENCE / 2.0, basis.degrees_of_freedom)) ** 2
    profile = Profile(rows=basis.rows, sigma=basis.seed_sd, reference=reference)
    return confidence_region(profile, threshold)


def _why_not(rows: Rows) -> str | None:
    """Why no fit is possible at all, or None."""
    summary = summarise_groups(rows, 0.1)
    usable = int(summary.usable.sum())
    if usable == 0:
        if rows.is_bound.any():
            return "no batch size has a learning rate that its grid brackets"
        if np.isfinite(rows.high).any():
            return (
                "every run that reached the target had reached it by its first evaluation, which leaves its "
                "steps open below: evaluate earlier"
            )
        if len(rows.low) == 0:
            return "no run reached the target, or none that did can be counted: see the flags"
        return "no run reached the target"
    if usable == 1:
        return "the target was reached at one batch size only, or its rate is bracketed at one only"
    if int(rows.two_sided.sum()) < 3:
        return "two runs determine the law exactly and leave nothing to tell its uncertainty from"
    return None


def _reason(region: Region, spread: SeedSpread) -> str | None:
    """Why the answer is not two-sided, or None."""
    low, high = math.isinf(region.theta_low), math.isinf(region.theta_high)
    if (low or high) and spread.contradiction is not None:
        return "not identifiable: batch sizes bounded from one side contradict the law through the others"
    if low and high:
        return "not identifiable: neither perfect scaling nor no scaling at all can be excluded"
    if high:
        return "steps still fall in proportion to the batch size: larger batch sizes are needed"
    if low:
        return "steps hardly depend on the batch size: smaller batch sizes are needed"
    return None


def _positive(log_interval: tuple[float, float, float], reason: str | None) -> Estimate:
    """exp of (value, low, high); an end at infinity is absent, and with it the value."""
    value, low, high = log_interval
    low_end = math.exp(low) if math.isfinite(low) else None
    high_end = math.exp(high) if math.isfinite(high) else None
    if low_end is None or high_end is None or not math.isfinite(value):
        return Estimate(value=None, low=low_end, high=high_end, reason=reason or "not identifiable")
    return Estimate(value=math.exp(value), low=low_end, high=high_end)


def _twenty_percent(region: Region, base: float, reason: str | None) -> Estimate:
    """1.2 B0 + 0.2 B_crit: where S(B) = 1.2 * S(B0) * B0 / B.

    Source: Zhang et al. 2024 (How Does Critical Batch Size Scale in Pre-training?), section 2: 20 % more
        steps than linear scaling from a batch size B0.
    """

    def at(theta: float) -> float | None:
        return OVERHEAD * base + (OVERHEAD - 1.0) * math.exp(theta) if theta < math.inf else None

    value, low, high = at(region.theta_best), at(region.theta_low), at(region.theta_high)
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
