"""SGD on a noisy quadratic, in expectation and exactly: the truth that measurements are held against.

The loss is L(θ) = ½Σ_j h_j·θ_j². One example's gradient along coordinate j has mean h_j·θ_j and variance
κ²·(h_j·θ_j)² + s_j² (κ relative, s additive), independently over examples and coordinates; a batch of B
divides the variance by B. Shapes: every array is [d], one entry per coordinate.

Source: Zhang et al. 2019, arXiv:1907.04164, section 3 (the noisy quadratic model and its recursion).
Assumes: an unlimited data set (or one drawn with replacement); plain SGD without momentum or decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEPS_LIMIT = 10**9


@dataclass(frozen=True, kw_only=True)
class QuadraticProblem:
    """What is minimised, and how noisy its gradients are.

    curvatures: h > 0. initial: θ at step 0. noise_variances: s², of one example. relative_noise_variance: κ².
    """

    curvatures: Array
    initial: Array
    noise_variances: Array
    relative_noise_variance: float = 0.0

    def loss(self, second_moments: Array) -> float:
        """E[L] = ½Σh·E[θ²]."""
        return float(0.5 * np.sum(self.curvatures * second_moments))

    def grad_sq_norm(self, second_moments: Array) -> float:
        """|G|² = Σh²·E[θ²]; at a single θ pass θ²."""
        return float(np.sum(self.curvatures**2 * second_moments))

    def grad_noise_trace(self, second_moments: Array) -> float:
        """tr Σ of one example's gradient."""
        relative = self.relative_noise_variance * self.grad_sq_norm(second_moments)
        return float(relative + np.sum(self.noise_variances))


def moments_after(
    problem: QuadraticProblem, *, optimizer_steps: int, batch_size: float, learning_rate: float
) -> tuple[Array, Array]:
    """(E[θ], E[θ²]) after `optimizer_steps` steps at a constant rate, in closed form.

    E[θ'] = (1 - εh)·E[θ];  E[θ'²] = a·E[θ²] + ε²s²/B with a = (1 - εh)² + ε²h²κ²/B.
    """
    mean = problem.initial * (1.0 - learning_rate * problem.curvatures) ** optimizer_steps
    growth, added = _recursion(problem, batch_size=batch_size, learning_rate=learning_rate)
    return mean, _second_moments(problem, growth, added, optimizer_steps)


def expected_loss(
    problem: QuadraticProblem, *, optimizer_steps: int, batch_size: float, learning_rate: float
) -> float:
    """E[L] after `optimizer_steps` steps at a constant rate."""
    growth, added = _recursion(problem, batch_size=batch_size, learning_rate=learning_rate)
    return problem.loss(_second_moments(problem, growth, added, optimizer_steps))


def steps_to_target(
    problem: QuadraticProblem, *, batch_size: float, learning_rate: float, target: float
) -> float | None:
    """Optimizer steps at which E[L] first reaches `target` at a constant rate; None if it never does.

    The first whole step at or below the target, interpolated linearly in the loss within it: what an
    evaluation after every step would give. Exact: each coordinate's E[θ²] moves monotonically between its
    start and its limit, so the lower envelope of a range of steps bounds E[L] over it, and ranges that cannot
    hold the crossing are skipped without being looked at.
    """
    growth, added = _recursion(problem, batch_size=batch_size, learning_rate=learning_rate)

    def loss_at(step: int) -> float:
        return problem.loss(_second_moments(problem, growth, added, step))

    if loss_at(0) <= target:
        return 0.0
    start, length = 0, 1
    while start < STEPS_LIMIT:
        crossing = _first_crossing(problem, growth, added, start, start + length, target)
        if crossing is not None:
            before, after = loss_at(crossing - 1), loss_at(crossing)
            return crossing - 1 + (before - target) / (before - after)
        start, length = start + length, 2 * length
        if _never_again(problem, growth, added, start, target):
            return None
    return None


