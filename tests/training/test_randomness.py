"""Who draws what: equal initial weights, masks of their own for every rank and micro-step, all repeatable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from gasweep.tasks.base import Batch, SummedLoss
from tests.training.ranks import run_on_ranks
from tests.training.toys import ToyRegression, toy_spec, train_toy

MASKS: list[tuple[int, ...]] = []


@dataclass(kw_only=True)
class Masked(ToyRegression):
    """Notes the mask that each call of the loss draws on 32 ones, and the model's first weight."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        mask = nn.functional.dropout(torch.ones(32), training=model.training)
        MASKS.append(tuple(int(value > 0) for value in mask))
        x, y = batch
        return SummedLoss(total=(model(x) - y).square().sum(), num_items=len(x))


def masked_spec(layout: tuple[int, int, int], **changes: Any) -> Any:
    spec = toy_spec(layout=layout, max_optimizer_steps=3, **changes)
    spec.config.task["_target_"] = "tests.training.test_randomness.Masked"
    return spec


def masks_of(rank: int = 0, *, spec: Any) -> list[tuple[int, ...]]:
    MASKS.clear()
    train_toy(rank, spec=spec)
    return list(MASKS)


@pytest.mark.multiprocess
def test_c59_masks_differ_between_ranks_and_micro_steps_and_repeat() -> None:
    spec = masked_spec((2, 2, 2))
    first, second = run_on_ranks(2, masks_of, spec=spec)
    assert len(first) == len(second) == 6
    assert len(set(first + second)) == 12
    assert run_on_ranks(2, masks_of, spec=spec) == [first, second]


def test_masks_differ_between_seeds() -> None:
    assert masks_of(spec=masked_spec((2, 1, 2))) != masks_of(spec=masked_spec((2, 1, 2), seed=1))


def initial_weights(rank: int, *, spec: Any) -> list[float]:
    from gasweep.training.build import build_trainer
    from gasweep.training.process import ProcessContext

    torch.manual_seed(rank)  # what a rank drew before must not matter
    trainer = build_trainer(spec, process=ProcessContext(rank=rank, world_size=spec.layout.world_size))
    state = dict(trainer.parts.strategy.full_state())
    return [float(value) for value in state["0.weight"].flatten()]


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_c59_initial_weights_are_equal_on_all_ranks_and_layouts(strategy: str) -> None:
    first, second = run_on_ranks(2, initial_weights, spec=toy_spec(layout=(2, 2, 2), strategy=strategy))
    alone = initial_weights(0, spec=toy_spec(layout=(8, 1, 1)))
    assert first == second == alone
    assert alone != initial_weights(0, spec=toy_spec(layout=(8, 1, 1), seed=1))


def test_a_run_does_not_depend_on_what_ran_before() -> None:
    spec = toy_spec(arguments={"dropout": 0.5})
    first = train_toy(spec=spec)[0]
    torch.manual_seed(123)
    torch.rand(7)
    assert train_toy(spec=spec)[0].parameter_sha256 == first.parameter_sha256


def test_evaluation_and_logging_do_not_disturb_the_training_stream() -> None:
    common: dict[str, Any] = {"arguments": {"dropout": 0.5}, "max_optimizer_steps": 12}
    often = train_toy(spec=toy_spec(evaluation={"every_optimizer_steps": 1}, **common))[0]
    seldom = train_toy(spec=toy_spec(evaluation={"every_optimizer_steps": 12}, **common))[0]
    assert often.parameter_sha256 == seldom.parameter_sha256
