"""The analytic task against its own truth: gradients, noise, and SGD runs against the exact recursion."""

import math

import numpy as np
import pytest
import torch

from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.noisy_quadratic import expected_loss, steps_to_target
from gasweep.analysis.observation import Observation
from gasweep.analysis.optimal_rate import optimal_rates, planted_law
from gasweep.errors import TaskError
from gasweep.tasks import NoisyQuadratic
from gasweep.tasks.counter_noise import random_words, uniform, unit_noise

BOTH = [NoisyQuadratic(dimension=12), NoisyQuadratic(dimension=12, noise="multiplicative")]
KINDS = ["additive", "multiplicative"]


def per_example_gradients(task, model, indices):
    """[n, d] in float64."""
    model = model.double()
    noise = task.train_data(root=None).batch(indices).double()
    losses = task.group_losses(model, noise)
    one_each = torch.eye(len(losses), dtype=torch.float64)
    (rows,) = torch.autograd.grad(losses, model.theta, grad_outputs=one_each, is_grads_batched=True)
    return rows.numpy()


@pytest.mark.parametrize("task", BOTH, ids=KINDS)
def test_true_moments_are_those_of_the_per_example_gradients(task):
    model = task.build_model()
    with torch.no_grad():
        model.theta.mul_(torch.linspace(0.2, 1.5, task.dimension))
    num_examples = 1000
    gradients = per_example_gradients(task, model, np.arange(num_examples))
    mean, variance = gradients.mean(axis=0), gradients.var(axis=0, ddof=1)
    expected = task.problem().curvatures * model.theta.detach().double().numpy()
    assert np.all(np.abs(mean - expected) < 4.5 * np.sqrt(variance / num_examples))
    assert task.true_grad_sq_norm(model) == pytest.approx(np.sum(expected**2), rel=1e-6)
    trace_error = math.sqrt(2.0 / num_examples * np.sum(variance**2))
    assert abs(variance.sum() - task.true_grad_noise_trace(model)) < 4.5 * trace_error
    ratio = task.true_grad_noise_trace(model) / task.true_grad_sq_norm(model)
    assert task.true_noise_scale(model) == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("noise", KINDS)
@pytest.mark.parametrize("noise_scale", [0.0, 3.0, 500.0])
def test_the_planted_noise_scale_holds_at_the_start(noise, noise_scale):
    task = NoisyQuadratic(noise=noise, noise_scale=noise_scale)
    assert task.true_noise_scale(task.build_model()) == pytest.approx(noise_scale, rel=1e-6)


def test_noise_scale_moves_as_planted():
    """Halving θ quarters |G|²: four times the noise scale if the noise stays, the same if it shrinks too."""
    for noise, factor in (("additive", 4.0), ("multiplicative", 1.0)):
        task = NoisyQuadratic(noise=noise, noise_scale=7.0)
        model = task.build_model()
        with torch.no_grad():
            model.theta.mul_(0.5)
        assert task.true_noise_scale(model) == pytest.approx(7.0 * factor, rel=1e-6)


def test_noise_scale_at_the_optimum_is_infinite():
    task = NoisyQuadratic()
    model = task.build_model()
    with torch.no_grad():
        model.theta.zero_()
    assert task.true_noise_scale(model) == math.inf


