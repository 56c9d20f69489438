"""Worked values: what one optimizer step must do, to the last digit that arithmetic gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gasweep.errors import TaskError
from gasweep.results.states import RunState
from gasweep.tasks.base import Batch, Data, MeanLoss, SummedLoss, Task
from tests.training.ranks import run_on_ranks
from tests.training.toys import ToyData, gradients_of, toy_spec, train_toy


class Theta(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.theta.expand(len(x), -1)


@dataclass(kw_only=True)
class Linear(Task):
    """Example i's loss is g_i·θ, so its gradient is g_i wherever θ is. items: valid items per example."""

    gradients: list[list[float]]
    items: list[int] | None = None
    mean: bool = False
    eval_sign: float = 1.0

    def train_data(self, *, root: str | None) -> Data:
        items = self.items or [1] * len(self.gradients)
        return ToyData(tensors=(torch.tensor(self.gradients, dtype=torch.float64), torch.tensor(items)))

    def build_model(self) -> nn.Module:
        return Theta(len(self.gradients[0]))

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss | MeanLoss:
        gradients, items = batch
        total = (model(gradients) * gradients).sum()
        if self.mean:
            return MeanLoss(mean=total / items.sum(), num_items=int(items.sum()))
        return SummedLoss(total=total, num_items=int(items.sum()))

    def count_items(self, batch: Batch) -> int:
        return int(batch[1].sum())

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        return [self.train_data(root=root).batch(np.arange(len(self.gradients)))]

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        return {"eval_loss": (1.0 + self.eval_sign * float((model(batch[0]) * batch[0]).sum()), 1.0)}


