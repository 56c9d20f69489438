"""A model of seconds per optimizer step over (b, N, G), fitted from a few probes.

    t = c + G·a + (B/N)·k  +  [N > 1]·(c' + G·a' + (B/N)·k') + (N − 1)/N·w

one pass costs a fixed part `a` and a part per example `k`; a step costs `c` once (optimizer, bookkeeping)
and, with more than one rank, a sync whose ring volume grows as (N − 1)/N, beside what sharing a host costs.
Every term is non-negative.
Assumes: gradients synced once per optimizer step, and time linear in b between probes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import t as student_t

from gasweep.analysis.estimate import Estimate

MIN_PROBES = 4


@dataclass(frozen=True, kw_only=True)
class ProbePoint:
    """One (b, N, G) layout; `seconds` per optimizer step where it was measured."""

    micro_batch_size: int
    world_size: int
    accumulation_steps: int
    effective_batch_size: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Mean seconds per optimizer step of one measurement. standard_error: None where too few steps tell."""

    mean: float
    standard_error: float | None
    degrees_of_freedom: int


@dataclass(frozen=True, kw_only=True)
class StepTimeModel:
    """Fitted coefficients, and how far leave-one-out predictions missed (in log seconds)."""

    coefficients: NDArray[np.float64]
    log_error: float
    degrees_of_freedom: int
    world_sizes: frozenset[int]
    micro_batch_range: tuple[int, int]

    def predict(self, point: ProbePoint) -> Estimate:
        """Seconds per optimizer step with a 95 % prediction interval.

        None with a reason for a world size above 1 when none was probed (the sync was never seen), and for a
        micro-batch size outside the probed range (where time need not be linear).
        """
        low, high = self.micro_batch_range
        if not low <= point.micro_batch_size <= high:
            return _unknown(f"micro_batch_size={point.micro_batch_size} is outside the probed {low}..{high}")
        if point.world_size not in self.world_sizes:
            known = sorted(self.world_sizes)
            return _unknown(f"world_size={point.world_size} was not probed (probed: {known})")
        return self.around(float(_features(point) @ self.coefficients))

    def around(self, seconds: float, *, relative_error: float = 0.0) -> Estimate:
        """`seconds` with a 95 % interval for another measurement of the same: the misfit of the measured
        points joined with a standard error of its own.

        Assumes: errors log-normal. The law's own misfit, which is no error of a measurement, widens it.
        """
        error = math.hypot(self.log_error, relative_error)
        spread = float(student_t.ppf(0.975, self.degrees_of_freedom)) * error
        return Estimate(value=seconds, low=seconds * math.exp(-spread), high=seconds * math.exp(spread))


def fit_step_time(probes: Sequence[ProbePoint]) -> StepTimeModel | None:
    """Fit the model by non-negative least squares on relative errors; None below four measured probes.

    The error is the root mean square of leave-one-out residuals, so it holds the model's own misfit.
    """
    measured = [probe for probe in probes if probe.seconds is not None and probe.seconds > 0]
    if len(measured) < MIN_PROBES:
        return None
    rows = np.array([_features(probe) for probe in measured])
    seconds = np.array([probe.seconds for probe in measured], dtype=float)
    coefficients = _solve(rows, seconds)
    residuals = []
    for i in range(len(measured)):
        others = np.arange(len(measured)) != i
        predicted = float(rows[i] @ _solve(rows[others], seconds[others]))
        if predicted > 0:
            residuals.append(math.log(seconds[i] / predicted))
    sizes = [probe.micro_batch_size for probe in measured]
    active = int(np.count_nonzero(coefficients))
    return StepTimeModel(
        coefficients=coefficients,
        log_error=math.sqrt(float(np.mean(np.square(residuals)))) if residuals else math.log(2),
        degrees_of_freedom=max(1, len(measured) - active),
        world_sizes=frozenset(probe.world_size for probe in measured),
        micro_batch_range=(min(sizes), max(sizes)),
    )


def fraction_saved(cost: StepCost, without: StepCost) -> Estimate:
    """1 - cost / without, with the 95 % interval that the scatter of both sides' steps gives.

    Without the bounds where a side has no standard error.
    Assumes: errors independent and log-normal; what the machine does differently at the time of one side only
        is in neither's scatter.
    """
    ratio = cost.mean / without.mean
    spread = _log_spread(cost, without)
    if spread is None:
        return Estimate(value=1 - ratio, low=None, high=None)
    return Estimate(value=1 - ratio, low=1 - ratio * math.exp(spread), high=1 - ratio * math.exp(-spread))


def _log_spread(*sides: StepCost) -> float | None:
    """Half-width of the 95 % interval of a log ratio; degrees of freedom by Welch and Satterthwaite."""
    terms = []
    for side in sides:
        if side.standard_error is None or side.degrees_of_freedom < 1:
            return None
        terms.append(((side.standard_error / side.mean) ** 2, side.degrees_of_freedom))
    total = math.fsum(variance for variance, _ in terms)
    if total == 0:
        return 0.0
    freedom = total**2 / math.fsum(variance**2 / degrees for variance, degrees in terms)
    return float(student_t.ppf(0.975, freedom)) * math.sqrt(total)


def _features(point: ProbePoint) -> NDArray[np.float64]:
    n, g = point.world_size, point.accumulation_steps
    share = point.effective_batch_size / n
    many = 1.0 if n > 1 else 0.0
    return np.array([1.0, g, share, many, many * g, many * share, (n - 1) / n])


def _solve(rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    solution, _ = nnls(rows / seconds[:, None], np.ones(len(seconds)))
    return np.asarray(solution, dtype=np.float64)


def _unknown(reason: str) -> Estimate:
    return Estimate(value=None, low=None, high=None, reason=reason)
