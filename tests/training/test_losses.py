"""What a task may return as a loss and as a count, and the one line for what it may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from gasweep.errors import TaskError
from gasweep.tasks.base import MeanLoss, SummedLoss, move
from gasweep.training.losses import summed_loss
from tests.training.toys import ToyRegression, toy_spec, train_toy


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (SummedLoss(total=3.0, num_items=2), "returned a float; the loss must be a real tensor"),  # type: ignore[arg-type]
        (MeanLoss(mean=torch.tensor(1j), num_items=2), "returned a torch.complex64; the loss must be a real"),
        (SummedLoss(total=torch.ones(2), num_items=2), r"a loss of shape \[2\]; it must be a scalar"),
        (SummedLoss(total=torch.ones(()), num_items=3), "num_items=3 but task.count_items said 2"),
        (torch.ones(()), "returned Tensor; it must return SummedLoss"),
    ],
)
def test_other_losses_are_refused(loss: Any, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        summed_loss(loss, num_items=2)


def test_a_mean_becomes_a_sum_in_single_precision() -> None:
    total = summed_loss(MeanLoss(mean=torch.tensor([1.5], dtype=torch.bfloat16), num_items=4), num_items=4)
    assert total.dtype == torch.float32
    assert total.shape == ()
    assert total.item() == 6.0


@dataclass(kw_only=True)
class OddCount(ToyRegression):
    count: Any = None

    def count_items(self, batch: Any) -> Any:
        return self.count


@pytest.mark.parametrize("count", [None, 2.5, "3"])
def test_a_count_is_a_whole_number(count: Any) -> None:
    spec = toy_spec(arguments={"count": count}, max_optimizer_steps=1)
    spec.config.task["_target_"] = "tests.training.test_losses.OddCount"
    with pytest.raises(TaskError, match=f"count_items returned {count!r}; it must be a whole number"):
        train_toy(spec=spec)


class Pair(NamedTuple):
    x: torch.Tensor
    y: dict[str, torch.Tensor]


def test_a_batch_keeps_its_type_when_moved() -> None:
    moved = move(Pair(x=torch.ones(2), y={"a": torch.zeros(1)}), "meta")
    assert isinstance(moved, Pair)
    assert moved.x.device.type == moved.y["a"].device.type == "meta"
