"""The exact recursion against Monte Carlo, closed forms and limits."""

import math

import numpy as np
import pytest

from gasweep.analysis.noisy_quadratic import (
    QuadraticProblem,
    best_learning_rate,
    expected_loss,
    moments_after,
    steps_to_target,
)
from gasweep.analysis.optimal_rate import optimal_rate, optimal_rates, planted_law

ADDITIVE = QuadraticProblem(
    curvatures=np.array([1.0, 0.3, 0.05]),
    initial=np.array([1.0, -2.0, 3.0]),
    noise_variances=np.array([2.0, 0.5, 0.1]),
)
MULTIPLICATIVE = QuadraticProblem(
    curvatures=np.geomspace(1.0, 0.01, 16),
    initial=np.sqrt(2.0 / (16 * np.geomspace(1.0, 0.01, 16))),
    noise_variances=np.zeros(16),
    relative_noise_variance=100.0,
)
NOISELESS = QuadraticProblem(
    curvatures=np.array([0.5]), initial=np.array([2.0]), noise_variances=np.array([0.0])
)


def simulate(problem, *, num_steps, batch_size, rates, num_runs, seed):
    """θ of every run after every step, shape [num_steps + 1, num_runs, d]."""
    generator = np.random.default_rng(seed)
    theta = np.tile(problem.initial, (num_runs, 1))
    path = [theta]
    for step in range(num_steps):
        mean = problem.curvatures * theta
        variance = problem.relative_noise_variance * mean**2 + problem.noise_variances
        noise = generator.normal(size=theta.shape) * np.sqrt(variance / batch_size)
        theta = theta - rates[step] * (mean + noise)
        path.append(theta)
    return np.array(path)


@pytest.mark.parametrize("problem", [ADDITIVE, MULTIPLICATIVE], ids=["additive", "multiplicative"])
def test_moments_agree_with_monte_carlo(problem):
    num_steps, num_runs, batch_size, rate = 20, 5_000, 400, 0.3
    path = simulate(
        problem,
        num_steps=num_steps,
        batch_size=batch_size,
        rates=[rate] * num_steps,
        num_runs=num_runs,
        seed=0,
    )
    for step in (0, 1, 7, num_steps):
        exact = moments_after(problem, optimizer_steps=step, batch_size=batch_size, learning_rate=rate)
        for samples, expected in zip((path[step], path[step] ** 2), exact, strict=True):
            error = samples.std(axis=0) / math.sqrt(num_runs)
            assert np.all(np.abs(samples.mean(axis=0) - expected) <= 4.5 * error + 1e-9 * np.abs(expected))


def test_closed_form_equals_stepping():
    rate, batch_size = 0.7, 3.0
    second = ADDITIVE.initial**2
    added = rate**2 * ADDITIVE.noise_variances / batch_size
    for step in range(1, 60):
        second = (1 - rate * ADDITIVE.curvatures) ** 2 * second + added
        _, closed = moments_after(ADDITIVE, optimizer_steps=step, batch_size=batch_size, learning_rate=rate)
        np.testing.assert_allclose(closed, second, rtol=1e-12)


def test_growth_of_exactly_one_loses_nothing():
    """At rate 2/h the noise adds up linearly: (1 - εh)² = 1."""
    problem = QuadraticProblem(
        curvatures=np.array([1.0]), initial=np.array([1.0]), noise_variances=np.array([0.25])
    )
    _, second = moments_after(problem, optimizer_steps=10, batch_size=1.0, learning_rate=2.0)
    assert second[0] == pytest.approx(1.0 + 10 * 4.0 * 0.25, rel=1e-12)


def test_true_gradient_moments():
    second = np.array([1.0, 4.0, 9.0])
    assert ADDITIVE.grad_sq_norm(second) == pytest.approx(1.0 + 0.09 * 4.0 + 0.0025 * 9.0)
    assert ADDITIVE.grad_noise_trace(second) == pytest.approx(2.6)
    ratio = MULTIPLICATIVE.grad_noise_trace(np.ones(16)) / MULTIPLICATIVE.grad_sq_norm(np.ones(16))
    assert ratio == pytest.approx(100.0)


