"""Accumulation in fp32 whatever the parameters' dtype, and one unscale → clip → step per optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gasweep.results.states import RunState
from gasweep.tasks.base import Batch, SummedLoss
from gasweep.training.build import build_trainer
from gasweep.training.process import ProcessContext
from tests.training.ranks import run_on_ranks
from tests.training.toys import ToyRegression, gradients_of, toy_spec, train_toy


@dataclass(kw_only=True)
class Overflowing(ToyRegression):
    """The loss is large at chosen optimizer steps (of 1 example each), so that the scaled gradient overflows.

    An fp16 gradient of a large value times the loss scale is infinite; the loss itself is finite.
    """

    at: list[int]

    def build_model(self) -> nn.Module:
        self._calls = 0
        return super().build_model()

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        factor = 1e37 if self._calls in self.at else 1e-3
        self._calls += 1
        return SummedLoss(total=(model(x).float() - y).square().sum() * factor, num_items=len(x))


def overflowing(**changes: Any) -> Any:
    spec = toy_spec(
        layout=(1, 1, 1),
        task="ToyRegression",
        arguments={"at": [2, 5]},
        precision="fp16",
        max_optimizer_steps=8,
        evaluation={"every_optimizer_steps": 100},
        **changes,
    )
    spec.config.task["_target_"] = "tests.training.test_precision.Overflowing"
    return spec


def test_c53_skipped_steps_are_counted_apart() -> None:
    """10 windows, 2 overflow: attempted 10, applied 8, the schedule at 8, 10 examples used."""
    result, records, _ = train_toy(
        spec=overflowing(schedule={"warmup_optimizer_steps": 16}, budget={"divergence_factor": 1e40})
    )
    assert result.attempted_optimizer_steps == 10
    assert result.optimizer_steps == 8
    assert result.extra["skipped_overflow"] == 2
    assert result.contributions == 10
    assert [record.optimizer_step for record in records] == list(range(1, 9))
    assert records[-1].learning_rate == pytest.approx(0.05 * 8 / 16)
    assert records[-1].contributions == 10
    assert result.evaluations[-1].optimizer_step == 8


def test_endless_overflow_is_divergence() -> None:
    spec = overflowing(budget={"divergence_factor": 1e40})
    spec.config.task["at"] = list(range(1000))
    result, _, _ = train_toy(spec=spec)
    assert result.state is RunState.DIVERGED
    assert result.reason == "fp16 gradients overflowed in 100 optimizer steps in a row"


def test_c51_unscale_comes_before_the_clip() -> None:
    """Scale 65536, true gradient 2, max norm 1: the clipped norm is 1.0, not 1/65536, also for G=2."""
    for layout in ((2, 1, 1), (1, 1, 2)):
        spec = toy_spec(
            layout=layout,
            arguments={"gradients": [[2.0], [2.0]]},
            precision="fp16",
            optimizer={"max_grad_norm": 1.0},
        )
        spec.config.task["_target_"] = "tests.training.test_arithmetic.Linear"
        assert gradients_of(spec=spec)[0]["theta"] == pytest.approx([1.0], rel=1e-5)


def test_c51_the_scale_is_constant_inside_a_window_and_updated_once() -> None:
    spec = toy_spec(layout=(1, 1, 4), precision="fp16", max_optimizer_steps=3)
    trainer = build_trainer(spec, process=ProcessContext())
    scaler = trainer.parts.precision.scaler
    assert scaler is not None
    updates = []
    original = scaler.update
    scaler.update = lambda *args: updates.append(1) or original(*args)  # type: ignore[method-assign]
    for step in range(3):
        plan = trainer.planner.plan(
            optimizer_step=step, contributions=4 * step, effective_batch_size=4, micro_batch_size=1
        )
        trainer.step.run(plan, learning_rate=0.1)
    assert len(updates) == 3


def test_a_second_unscale_in_one_window_raises() -> None:
    """What torch promises, and what calling unscale per micro-step would meet."""
    weight = torch.ones(1, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_keeps_fp32_parameters_and_gradients(precision: str) -> None:
    trainer = build_trainer(toy_spec(precision=precision), process=ProcessContext())
    assert {tensor.dtype for _, tensor in trainer.parts.parameters} == {torch.float32}
    exact = gradients_of(spec=toy_spec(layout=(32, 1, 2)))[0]
    rounded = gradients_of(spec=toy_spec(layout=(32, 1, 2), precision=precision))[0]
    for name, gradient in exact.items():
        scale = np.abs(gradient).max()
        assert 0 < np.abs(rounded[name] - gradient).max() < 0.05 * scale


def low_precision_error(dtype: str, layout: tuple[int, int, int], **changes: Any) -> float:
    """Largest relative deviation of the accumulated gradient of a low-precision model from the sum, in
    float64, of its own single-example gradients."""
    arguments = {"dtype": dtype}
    spec = toy_spec(layout=layout, arguments=arguments, **changes)
    if layout[1] == 1:
        found = gradients_of(spec=spec)[0]
    else:
        found = run_on_ranks(layout[1], gradients_of, spec=spec)[0][0]
    total = layout[0] * layout[1] * layout[2]
    ones = toy_spec(layout=(1, 1, 1), arguments=arguments)
    trainer = build_trainer(ones, process=ProcessContext())
    sums: dict[str, Any] = {name: 0.0 for name, _ in trainer.parts.parameters}
    for position in range(total):
        plan = trainer.planner.plan(
            optimizer_step=0, contributions=position, effective_batch_size=1, micro_batch_size=1
        )
        trainer.step.run(plan, learning_rate=0.0)
        for name, tensor in trainer.parts.parameters:
            assert tensor.grad is not None
            sums[name] = sums[name] + tensor.grad.double().numpy() / total
    return max(float(np.abs(found[n] - sums[n]).max() / np.abs(sums[n]).max()) for n in sums)


@pytest.mark.multiprocess
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ((1, 1, 64), {}),
        ((1, 2, 32), {"strategy": "ddp"}),
        ((1, 2, 32), {"strategy": "ddp", "strategy_options": {"sync_every_micro_step": True}}),
        ((1, 2, 32), {"strategy": "fsdp"}),
        ((1, 2, 32), {"strategy": "fsdp", "strategy_options": {"sync_every_micro_step": True}}),
    ],
)
def test_low_precision_models_add_up_in_fp32(dtype: str, layout: Any, changes: Any) -> None:
    """64 single-example gradients in bf16 (8 bits) or fp16: adding them up costs fp32 rounding, no more.

    A power-of-two count, so that dividing the loss by it first is exact.
    """
    assert low_precision_error(dtype, layout, **changes) < 1e-6


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_models_train(strategy: str, dtype: str) -> None:
    """Updates far below a bf16 parameter's own resolution still add up, in the fp32 main parameters."""
    common: dict[str, Any] = {
        "arguments": {"dtype": dtype},
        "learning_rate": 1e-3,
        "max_optimizer_steps": 60,
        "optimizer": {"name": "adamw"},
    }
    single = train_toy(spec=toy_spec(layout=(8, 1, 1), **common))[0]
    two = run_on_ranks(2, train_toy, spec=toy_spec(layout=(2, 2, 2), strategy=strategy, **common))[0][0]
    exact = train_toy(spec=toy_spec(**{**common, "layout": (8, 1, 1), "arguments": {}}))[0]
    losses = [run.evaluations[-1].metrics["eval_loss"] for run in (single, two, exact)]
    assert losses[0] < 0.97 * single.evaluations[0].metrics["eval_loss"]
    assert losses == pytest.approx([losses[2]] * 3, rel=0.02)


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(strategy: str) -> None:
    """Only one shard holds the inf: every rank must skip, keep its scale equal, and go on."""
    spec = overflowing(budget={"divergence_factor": 1e40}, strategy=strategy)
    spec = type(spec).from_dict(
        {
            **spec.to_dict(),
            "effective_batch_size": 2,
            "layout": {"micro_batch_size": 1, "world_size": 2, "accumulation_steps": 1},
        }
    )
    results = run_on_ranks(2, train_toy, spec=spec)
    assert results[0][0].extra["skipped_overflow"] == 2
    assert results[0][0].optimizer_steps == 8
