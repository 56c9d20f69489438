"""The per-step optimal learning rate ε(B) on a noisy quadratic, and the law S_min(1 + B_crit/B) it obeys.

With gradient G, Hessian H and one example's gradient covariance Σ, a step ε with batch B changes the expected
loss by -ε|G|² + ½ε²(GᵀHG + tr(HΣ)/B), least at

    ε(B) = ε_max / (1 + B_noise/B),   ε_max = |G|²/(GᵀHG),   B_noise = tr(HΣ)/(GᵀHG).

Source: McCandlish et al. 2018, arXiv:1812.06162, eq. 2.5 to 2.7 (ε(B) and the gain of a step), eq. 2.11 and
appendix D (the law). Here G, H and Σ are those of the expected moments, so ε depends on (step, B) alone.

Assumes: the law needs the path through parameter space not to depend on B. That is exact in the limit of
small steps (`damping` -> 0), and with noise proportional to the gradient; `planted_law` gives the two
asymptotes, which exist either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gasweep.analysis.noisy_quadratic import Array, QuadraticProblem

RELATIVE_LOSS_STEP = 1e-3
STEPS_LIMIT = 10**7


@dataclass(frozen=True, kw_only=True)
class PlantedLaw:
    """The exact limits of S(B) for B -> ∞ and of B·S(B) for B -> 0, hence a hyperbola."""

    min_steps: float
    min_examples: float

    @property
    def critical_batch_size(self) -> float:
        return self.min_examples / self.min_steps

    def steps(self, batch_size: float) -> float:
        """What the hyperbola through both limits says at `batch_size`."""
        return self.min_steps * (1.0 + self.critical_batch_size / batch_size)


def optimal_rate(
    problem: QuadraticProblem, second_moments: Array, *, batch_size: float, damping: float = 1.0
) -> float:
    """damping·ε(B) at these moments; `damping` in (0, 1], 1 being the greedy optimum."""
    h = problem.curvatures
    noise = problem.relative_noise_variance * h**2 * second_moments + problem.noise_variances
    denominator = np.sum(h**3 * second_moments) + np.sum(h * noise) / batch_size
    return damping * problem.grad_sq_norm(second_moments) / float(denominator)


def optimal_rates(
    problem: QuadraticProblem, *, batch_size: float, target: float, damping: float = 1.0
) -> tuple[list[float], float]:
    """(rate of each step until E[L] reaches `target`, interpolated optimizer steps to it).

    The crossing is interpolated linearly in log loss: the loss falls by a factor per step, not by an amount.
    """
    moments: Array = problem.initial**2
    rates: list[float] = []
    previous = loss = problem.loss(moments)
    while loss > target and len(rates) < STEPS_LIMIT:
        rate = optimal_rate(problem, moments, batch_size=batch_size, damping=damping)
        scaled = rate * problem.curvatures
        growth = (1.0 - scaled) ** 2 + scaled**2 * problem.relative_noise_variance / batch_size
        moments = growth * moments + rate**2 * problem.noise_variances / batch_size
        rates.append(rate)
        previous, loss = loss, problem.loss(moments)
    if loss > target:
        raise AssertionError(f"target={target} not reached in {STEPS_LIMIT} steps")
    if not rates:
        return [], 0.0
    return rates, len(rates) - 1 + math.log(previous / target) / math.log(previous / loss)


def planted_law(problem: QuadraticProblem, *, target: float, damping: float = 1.0) -> PlantedLaw:
    """The two limits of S(B) under `optimal_rates`, computed apart from any finite B.

    B -> ∞: the noiseless recursion. B -> 0: ε = B·q with q = damping·|G|²/tr(HΣ), so that per example
    dE[θ²]/dE = -2qh·E[θ²] + q²(κ²h²E[θ²] + s²): integrated until the target.
    Raises ValueError for a problem without noise, where B_crit is 0.
    """
    if problem.relative_noise_variance == 0.0 and not np.any(problem.noise_variances):
        raise ValueError("the problem has no noise: every batch size takes the same number of steps")
    _, min_steps = optimal_rates(problem, batch_size=math.inf, target=target, damping=damping)
    return PlantedLaw(
        min_steps=min_steps, min_examples=_examples_in_small_batch_limit(problem, target, damping)
    )


def _examples_in_small_batch_limit(problem: QuadraticProblem, target: float, damping: float) -> float:
    h = problem.curvatures

    def derivative(moments: Array) -> Array:
        noise = problem.relative_noise_variance * h**2 * moments + problem.noise_variances
        q = damping * problem.grad_sq_norm(moments) / float(np.sum(h * noise))
        change: Array = -2.0 * q * h * moments + q**2 * noise
        return change

    moments, examples = problem.initial**2, 0.0
    loss = problem.loss(moments)
    while loss > target:
        stride = RELATIVE_LOSS_STEP * loss / -problem.loss(derivative(moments))
        moments = _runge_kutta(derivative, moments, stride)
        previous, loss = loss, problem.loss(moments)
        examples += stride
    return examples - stride * math.log(target / loss) / math.log(previous / loss)


def _runge_kutta(derivative: Callable[[Array], Array], moments: Array, stride: float) -> Array:
    """One step of the classical fourth-order method."""
    first = derivative(moments)
    second = derivative(moments + 0.5 * stride * first)
    third = derivative(moments + 0.5 * stride * second)
    fourth = derivative(moments + stride * third)
    return moments + stride / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
