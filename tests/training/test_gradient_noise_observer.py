"""The noise that a run measures of its own steps, over layouts, strategies and modes."""

from __future__ import annotations

import copy

import pytest
import torch

from gasweep.analysis.noise_scale import (
    DUPLICATES,
    STRADDLES_EPOCH,
    TOO_FEW_GROUPS,
    NoiseMeasurement,
    NotMeasured,
    measure_groups,
)
from gasweep.analysis.noise_scale_records import noise_labels, noise_measurements
from gasweep.training.build import build_trainer
from gasweep.training.gradient_noise_observer import SPLIT_EVERY, parameter_label
from gasweep.training.process import ProcessContext
from tests.training.ranks import run_on_ranks
from tests.training.toys import toy_spec, train_toy

ALWAYS = {"enabled": True, "every_optimizer_steps": 1}


def spec(layout, **kwargs):
    kwargs.setdefault("max_optimizer_steps", 3)
    return toy_spec(layout=layout, noise_scale={**ALWAYS, **kwargs.pop("noise_scale", {})}, **kwargs)


def measured(records, **which):
    found = noise_measurements(records, **which)
    assert found
    assert all(isinstance(step, NoiseMeasurement) for step in found), found
    return found


def assert_same(found, expected, rel=2e-5):
    assert len(found) == len(expected) > 0
    for one, two in zip(found, expected, strict=True):
        assert one.grad_noise_trace == pytest.approx(two.grad_noise_trace, rel=rel)
        assert one.grad_sq_norm == pytest.approx(two.grad_sq_norm, rel=rel, abs=rel * two.grad_noise_trace)
        assert (one.num_groups, one.num_examples) == (two.num_groups, two.num_examples)


def reference(run_spec, *, dataset_size: int | None = 64) -> NoiseMeasurement:
    """The first step's noise from separate backwards of its groups."""
    trainer = build_trainer(run_spec, process=ProcessContext())
    layout = run_spec.layout
    plan = trainer.planner.plan(
        optimizer_step=0,
        contributions=0,
        effective_batch_size=run_spec.effective_batch_size,
        micro_batch_size=layout.micro_batch_size,
    )
    each, counts = [], []
    for group in plan.micro_batches:
        model = copy.deepcopy(trainer.parts.module)
        loss = trainer.parts.task.loss(model, group.fetch())
        loss.total.backward()
        each.append(torch.cat([p.grad.double().flatten() for p in model.parameters()]) / loss.num_items)
        counts.append(len(group.indices))
    stacked, n = torch.stack(each), torch.tensor(counts, dtype=torch.float64)
    mean = n @ stacked / n.sum()
    result = measure_groups(
        stacked.square().sum(dim=1).tolist(),
        counts=counts,
        mean_sq_norm=float(mean @ mean),
        dataset_size=dataset_size,
    )
    assert isinstance(result, NoiseMeasurement)
    return result


@pytest.mark.parametrize("batch_size", [16, 14])
def test_a_run_measures_what_separate_backwards_give(batch_size):
    run_spec = spec((4, 1, 4), effective_batch_size=batch_size)
    _, steps, _ = train_toy(spec=run_spec)
    assert_same(measured(steps)[:1], [reference(run_spec)])


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("task", ["ToyRegression", "ToyTokens"])
def test_every_strategy_sees_the_same_groups(strategy, task):
    _, single, _ = train_toy(spec=spec((4, 1, 4), task=task))
    _, steps, _ = run_on_ranks(2, train_toy, spec=spec((4, 2, 2), task=task, strategy=strategy))[0]
    if strategy == "fsdp" and task == "ToyTokens":
        assert [m.num_groups for m in measured(steps)] == [4, 4, 4]
    else:
        assert_same(measured(steps), measured(single), rel=1e-4)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"strategy": "single"},
        {"precision": "bf16"},
        {"precision": "fp64", "arguments": {"dtype": "float64"}},
    ],
)
def test_measuring_changes_no_bit_of_the_run(sections):
    on, _, _ = train_toy(spec=spec((4, 1, 4), **sections))
    off, steps, _ = train_toy(spec=spec((4, 1, 4), noise_scale={"enabled": False}, **sections))
    assert on.parameter_sha256 == off.parameter_sha256
    assert noise_measurements(steps) == []


