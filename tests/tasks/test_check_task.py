"""check_task must name each kind of broken task, and each kind alone."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gasweep.tasks.base import Data, MeanLoss, SummedLoss, Task
from gasweep.tasks.check import check_task


class Points(Data):
    def __len__(self):
        return 32

    def batch(self, indices):
        x = torch.from_numpy(np.stack([np.sin(indices), np.cos(indices), indices / 32], axis=1))
        return {"x": x.float(), "y": torch.from_numpy(indices % 2).float()}


@dataclass(kw_only=True)
class Good(Task):
    def train_data(self, *, root):
        return Points()

    def build_model(self):
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1))

    def _losses(self, model, batch):
        return functional.mse_loss(model(batch["x"])[:, 0], batch["y"], reduction="none")

    def loss(self, model, batch):
        return SummedLoss(total=self._losses(model, batch).sum(), num_items=len(batch["y"]))

    def eval_batches(self, *, root, batch_size, max_examples):
        count = 32 if max_examples is None else min(32, max_examples)
        return [
            Points().batch(np.arange(start, min(start + batch_size, count)))
            for start in range(0, count, batch_size)
        ]

    def eval_sums(self, model, batch):
        return {"eval_loss": (float(self._losses(model, batch).sum()), float(len(batch["y"])))}


class MeanPretendingToBeASum(Good):
    def loss(self, model, batch):
        return SummedLoss(total=self._losses(model, batch).mean(), num_items=len(batch["y"]))


class MeanWithCount(Good):
    """A mean loss that is safe for empty groups keeps the contract."""

    def loss(self, model, batch):
        count = len(batch["y"])
        return MeanLoss(mean=self._losses(model, batch).sum() / max(count, 1), num_items=count)


class BatchNormalised(Good):
    def build_model(self):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class WrongCount(Good):
    def loss(self, model, batch):
        return SummedLoss(total=self._losses(model, batch).sum(), num_items=2 * len(batch["y"]))


class TwoForwards(Good):
    def loss(self, model, batch):
        model(batch["x"])
        return super().loss(model, batch)


class LoweredPrecision(Good):
    def loss(self, model, batch):
        return SummedLoss(total=self._losses(model, batch).sum().float(), num_items=len(batch["y"]))


class RandomBatches(Points):
    def batch(self, indices):
        batch = super().batch(indices)
        batch["x"] = batch["x"] + torch.from_numpy(np.random.rand(len(indices), 3)).float()
        return batch


class Augmented(Good):
    def train_data(self, *, root):
        return RandomBatches()


class NumpyInitialised(Good):
    def build_model(self):
        model = super().build_model()
        nn.init.constant_(model[0].bias, float(np.random.rand()))
        return model


class MisnamedMetric(Good):
    def metrics(self):
        return ("eval_loss", "accuracy")


class NoEvalLoss(Good):
    def metrics(self):
        return ("error",)

    def eval_sums(self, model, batch):
        return {"error": super().eval_sums(model, batch)["eval_loss"]}


class ShuffledEvaluation(Good):
    def eval_batches(self, *, root, batch_size, max_examples):
        return [Points().batch(np.random.permutation(32)[:4])]


class UnlimitedEvaluation(Good):
    def eval_batches(self, *, root, batch_size, max_examples):
        return [Points().batch(np.arange(32))]


class WrongGroupLosses(Good):
    def group_losses(self, model, batch):
        return self._losses(model, batch) / len(batch["y"])


@dataclass(kw_only=True)
class Unpicklable(Good):
    hook: Any = field(default_factory=lambda: lambda x: x)


class Raising(Good):
    def loss(self, model, batch):
        raise RuntimeError("no such loss")


class NoData(Good):
    def train_data(self, *, root):
        raise FileNotFoundError("points.csv")


@pytest.mark.parametrize("task_class", [Good, MeanWithCount])
def test_a_kept_contract_has_no_problems(task_class):
    assert check_task(task_class()) == []


@pytest.mark.parametrize(
    ("task_class", "message"),
    [
        (MeanPretendingToBeASum, "gradient of a group differs from the sum over its parts"),
        (MeanPretendingToBeASum, "an empty group has loss nan over 0 items"),
        (BatchNormalised, "batch normalisation"),
        (WrongCount, "count_items says 6, loss summed num_items=12"),
        (TwoForwards, "loss calls the model 2 times"),
        (LoweredPrecision, "loss of a float64 model is torch.float32"),
        (Augmented, "batch\\(indices\\) gives other examples when called twice"),
        (NumpyInitialised, "draw from torch's global RNG alone"),
        (MisnamedMetric, r"eval_sums returns \['eval_loss'\], metrics\(\) names \['accuracy', 'eval_loss'\]"),
        (NoEvalLoss, "must hold 'eval_loss'"),
        (ShuffledEvaluation, "evaluation differs between two calls"),
        (UnlimitedEvaluation, "ignores max_examples or batch_size"),
        (WrongGroupLosses, "group_losses add up to"),
        (Unpicklable, "cannot be pickled"),
        (Raising, "RuntimeError: no such loss"),
        (NoData, "train_data or build_model raised FileNotFoundError: points.csv"),
    ],
)
def test_a_breach_is_named(task_class, message):
    problems = check_task(task_class())
    assert any(re.search(message, problem) for problem in problems), problems
