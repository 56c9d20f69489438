"""How B_crit grows over several studies with something else: B_crit = prefactor * x**exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student_t

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.seed_variance import between_variance

NORMAL_95 = float(norm.ppf(0.975))


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """B_crit = prefactor * x**exponent. num_studies: those with a two-sided interval, which alone enter.

    flags: studies left out, and whether scatter beyond the studies' own intervals was found.
    """

    exponent: Estimate
    prefactor: Estimate
    num_studies: int
    flags: list[str]


def fit_power_law(studies: Sequence[tuple[float, Estimate]]) -> PowerLaw:
    """Fit log B_crit = log prefactor + exponent * log x to (x, B_crit) of several studies.

    Each study is weighted by its interval. Scatter beyond the intervals is estimated (Paule-Mandel), added,
    and paid for with Student's t; two studies cannot show any.
    Raises: ValueError for an x that is not positive.
    Assumes: intervals close to symmetric in log B_crit; studies with a one-sided answer are left out, with
        a flag, which biases the exponent if they were one-sided because of x.
    """
    for x, _ in studies:
        if not x > 0:
            raise ValueError(f"x: {x} must be positive")
    flags = [f"x = {x:g}: no two-sided B_crit ({b.reason}); left out" for x, b in studies if not _usable(b)]
    used = [(x, b) for x, b in studies if _usable(b)]
    if len({x for x, _ in used}) < 2:
        unknown = Estimate(value=None, low=None, high=None, reason="needs B_crit at two values of x or more")
        return PowerLaw(exponent=unknown, prefactor=unknown, num_studies=len(used), flags=flags)
    log_x = np.log([x for x, _ in used])
    log_b = np.log([b.value for _, b in used if b.value is not None])
    variance = np.array([_log_variance(b) for _, b in used])
    freedom = len(used) - 2
    coefficients, covariance, residual = _line(log_x, log_b, variance)
    scatter = between_variance(residual, variance, freedom)
    if scatter > 0.0:
        coefficients, covariance, _ = _line(log_x, log_b, variance + scatter)
        flags.append(
            f"studies scatter by {100 * math.sqrt(scatter):.2g} % about the power law, beyond their intervals"
        )
    quantile = float(student_t.ppf(0.975, freedom)) if scatter > 0.0 else NORMAL_95
    half = quantile * np.sqrt(np.diag(covariance))
    intercept, slope = float(coefficients[0]), float(coefficients[1])
    return PowerLaw(
        exponent=Estimate(value=slope, low=slope - float(half[1]), high=slope + float(half[1])),
        prefactor=Estimate(
            value=math.exp(intercept),
            low=math.exp(intercept - float(half[0])),
            high=math.exp(intercept + float(half[0])),
        ),
        num_studies=len(used),
        flags=flags,
    )


def _usable(estimate: Estimate) -> bool:
    return None not in (estimate.value, estimate.low, estimate.high) and (estimate.low or 0.0) > 0.0


def _log_variance(estimate: Estimate) -> float:
    """Of log B_crit, from a 95 % interval."""
    if estimate.low is None or estimate.high is None:
        raise AssertionError("only two-sided estimates enter")
    return max((math.log(estimate.high / estimate.low) / (2.0 * NORMAL_95)) ** 2, 1e-12)


def _line(x: np.ndarray, y: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted least squares of y on 1, x: coefficients [2], covariance [2, 2], residual [n]."""
    design = np.column_stack([np.ones(len(x)), x])
    covariance = np.linalg.inv(design.T @ (design / variance[:, None]))
    coefficients = covariance @ (design.T @ (y / variance))
    return coefficients, covariance, y - design @ coefficients
