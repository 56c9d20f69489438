"""The seeds of one trial in two numbers: mean and median steps, honest about seeds that did not reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student_t

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.observation import Observation


def summarise_steps(seeds: Sequence[Observation]) -> tuple[Estimate, float | None]:
    """Mean steps over seeds with its 95 % interval from these seeds alone, and their median.

    A seed that was not reached leaves the mean bounded from below only, one that had reached by its first
    evaluation from above only; the median stays exact as long as the middle seeds are. The interval is that
    of the geometric mean, moved to the arithmetic one.
    """
    if not seeds:
        return Estimate(value=None, low=None, high=None, reason="no seed"), None
    ordered = sorted(seeds, key=_point)
    middle = ordered[(len(seeds) - 1) // 2 : len(seeds) // 2 + 1]
    median = math.fsum(_point(item) for item in middle) / len(middle)
    known = median if all(item.is_reached and not _is_open_below(item) for item in middle) else None
    values = [_point(item) for item in ordered]
    mean = math.fsum(values) / len(values)
    censored = sum(not item.is_reached for item in seeds)
    early = sum(_is_open_below(item) for item in seeds)
    if early:
        reason = f"{early} of {len(seeds)} seeds had reached the target by their first evaluation"
        return Estimate(value=None, low=None, high=None if censored else mean, reason=reason), known
    if censored:
        reason = f"{censored} of {len(seeds)} seeds did not reach the target"
        return Estimate(value=None, low=mean, high=None, reason=reason), known
    if len(values) == 1:
        return Estimate(value=mean, low=None, high=None), known
    factor = math.exp(min(_half_width(values), 700.0 - math.log(mean)))
    return Estimate(value=mean, low=mean / factor, high=mean * factor), known


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    """`estimate` times a positive number."""
    ends = [None if end is None else end * factor for end in (estimate.value, estimate.low, estimate.high)]
    return Estimate(value=ends[0], low=ends[1], high=ends[2], reason=estimate.reason)


def _half_width(values: Sequence[float]) -> float:
    sd = float(np.log(values).std(ddof=1))
    return float(student_t.ppf(0.975, len(values) - 1)) * sd / math.sqrt(len(values))


def _point(item: Observation) -> float:
    if item.censored_at is not None:
        return item.censored_at
    if item.steps is not None:
        return item.steps
    if _is_open_below(item):
        return float(item.high or 0.0)
    return 0.5 * ((item.low or 0.0) + (item.high or 0.0))


def _is_open_below(item: Observation) -> bool:
    """Known only to have reached by `high`: nothing was measured before."""
    return item.steps is None and item.high is not None and not item.low