def test_bitwise_grains_are_the_groups_whatever_the_layout():
    sections = {"determinism": "bitwise", "grain": 2}
    one, steps, _ = train_toy(spec=spec((4, 1, 4), **sections))
    two, other, _ = train_toy(spec=spec((8, 1, 2), **sections))
    off, _, _ = train_toy(spec=spec((4, 1, 4), noise_scale={"enabled": False}, **sections))
    assert one.parameter_sha256 == two.parameter_sha256 == off.parameter_sha256
    assert {m.num_groups for m in measured(steps)} == {8}
    assert_same(measured(steps), measured(other), rel=1e-6)
    _, fine, _ = train_toy(spec=spec((2, 1, 8)))
    assert_same(measured(steps)[:1], measured(fine)[:1])


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_bitwise_on_two_ranks_measures_the_same_grains(strategy):
    sections = {"determinism": "bitwise", "grain": 2, "strategy": strategy}
    _, single, _ = train_toy(spec=spec((4, 1, 4), **sections))
    _, steps, _ = run_on_ranks(2, train_toy, spec=spec((4, 2, 2), **sections))[0]
    assert_same(measured(steps), measured(single), rel=1e-5)


def test_one_group_is_split_on_measured_steps():
    _, steps, _ = train_toy(spec=spec((8, 1, 1), noise_scale={"every_optimizer_steps": 2}))
    found = measured(steps)
    assert [m.optimizer_step for m in found] == [1, 3]
    assert {m.num_groups for m in found} == {2}
    _, halves, _ = train_toy(spec=spec((4, 1, 2)))
    assert_same(found[:1], measured(halves)[:1])


def test_the_spacing_of_split_steps_does_not_depend_on_the_clock():
    run_spec = spec((8, 1, 1), noise_scale={"every_optimizer_steps": None}, max_optimizer_steps=20)
    _, steps, _ = train_toy(spec=run_spec)
    assert [m.optimizer_step for m in measured(steps)] == [1, 1 + SPLIT_EVERY]


def test_one_example_per_step_is_not_measurable():
    _, steps, _ = train_toy(spec=spec((1, 1, 1)))
    assert noise_measurements(steps)[0] == NotMeasured(reason=TOO_FEW_GROUPS, optimizer_step=1)


def test_steps_that_straddle_an_epoch_or_repeat_examples_are_left_out_and_counted():
    _, steps, _ = train_toy(spec=spec((8, 1, 3), max_optimizer_steps=8))
    reasons = [m.reason if isinstance(m, NotMeasured) else None for m in noise_measurements(steps)]
    assert reasons == [None, None, STRADDLES_EPOCH, None, None, STRADDLES_EPOCH, None, None]
    _, steps, _ = train_toy(spec=spec((16, 1, 6), max_optimizer_steps=2))
    assert all(m.reason in (STRADDLES_EPOCH, DUPLICATES) for m in noise_measurements(steps))


def test_independent_draws_are_neither_left_out_nor_corrected():
    run_spec = spec((16, 1, 6), data={"sampling": "replacement"})
    _, steps, _ = train_toy(spec=run_spec)
    assert_same(measured(steps)[:1], [reference(run_spec, dataset_size=None)])


def test_clipping_comes_after_the_measurement():
    _, free, _ = train_toy(spec=spec((4, 1, 4)))
    _, clipped, _ = train_toy(spec=spec((4, 1, 4), optimizer={"max_grad_norm": 1e-4}))
    assert measured(clipped)[0] == measured(free)[0]


@pytest.mark.parametrize("sections", [{"precision": "fp16"}, {"arguments": {"dtype": "bfloat16"}}])
def test_low_precision_is_unscaled_and_squared_in_fp32(sections):
    _, steps, _ = train_toy(spec=spec((4, 1, 4), **sections))
    _, exact, _ = train_toy(spec=spec((4, 1, 4)))
    assert measured(steps)[0].grad_noise_trace == pytest.approx(measured(exact)[0].grad_noise_trace, rel=0.05)


def test_adams_metric_and_parameter_groups_have_their_own_names():
    run_spec = spec((4, 1, 4), optimizer={"name": "adamw"}, noise_scale={"parameter_groups": True})
    _, steps, _ = train_toy(spec=run_spec)
    assert len(measured(steps)) == 3
    assert len(measured(steps, metric="adam")) == 2
    assert noise_labels(steps) == ["0", "3"]
    whole = measured(steps)[0]
    parts = [measured(steps, label=label)[0] for label in ("0", "3")]
    assert sum(p.grad_noise_trace for p in parts) == pytest.approx(whole.grad_noise_trace)


def test_a_measurement_is_kept_however_rarely_steps_are_logged():
    _, steps, _ = train_toy(spec=spec((4, 1, 4), tracking={"every_optimizer_steps": 100}))
    assert [m.optimizer_step for m in measured(steps)] == [1, 2, 3]


def test_probes_do_not_measure():
    run_spec = spec((4, 1, 4), kind="probe")
    assert build_trainer(run_spec, process=ProcessContext()).observer is None


@pytest.mark.parametrize(
    ("name", "label"),
    [("blocks.0.attention.weight", "blocks.0"), ("tokens.weight", "tokens"), ("0.bias", "0"), ("w", "w")],
)
def test_parameter_labels(name, label):
    assert parameter_label(name) == label
