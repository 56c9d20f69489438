"""Tasks that are wrong on purpose, one per cause."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gasweep.tasks.base import Batch, Data, MeanLoss, SummedLoss
from tests.training.toys import ToyData, ToyRegression, ToyTokens


@dataclass(kw_only=True)
class PerMicroBatchMean(ToyRegression):
    """Returns the group's mean where the contract asks for the sum."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        return SummedLoss(total=(model(x) - y).square().mean(dim=1).mean(), num_items=len(x))


@dataclass(kw_only=True)
class TokenMeanCountedInExamples(ToyTokens):
    """A mean over valid tokens, weighted by examples."""

    def loss(self, model: nn.Module, batch: Batch) -> MeanLoss:
        x, targets = batch
        logits = model(x).view(len(x), 2, 3)
        total = nn.functional.cross_entropy(logits, targets, reduction="sum")
        return MeanLoss(mean=total / max(int((targets >= 0).sum()), 1), num_items=len(x))

    def count_items(self, batch: Batch) -> int:
        return len(batch[0])


@dataclass(kw_only=True)
class CountsDisagree(ToyTokens):
    """Counts valid tokens in the loss and all tokens before it."""

    def count_items(self, batch: Batch) -> int:
        return int(batch[1].numel())

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, targets = batch
        total = nn.functional.cross_entropy(model(x).view(len(x), 2, 3), targets, reduction="sum")
        return SummedLoss(total=total, num_items=int((targets >= 0).sum()))


@dataclass(kw_only=True)
class InBatchNegatives(ToyRegression):
    """A contrastive loss: every other example of the group is a negative."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        logits = model(x) @ y.T
        total = nn.functional.cross_entropy(logits, torch.arange(len(x)), reduction="sum")
        return SummedLoss(total=total, num_items=len(x))


class CountingLayer(nn.Module):
    """Scales by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


@dataclass(kw_only=True)
class MutatesBuffer(ToyRegression):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), CountingLayer(), nn.Tanh(), nn.Linear(8, 2))


@dataclass(kw_only=True)
class PythonRandom(ToyRegression):
    """Augments with Python's generator, which nothing seeds per group."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        return SummedLoss(total=(model(x * random.uniform(0.5, 1.5)) - y).square().sum(), num_items=len(x))


@dataclass(kw_only=True)
class TorchNoise(ToyRegression):
    """Augments with torch's generator."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        return SummedLoss(total=(model(x + torch.randn_like(x)) - y).square().sum(), num_items=len(x))


class NeighbourData(ToyData):
    """Centres each batch: an example depends on those fetched with it."""

    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        x, y = super().batch(indices)
        return (x - x.mean(0, keepdim=True) if len(x) else x), y


@dataclass(kw_only=True)
class DependsOnNeighbours(ToyRegression):
    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        return NeighbourData(tensors=data.tensors)


class RandomData(ToyData):
    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        x, y = super().batch(indices)
        return x + torch.from_numpy(np.random.default_rng().normal(size=x.shape)).to(x.dtype), y


@dataclass(kw_only=True)
class RandomBatches(ToyRegression):
    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        return RandomData(tensors=data.tensors)


@dataclass(kw_only=True)
class FunctionalDropout(ToyRegression):
    """Dropout without a module."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        return SummedLoss(total=(model(nn.functional.dropout(x, 0.5)) - y).square().sum(), num_items=len(x))


@dataclass(kw_only=True)
class KnowsItsRank(ToyRegression):
    """Uses the rank, which no check in one process can see."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        initialized = torch.distributed.is_initialized()
        factor = 1.0 + (torch.distributed.get_rank() if initialized else 0)
        return SummedLoss(total=(factor * model(x) - y).square().sum(), num_items=len(x))


@dataclass(kw_only=True)
class ZeroHead(ToyRegression):
    """A BatchNorm hidden at the start by a head of zeros: the first step's gradient cannot show it."""

    def build_model(self) -> nn.Module:
        head = nn.Linear(8, 2)
        nn.init.zeros_(head.weight)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), head)