def test_steps_to_target_of_one_noiseless_coordinate():
    """L = ½·½·4·(1 - 0.1·0.5)^(2t) falls to 0.5 between whole steps: interpolated linearly."""
    exact = math.log(0.5) / (2 * math.log(0.95))
    found = steps_to_target(NOISELESS, batch_size=1, learning_rate=0.1, target=0.5)
    before, after = (0.95 ** (2 * step) for step in (math.floor(exact), math.ceil(exact)))
    assert found == pytest.approx(math.floor(exact) + (before - 0.5) / (before - after))
    assert abs(found - exact) < 0.02


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1e9])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.9, 1.99])
@pytest.mark.parametrize("target", [1.0, 0.1, 0.02])
def test_steps_to_target_is_the_first_crossing(batch_size, rate, target):
    found = steps_to_target(ADDITIVE, batch_size=batch_size, learning_rate=rate, target=target)
    losses = [
        expected_loss(ADDITIVE, optimizer_steps=step, batch_size=batch_size, learning_rate=rate)
        for step in range(500)
    ]
    below = [step for step, loss in enumerate(losses) if loss <= target]
    if found is None:
        assert not below
    elif found < len(losses) - 1:
        assert below[0] == math.ceil(found)
    else:
        assert not below


def test_a_loss_that_dips_and_rises_again_is_caught_in_the_dip():
    """One coordinate falls fast, another rises slowly from its optimum to a noise floor above the target."""
    problem = QuadraticProblem(
        curvatures=np.array([1.0, 0.01]), initial=np.array([1.0, 0.0]), noise_variances=np.array([0.0, 1.0])
    )
    found = steps_to_target(problem, batch_size=1, learning_rate=0.5, target=0.05)
    assert found is not None
    assert expected_loss(problem, optimizer_steps=10**6, batch_size=1, learning_rate=0.5) > 0.1
    assert expected_loss(problem, optimizer_steps=math.ceil(found), batch_size=1, learning_rate=0.5) <= 0.05


def test_a_target_below_the_noise_floor_is_never_reached():
    floor = expected_loss(ADDITIVE, optimizer_steps=10**7, batch_size=10, learning_rate=0.5)
    assert steps_to_target(ADDITIVE, batch_size=10, learning_rate=0.5, target=0.99 * floor) is None
    assert steps_to_target(ADDITIVE, batch_size=10, learning_rate=0.5, target=1.01 * floor) is not None


def test_an_unstable_rate_never_reaches_the_target():
    assert steps_to_target(ADDITIVE, batch_size=10, learning_rate=2.01, target=0.01) is None


def test_a_target_already_met_takes_no_steps():
    assert steps_to_target(ADDITIVE, batch_size=10, learning_rate=0.1, target=100.0) == 0.0


@pytest.mark.parametrize("batch_size", [1.0, 30.0, 1000.0])
def test_no_other_constant_rate_is_faster_than_the_best(batch_size):
    best = best_learning_rate(ADDITIVE, batch_size=batch_size, target=0.1)
    assert best is not None
    rate, steps = best
    assert steps == steps_to_target(ADDITIVE, batch_size=batch_size, learning_rate=rate, target=0.1)
    for other in np.geomspace(rate / 30, min(30 * rate, 1.999), 80):
        found = steps_to_target(ADDITIVE, batch_size=batch_size, learning_rate=other, target=0.1)
        assert found is None or found >= steps * (1 - 2e-3)


def test_no_rate_reaches_an_impossible_target():
    impossible = QuadraticProblem(
        curvatures=np.array([1.0]), initial=np.array([1.0]), noise_variances=np.array([1e30])
    )
    assert best_learning_rate(impossible, batch_size=1, target=0.01) is None


def test_the_optimal_rate_minimises_the_next_expected_loss():
    second, batch_size = np.array([1.0, 4.0, 9.0]), 5.0

    def next_loss(rate):
        growth = (1 - rate * ADDITIVE.curvatures) ** 2
        return ADDITIVE.loss(growth * second + rate**2 * ADDITIVE.noise_variances / batch_size)

    rate = optimal_rate(ADDITIVE, second, batch_size=batch_size)
    assert next_loss(rate) < min(next_loss(rate * 0.999), next_loss(rate * 1.001))