@dataclass(kw_only=True)
class Parabolas(Linear):
    """f_i = (θ - a_i)²/2."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss | MeanLoss:
        a, items = batch
        return SummedLoss(total=((model(a) - a) ** 2).sum() / 2, num_items=int(items.sum()))


def spec(layout: tuple[int, int, int], *, task: str = "Linear", **changes: Any) -> Any:
    built = toy_spec(
        layout=layout,
        precision="fp64",
        arguments=changes.pop("arguments"),
        task=task,
        learning_rate=changes.pop("learning_rate", 1.0),
        **changes,
    )
    built.config.task["_target_"] = f"tests.training.test_arithmetic.{task}"
    return built


def theta_after(run: Any) -> list[float]:
    """The parameters after a run, from its last evaluation of 1 + Σ g·θ with one-hot g."""
    return [e.metrics["eval_loss"] for e in train_toy(spec=run)[0].evaluations]


def test_three_parabolas_accumulated_and_one_by_one() -> None:
    """a = (-1, -3, -8) from θ=0 at lr 0.1: one step on all moves θ to -0.4, whatever the layout."""
    arguments = {"gradients": [[-1.0], [-3.0], [-8.0]]}
    for layout in ((3, 1, 1), (1, 1, 3), (2, 1, 2)):
        run = spec(
            layout,
            task="Parabolas",
            arguments=arguments,
            effective_batch_size=3,
            max_optimizer_steps=1,
            learning_rate=0.1,
        )
        moved = theta_after(run)[-1]  # 1 + θ·(-12)
        assert moved == pytest.approx(1 + -0.4 * -12)


def test_c07_last_group_is_weighted_by_its_count() -> None:
    """Micro means 1 (4 examples) and 4 (2 examples): 2.0, not 2.5."""
    values = [[1.0]] * 4 + [[4.0]] * 2
    order = spec_order(values)
    run = spec((4, 1, 2), arguments={"gradients": order}, effective_batch_size=6)
    assert gradients_of(spec=run)[0]["theta"].tolist() == [2.0]


def spec_order(values: list[list[float]]) -> list[list[float]]:
    """The data set whose stream (data seed 0, run seed 0) begins with `values`, in that order."""
    from gasweep.data import IndexStream
    from gasweep.data.streams import run_data_seed

    stream = IndexStream(num_examples=len(values), seed=run_data_seed(0, 0))
    data: list[list[float]] = [[0.0]] * len(values)
    for position, index in enumerate(stream.take(0, len(values))):
        data[int(index)] = values[position]
    return data


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("mean", [False, True])
def test_c08_ranks_with_fewer_tokens_do_not_count_more(strategy: str, mean: bool) -> None:
    """Rank 0: one token with loss 8, rank 1: three with total 4. The mean is 3, not 4.6667."""
    order = spec_order([[8.0], [4.0]])
    items = [1 if value == [8.0] else 3 for value in order]
    run = spec((1, 2, 1), strategy=strategy, arguments={"gradients": order, "items": items, "mean": mean})
    for gradients, _, _ in run_on_ranks(2, gradients_of, spec=run):
        assert gradients["theta"].tolist() == [3.0]


def test_c50_the_whole_gradient_is_clipped_once() -> None:
    """Micro gradients (2, 0) and (0, 2), max norm 1: (0.7071, 0.7071)."""
    arguments = {"gradients": [[2.0, 0.0], [0.0, 2.0]]}
    run = spec((1, 1, 2), arguments=arguments, optimizer={"max_grad_norm": 1.0})
    clipped = gradients_of(spec=run)[0]["theta"]
    np.testing.assert_allclose(clipped, [math.sqrt(0.5)] * 2, rtol=1e-6)


@pytest.mark.parametrize("mean", [False, True])
def test_c56_an_empty_micro_batch_contributes_nothing(mean: bool) -> None:
    """Of two groups one has no valid item: its gradient would be 0/0 for a mean loss."""
    order = spec_order([[6.0], [5.0]])
    items = [2 if value == [6.0] else 0 for value in order]
    arguments = {"gradients": order, "items": items, "mean": mean}
    gradients, loss, _ = gradients_of(spec=spec((1, 1, 2), arguments=arguments))
    assert gradients["theta"].tolist() == [6.0 / 2]
    assert math.isfinite(loss)


def test_c56_a_window_without_items_is_skipped_and_counted_apart() -> None:
    """Every second step has no item: 10 attempted, 5 applied, and the schedule counts the 5."""
    order = spec_order([[1.0], [1.0]])
    stream_first = order[0]
    arguments = {"gradients": order, "items": [1, 0]}
    run = spec(
        (1, 1, 1),
        arguments=arguments,
        max_optimizer_steps=5,
        schedule={"warmup_optimizer_steps": 10},
        evaluation={"every_optimizer_steps": 100},
    )
    assert stream_first == [1.0]
    result, records, _ = train_toy(spec=run)
    assert result.optimizer_steps == 5
    assert result.attempted_optimizer_steps == result.optimizer_steps + result.extra["skipped_no_items"]
    assert result.extra["skipped_no_items"] >= 4
    assert result.contributions == result.attempted_optimizer_steps
    assert [record.optimizer_step for record in records] == [1, 2, 3, 4, 5]
    assert [record.learning_rate for record in records] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_data_without_any_item_are_an_error_not_an_endless_run() -> None:
    run = spec((1, 1, 2), arguments={"gradients": [[1.0]] * 4, "items": [0] * 4})
    with pytest.raises(TaskError, match="no example of the training data holds an item"):
        train_toy(spec=run)


def test_c62_adam_hides_constant_factors_so_gradients_are_compared() -> None:
    """Gradients x4: SGD's update is x4, Adam's first one unchanged. Hence the tests of gradients."""
    moved: dict[tuple[str, float], float] = {}
    for name in ("sgd", "adam"):
        for factor in (1.0, 4.0):
            run = spec(
                (1, 1, 1),
                arguments={"gradients": [[factor]]},
                optimizer={"name": name},
                learning_rate=0.01,
                max_optimizer_steps=1,
            )
            moved[name, factor] = (theta_after(run)[-1] - 1) / factor
    assert moved["sgd", 4.0] == pytest.approx(4 * moved["sgd", 1.0])
    assert moved["adam", 4.0] == pytest.approx(moved["adam", 1.0], rel=1e-6)


def test_contributions_and_distinct_examples_are_reported_apart() -> None:
    run = spec((2, 1, 2), arguments={"gradients": [[1.0]] * 3}, max_optimizer_steps=2, learning_rate=0.01)
    result = train_toy(spec=run)[0]
    assert (result.contributions, result.distinct_examples) == (8, 3)


def test_a_batch_larger_than_the_data_set_repeats_examples() -> None:
    run = spec((4, 1, 2), arguments={"gradients": [[1.0], [2.0]]}, max_optimizer_steps=1)
    assert gradients_of(spec=run)[0]["theta"].tolist() == [1.5]


def test_divergence_by_value_and_by_non_finite() -> None:
    """eval_loss = 1 - Σ g·θ rises without end as training lowers Σ g·θ."""
    arguments = {"gradients": [[1.0]], "eval_sign": -1.0}
    up = spec((1, 1, 1), arguments=arguments, max_optimizer_steps=100)
    result = train_toy(spec=up)[0]
    assert result.state is RunState.DIVERGED
    assert "above budget.divergence_factor=10 times" in result.reason
    broken = spec((1, 1, 1), arguments={"gradients": [[1e200]]}, max_optimizer_steps=100)
    result, records, _ = train_toy(spec=broken)
    assert result.state is RunState.DIVERGED
    assert "not finite at optimizer step" in result.reason
    assert all(record.loss is None or math.isfinite(record.loss) for record in records)