def test_truth_through_a_wrapper():
    task = NoisyQuadratic(dimension=5)
    model = task.build_model()
    wrapped = torch.nn.Sequential(model)
    assert task.true_noise_scale(wrapped) == task.true_noise_scale(model)
    with pytest.raises(TaskError, match="Linear has no parameter 'theta'"):
        task.true_noise_scale(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("alignment", [-1.0, 0.0, 1.0, 2.0])
def test_additive_noise_follows_the_curvature(alignment):
    problem = NoisyQuadratic(noise_alignment=alignment).problem()
    ratio = problem.noise_variances / problem.curvatures**alignment
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


def test_initial_loss_is_shared_equally():
    task = NoisyQuadratic(dimension=8, initial_loss=3.0, condition_number=50.0)
    problem = task.problem()
    shares = 0.5 * problem.curvatures * problem.initial**2
    np.testing.assert_allclose(shares, 3.0 / 8, rtol=1e-12)
    assert problem.curvatures[0] / problem.curvatures[-1] == pytest.approx(50.0)
    assert NoisyQuadratic(dimension=1).problem().curvatures.tolist() == [1.0]


@pytest.mark.parametrize("task", BOTH, ids=KINDS)
def test_evaluation_is_the_exact_expected_loss(task):
    model = task.build_model().double()
    (batch,) = task.eval_batches(root=None, batch_size=1024, max_examples=None)
    with torch.no_grad():
        total, count = task.eval_sums(model, batch)["eval_loss"]
    theta = model.theta.detach().numpy()
    assert count == 1.0
    assert total == pytest.approx(float(0.5 * np.sum(task.problem().curvatures * theta**2)), rel=1e-6)
    drawn = task.train_data(root=None).batch(np.arange(200_000))
    with torch.no_grad():
        losses = task.group_losses(model, drawn)
    assert abs(float(losses.mean()) - total) < 4.5 * float(losses.std()) / math.sqrt(200_000)


def loss_curve(task, *, batch_size, rate, num_steps, seed):
    """eval_loss after every step of plain SGD in torch, fresh examples in every step."""
    data, model = task.train_data(root=None), task.build_model().double()
    (held_out,) = task.eval_batches(root=None, batch_size=1, max_examples=None)
    losses = []
    for step in range(num_steps):
        indices = np.arange(batch_size) + batch_size * (step + num_steps * seed)
        result = task.loss(model, data.batch(indices))
        (gradient,) = torch.autograd.grad(result.total / result.num_items, model.theta)
        with torch.no_grad():
            model.theta -= rate * gradient
            losses.append(task.eval_sums(model, held_out)["eval_loss"][0])
    return np.array(losses)


@pytest.mark.parametrize(
    ("noise", "batch_size", "rate"),
    [("additive", 8, 0.3), ("additive", 64, 1.2), ("multiplicative", 16, 0.2)],
)
def test_training_follows_the_exact_recursion(noise, batch_size, rate):
    task = NoisyQuadratic(dimension=32, noise=noise)
    num_steps, num_seeds = 60, 40
    curves = np.array(
        [
            loss_curve(task, batch_size=batch_size, rate=rate, num_steps=num_steps, seed=seed)
            for seed in range(num_seeds)
        ]
    )
    error = curves.std(axis=0, ddof=1) / math.sqrt(num_seeds)
    problem = task.problem()
    exact = np.array(
        [
            expected_loss(problem, optimizer_steps=step, batch_size=batch_size, learning_rate=rate)
            for step in range(1, num_steps + 1)
        ]
    )
    assert np.all(np.abs(curves.mean(axis=0) - exact) < 4.5 * error)
    assert np.max(error / exact) < 0.1


def test_the_mean_curve_crosses_the_target_where_the_recursion_says():
    task = NoisyQuadratic(dimension=256)
    rate, batch_size, target = 0.7, 64, 0.1
    exact = steps_to_target(task.problem(), batch_size=batch_size, learning_rate=rate, target=target)
    curves = [loss_curve(task, batch_size=batch_size, rate=rate, num_steps=60, seed=s) for s in range(8)]
    mean = np.mean(curves, axis=0)
    first = int(np.argmax(mean <= target))
    assert mean[first] <= target
    assert first + 1 == pytest.approx(exact, rel=0.05, abs=1.0)


def test_unit_noise_has_mean_zero_and_variance_one():
    num_examples, dimension = 50_000, 6
    noise = unit_noise(np.arange(num_examples), dimension=dimension, seed=3).astype(np.float64)
    count = noise.size
    assert abs(noise.mean()) < 4.5 / math.sqrt(count)
    assert abs(noise.var() - 1.0) < 4.5 * math.sqrt(2.0 / count)
    assert abs((noise**4).mean() - 3.0) < 4.5 * math.sqrt(96.0 / count) + 0.001
    correlations = np.corrcoef(noise.T) - np.eye(dimension)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(num_examples)
    lagged = np.mean(noise[1:] * noise[:-1], axis=0)
    assert np.abs(lagged).max() < 4.5 / math.sqrt(num_examples)


def test_unit_noise_is_a_function_of_index_and_seed():
    indices = np.array([5, 2**40, 0, 5], dtype=np.int64)
    noise = unit_noise(indices, dimension=5, seed=1)
    assert noise.shape == (4, 5)
    assert np.array_equal(noise[0], noise[3])
    assert not np.array_equal(noise[0], noise[1])
    assert np.array_equal(noise[1:2], unit_noise(indices[1:2], dimension=5, seed=1))
    assert not np.array_equal(noise, unit_noise(indices, dimension=5, seed=2))
    assert unit_noise(indices[:0], dimension=5, seed=1).shape == (0, 5)


def test_random_words_are_splitmix64():
    """The published stream of seed 1234567 (Vigna's splitmix64.c): counters from the seed's own offset."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    inverse = pow(int(golden), -1, 2**64)
    start = np.array([1234567 * inverse % 2**64 + i for i in range(3)], dtype=np.uint64)
    words = random_words(start, seed=0)
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_is_in_the_unit_interval():
    values = uniform(np.arange(10_000), seed=0)
    assert 0.0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1.0
    assert abs(values.mean() - 0.5) < 4.5 * math.sqrt(1 / 12 / 10_000)


def test_huge_data_sets_cost_nothing():
    data = NoisyQuadratic(num_examples=2**48).train_data(root=None)
    assert len(data) == 2**48
    assert data.batch(np.array([2**48 - 1])).shape == (1, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimension": 0}, "dimension=0 must be a whole number >= 1"),
        ({"condition_number": 0.5}, "condition_number=0.5 must be a finite number >= 1"),
        ({"noise_scale": -1.0}, "noise_scale=-1.0 must be a finite number >= 0"),
        ({"initial_loss": 0.0}, "initial_loss=0.0 must be a finite number > 0"),
        ({"noise": "white"}, "noise='white' must be one of additive, multiplicative"),
        ({"num_examples": 0}, "num_examples=0"),
    ],
)
def test_impossible_arguments(arguments, message):
    with pytest.raises(TaskError, match=f"NoisyQuadratic: {message}"):
        NoisyQuadratic(**arguments)


def test_a_data_root_is_refused():
    with pytest.raises(TaskError, match=r"data\.root='/data' has no use here, its data is computed"):
        NoisyQuadratic().train_data(root="/data")


def scheduled_steps(task, *, batch_size, rates, seed, target):
    """First crossing of a run with one rate per step, interpolated in log loss; examples are its own."""
    data, model = task.train_data(root=None), task.build_model().double()
    weights = torch.tensor(task.problem().curvatures)
    last = math.inf
    for step, rate in enumerate(rates):
        indices = np.arange(batch_size) + batch_size * step + 10**9 * (1000 * batch_size + seed)
        result = task.loss(model, data.batch(indices))
        (gradient,) = torch.autograd.grad(result.total / result.num_items, model.theta)
        with torch.no_grad():
            model.theta -= rate * gradient
            loss = float(0.5 * torch.sum(weights * model.theta**2))
        if loss <= target:
            return step + math.log(last / target) / math.log(last / loss)
        last = loss
    raise AssertionError("target not reached")


def test_the_fit_recovers_the_planted_pair_from_trained_runs():
    """With the per-step optimal rate, where S = S_min(1 + B_crit/B) holds to 0.1 %."""
    task = NoisyQuadratic(
        dimension=64, condition_number=10.0, noise="multiplicative", noise_scale=50.0, num_examples=2**48
    )
    damping, target = 0.1, 0.1
    law = planted_law(task.problem(), target=target, damping=damping)
    observations = []
    for batch_size in (8, 32, 128, 512):
        rates, _ = optimal_rates(task.problem(), batch_size=batch_size, target=target / 2, damping=damping)
        for seed in range(3):
            steps = scheduled_steps(task, batch_size=batch_size, rates=rates, seed=seed, target=target)
            observations.append(Observation(batch_size=batch_size, steps=steps, seed=seed))
    result = fit_critical_batch_size(observations)
    for planted, estimate in (
        (law.critical_batch_size, result.critical_batch_size),
        (law.min_steps, result.min_steps),
        (law.min_examples, result.min_examples),
    ):
        assert estimate.low <= planted <= estimate.high
        assert estimate.high / estimate.low < 1.2