def best_learning_rate(
    problem: QuadraticProblem, *, batch_size: float, target: float
) -> tuple[float, float] | None:
    """(rate, steps) of the constant rate that reaches `target` in the fewest steps; None if none does.

    A geometric scan below the stability limit 2/max(h), then a golden-section search around its minimum.
    """
    limit = 2.0 / float(np.max(problem.curvatures))
    rates = limit * np.geomspace(1e-6, 1.0, 121)

    def steps_at(log_rate: float) -> float:
        found = steps_to_target(
            problem, batch_size=batch_size, learning_rate=math.exp(log_rate), target=target
        )
        return math.inf if found is None else found

    steps = [steps_at(math.log(rate)) for rate in rates]
    best = int(np.argmin(steps))
    if not math.isfinite(steps[best]):
        return None
    low, high = math.log(rates[max(best - 1, 0)]), math.log(rates[min(best + 1, len(rates) - 1)])
    log_rate = _golden_section(steps_at, low, high)
    return math.exp(log_rate), steps_at(log_rate)


def _recursion(problem: QuadraticProblem, *, batch_size: float, learning_rate: float) -> tuple[Array, Array]:
    """(a, c) of E[θ'²] = a·E[θ²] + c."""
    scaled = learning_rate * problem.curvatures
    growth = (1.0 - scaled) ** 2 + scaled**2 * problem.relative_noise_variance / batch_size
    return growth, learning_rate**2 * problem.noise_variances / batch_size


def _second_moments(problem: QuadraticProblem, growth: Array, added: Array, step: int) -> Array:
    """a^t·m_0 + c·(1 + a + ... + a^(t-1)), the sum written so that a -> 1 loses no digits."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        log_growth = np.log(growth)
        power = np.exp(step * log_growth)
        series = np.where(growth == 1.0, float(step), np.expm1(step * log_growth) / (growth - 1.0))
        moments: Array = power * problem.initial**2 + np.where(added > 0.0, added * series, 0.0)
    return moments


def _limits(problem: QuadraticProblem, growth: Array, added: Array) -> Array:
    """E[θ²] after infinitely many steps; infinite where the rate is unstable."""
    with np.errstate(divide="ignore", invalid="ignore"):
        stable = np.where(added > 0.0, added / (1.0 - growth), 0.0)
    moving = (added > 0.0) | (problem.initial != 0.0)
    unstable = np.where(growth == 1.0, np.where(added > 0.0, np.inf, problem.initial**2), np.inf)
    return np.where(growth < 1.0, stable, np.where(moving, unstable, 0.0))


def _never_again(problem: QuadraticProblem, growth: Array, added: Array, step: int, target: float) -> bool:
    now = _second_moments(problem, growth, added, step)
    return problem.loss(np.minimum(now, _limits(problem, growth, added))) >= target


def _first_crossing(
    problem: QuadraticProblem, growth: Array, added: Array, start: int, end: int, target: float
) -> int | None:
    """The first step in (start, end] with E[L] <= target."""
    pending = [(start, end)]
    while pending:
        low, high = pending.pop()
        at_low = _second_moments(problem, growth, added, low)
        at_high = _second_moments(problem, growth, added, high)
        if problem.loss(np.minimum(at_low, at_high)) > target:
            continue
        if high - low == 1:
            if problem.loss(at_high) <= target:
                return high
            continue
        middle = (low + high) // 2
        pending += [(middle, high), (low, middle)]
    return None


def _golden_section(function: Any, low: float, high: float) -> float:
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    inner, outer = high - ratio * (high - low), low + ratio * (high - low)
    at_inner, at_outer = function(inner), function(outer)
    for _ in range(40):
        if at_inner <= at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - ratio * (high - low)
            at_inner = function(inner)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + ratio * (high - low)
            at_outer = function(outer)
    return inner if at_inner <= at_outer else outer