def test_the_optimal_rate_is_eps_max_over_one_plus_noise_over_batch():
    """McCandlish et al. 2018, eq. 2.6, with B_noise = tr(HΣ)/(GᵀHG)."""
    second = np.array([1.0, 4.0, 9.0])
    h = ADDITIVE.curvatures
    eps_max = np.sum(h**2 * second) / np.sum(h**3 * second)
    noise = np.sum(h * ADDITIVE.noise_variances) / np.sum(h**3 * second)
    for batch_size in (1.0, 10.0, 1e6):
        rate = optimal_rate(ADDITIVE, second, batch_size=batch_size)
        assert rate == pytest.approx(eps_max / (1 + noise / batch_size), rel=1e-12)


@pytest.mark.parametrize(
    ("problem", "batch_size", "damping"),
    [(ADDITIVE, 10.0, 1.0), (MULTIPLICATIVE, 200.0, 0.2)],
    ids=["additive", "multiplicative"],
)
def test_optimal_rates_reach_the_target_in_simulation(problem, batch_size, damping):
    target = 0.2
    rates, steps = optimal_rates(problem, batch_size=batch_size, target=target, damping=damping)
    assert len(rates) == math.ceil(steps)
    path = simulate(
        problem, num_steps=len(rates), batch_size=batch_size, rates=rates, num_runs=20_000, seed=1
    )
    losses = 0.5 * np.sum(problem.curvatures * path[-2:] ** 2, axis=2)
    before, after = losses.mean(axis=1)
    error = 4.5 * losses.std(axis=1) / math.sqrt(losses.shape[1])
    assert after - error[1] <= target < before + error[0]
    assert error.max() < 0.05 * target


def largest_deviation(problem, *, target, damping, batch_sizes):
    law = planted_law(problem, target=target, damping=damping)
    steps = [optimal_rates(problem, batch_size=b, target=target, damping=damping)[1] for b in batch_sizes]
    return max(abs(s / law.steps(b) - 1.0) for s, b in zip(steps, batch_sizes, strict=True))


def test_the_law_is_exact_with_noise_proportional_to_the_gradient():
    """Between its two planted limits S(B) stays within 1 % of the hyperbola at the greedy optimum."""
    batch_sizes = 2.0 ** np.arange(2, 14)
    assert largest_deviation(MULTIPLICATIVE, target=0.05, damping=1.0, batch_sizes=batch_sizes) < 0.01


def test_the_law_becomes_exact_with_additive_noise_as_steps_become_small():
    problem = QuadraticProblem(
        curvatures=np.geomspace(1.0, 0.1, 8), initial=np.ones(8), noise_variances=np.full(8, 0.2)
    )
    batch_sizes = 4.0 ** np.arange(1, 6)
    deviations = [
        largest_deviation(problem, target=0.2, damping=damping, batch_sizes=batch_sizes)
        for damping in (1.0, 0.1, 0.01)
    ]
    assert deviations[0] > 3 * deviations[1] > 9 * deviations[2]
    assert deviations[2] < 0.005


def test_planted_limits_are_the_limits_of_the_recursion():
    law = planted_law(ADDITIVE, target=1.0)
    _, at_large = optimal_rates(ADDITIVE, batch_size=1e12, target=1.0)
    _, at_small = optimal_rates(ADDITIVE, batch_size=0.01, target=1.0)
    assert at_large == pytest.approx(law.min_steps, rel=1e-6)
    assert 0.01 * at_small == pytest.approx(law.min_examples, rel=5e-3)
    assert law.critical_batch_size == pytest.approx(law.min_examples / law.min_steps)


def test_planted_law_of_one_coordinate_in_closed_form():
    """h = 1, damping ρ, κ²: E[θ²] falls by 1 - (2ρ - ρ²) per step at B = ∞, so S_min = log ratio / that."""
    problem = QuadraticProblem(
        curvatures=np.ones(1), initial=np.ones(1), noise_variances=np.zeros(1), relative_noise_variance=50.0
    )
    damping, target = 0.1, 0.01
    law = planted_law(problem, target=target, damping=damping)
    decrease = 2 * damping - damping**2
    log_ratio = math.log(0.5 / target)
    assert law.min_steps == pytest.approx(log_ratio / -math.log1p(-decrease), rel=1e-9)
    assert law.min_examples == pytest.approx(log_ratio * 50.0 / decrease, rel=1e-6)


def test_no_noise_has_no_critical_batch_size():
    with pytest.raises(ValueError, match="no noise"):
        planted_law(NOISELESS, target=0.5)
