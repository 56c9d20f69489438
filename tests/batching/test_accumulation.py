import contextlib
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from gasweep import GradientAccumulation, run_accumulated_step, run_training_steps
from gasweep.errors import BatchError, ConfigError


class Quadratic:
    """f_i(theta) = (theta - a_i)^2 / 2 by hand: sums gradients, divides by what it is told, SGD."""

    def __init__(self, lr):
        self.theta, self.grad, self.lr, self.log = 0.0, 0.0, lr, []

    def __call__(self, group, *, zero_grad, sync_gradients, step_optimizer, loss_divisor, collect_metrics):
        assert sync_gradients == step_optimizer == collect_metrics
        if zero_grad:
            self.grad = 0.0
        self.grad += sum(self.theta - a for a in group) / loss_divisor
        if step_optimizer:
            self.theta -= self.lr * self.grad
            self.log.append(self.theta)
        return len(group)


def test_kwargs_of_three_micro_steps():
    accumulation = GradientAccumulation(steps=3)
    assert [accumulation.train_step_kwargs(i) for i in range(3)] == [
        {
            "zero_grad": i == 0,
            "sync_gradients": i == 2,
            "step_optimizer": i == 2,
            "loss_divisor": 3.0,
            "collect_metrics": i == 2,
        }
        for i in range(3)
    ]
    assert accumulation.enabled
    assert not GradientAccumulation(steps=1).enabled
    assert accumulation.is_first(3)
    assert accumulation.is_last(5)


def test_one_accumulated_step_against_two_updates():
    groups = [[-1.0], [-3.0], [-8.0]]
    once = Quadratic(0.1)
    run_accumulated_step(once, groups, GradientAccumulation(steps=3))
    assert once.log == pytest.approx([-0.4])
    twice = Quadratic(0.1)
    run_training_steps(twice, [[-1.0, -3.0], [-8.0]], GradientAccumulation(steps=1), count_items=_sizes)
    assert twice.log == pytest.approx([-0.2, -0.98])


def test_groups_are_weighted_by_their_counts():
    model = Quadratic(1.0)
    groups = [[-1.0, -3.0], [-8.0]]
    run_accumulated_step(model, groups, GradientAccumulation(steps=2), counts=[2, 1])
    assert model.grad == pytest.approx(4.0)


def test_c07_a_short_last_window_is_an_exact_step_of_its_own():
    constant = _ConstantGradient(0.1)
    made = run_training_steps(constant, range(6), GradientAccumulation(steps=4))
    assert made == 2
    assert constant.weight == pytest.approx(-0.2)


def test_c07_groups_of_4_and_2_examples():
    model = Quadratic(1.0)
    run_accumulated_step(model, [[-1.0] * 4, [-4.0] * 2], GradientAccumulation(steps=2), counts=[4, 2])
    assert model.grad == pytest.approx(2.0)


class _ConstantGradient:
    def __init__(self, lr):
        self.weight, self.grad, self.lr = 0.0, 0.0, lr

    def __call__(self, _, *, zero_grad, step_optimizer, loss_divisor, **__):
        self.grad = (0.0 if zero_grad else self.grad) + 1.0 / loss_divisor
        if step_optimizer:
            self.weight -= self.lr * self.grad


def test_c08_the_global_count_divides_a_summed_loss():
    kwargs = GradientAccumulation(steps=1).train_step_kwargs(0, counts=[1, 3])
    assert (8 + 4) / kwargs["loss_divisor"] == 3.0


def test_c56_no_item_anywhere_divides_by_one():
    assert GradientAccumulation(steps=2).train_step_kwargs(1, counts=[0, 0])["loss_divisor"] == 1.0


def test_c20_no_sync_is_entered_for_all_but_the_last_and_around_the_whole_train_step():
    events = []

    @contextlib.contextmanager
    def no_sync():
        events.append("enter")
        yield
        events.append("exit")

    def train_step(group, **_):
        events.append(group)

    run_accumulated_step(train_step, "abc", GradientAccumulation(steps=3), no_sync=no_sync)
    assert events == ["enter", "a", "exit", "enter", "b", "exit", "c"]


def test_a_stream_is_read_no_further_than_needed():
    stream = iter(range(100))
    made = run_training_steps(
        _ConstantGradient(0.1), stream, GradientAccumulation(steps=3), num_optimizer_steps=2
    )
    assert made == 2
    assert next(stream) == 6


def test_results_and_step_numbers_are_reported():
    seen = []
    run_training_steps(
        lambda group, **_: group * 10,
        [1, 2, 3],
        GradientAccumulation(steps=2),
        on_optimizer_step=lambda step, results: seen.append((step, results)),
    )
    assert seen == [(1, [10, 20]), (2, [30])]


@pytest.mark.parametrize("steps", [0, -1, 1.0, "2", True, None])
def test_steps_must_be_a_whole_number(steps):
    with pytest.raises(ValueError, match="accumulation_steps"):
        GradientAccumulation(steps=steps)


def test_too_many_or_no_groups():
    with pytest.raises(BatchError, match="holds 2 groups"):
        run_accumulated_step(_ConstantGradient(1), [1, 2], GradientAccumulation(steps=1))
    with pytest.raises(BatchError, match="empty"):
        run_accumulated_step(_ConstantGradient(1), [], GradientAccumulation(steps=1))


def test_negative_counts_and_micro_steps_are_refused():
    with pytest.raises(BatchError, match="counts"):
        GradientAccumulation(steps=1).train_step_kwargs(0, counts=[-1])
    with pytest.raises(BatchError, match="micro_step=-1"):
        GradientAccumulation(steps=1).is_last(-1)


def test_from_config():
    class Config:
        gradient_accumulation_steps = 4

    nested = OmegaConf.create({"trainer": {"accumulate": 8}})
    assert GradientAccumulation.from_config({}).steps == 1
    assert GradientAccumulation.from_config({"gradient_accumulation_steps": 2}).steps == 2
    assert GradientAccumulation.from_config(Config()).steps == 4
    assert GradientAccumulation.from_config(nested, key="trainer.accumulate").steps == 8


@pytest.mark.parametrize("value", [None, 2.0, "4", True, 0])
def test_from_config_refuses_what_is_no_whole_number(value):
    with pytest.raises(ConfigError, match="gradient_accumulation_steps"):
        GradientAccumulation.from_config({"gradient_accumulation_steps": value})


def test_the_primitive_needs_no_torch():
    code = (
        "import sys; from gasweep import GradientAccumulation, run_accumulated_step;"
        "assert not {'torch','ray','numpy','omegaconf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _sizes(window):
    return [len(group) for group in window]
