"""Tasks that strain one part of bitwise mode each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gasweep.tasks.base import Batch, Data, SummedLoss
from tests.training.toys import ToyData, ToyRegression


@dataclass(kw_only=True)
class Spikes(ToyRegression):
    """Every 16th example is `spike` times as large: gradients outgrow the grid of the step before."""

    spike: float = 4096.0

    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        x, y = data.tensors
        factor = torch.where(torch.arange(len(x)) % 16 == 5, self.spike, 1.0).to(x.dtype)
        return ToyData(tensors=(x * factor[:, None], y * factor[:, None]))


@dataclass(kw_only=True)
class Explodes(ToyRegression):
    """Its loss is infinite once example 7 comes up."""

    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        x, y = data.tensors
        y[7] = float("inf")
        return ToyData(tensors=(x, y))


class TwoHeads(nn.Module):
    """A head that no loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(5, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        used: Tensor = self.used(torch.tanh(self.body(x)))
        return used


@dataclass(kw_only=True)
class UnusedHead(ToyRegression):
    def build_model(self) -> nn.Module:
        return TwoHeads()

    def parallelize(self, model: nn.Module) -> list[nn.Module] | None:
        return None


@dataclass(kw_only=True)
class SparseEmbedding(ToyRegression):
    """A bag of words with sparse gradients."""

    sparse: bool = True

    def train_data(self, *, root: str | None) -> Data:
        data = super().train_data(root=root)
        assert isinstance(data, ToyData)
        words = torch.randint(0, 7, (len(data), 3), generator=torch.Generator().manual_seed(3))
        return ToyData(tensors=(words, data.tensors[1]))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 4, sparse=self.sparse), nn.Flatten(), nn.Linear(12, 2))


class ReentrantBody(nn.Module):
    """One layer used in two reentrant checkpoints: autograd hands its gradient over in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        for _ in range(2):
            hidden = checkpoint(lambda h: torch.tanh(self.layer(h)), hidden, use_reentrant=True)
        last: Tensor = self.last(hidden)
        return last


@dataclass(kw_only=True)
class Reentrant(ToyRegression):
    def build_model(self) -> nn.Module:
        return ReentrantBody()


class PaddedData(Data):
    """Sequences of unequal length, padded to the longest of the batch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        lengths = torch.randint(1, 9, (64,), generator=generator)
        self._rows = [torch.randn(int(n), generator=generator) for n in lengths]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        rows = [self._rows[i] for i in indices]
        width = max((len(row) for row in rows), default=1)
        padded = torch.zeros(len(rows), width)
        mask = torch.zeros(len(rows), width)
        for i, row in enumerate(rows):
            padded[i, : len(row)], mask[i, : len(row)] = row, 1.0
        return padded, mask


@dataclass(kw_only=True)
class Padded(ToyRegression):
    """Padding changes the shapes, and so may the bits; the mask keeps it from changing the loss."""

    def train_data(self, *, root: str | None) -> Data:
        return PaddedData()

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, mask = batch
        errors = (model(x[..., None])[..., 0] - 1.0).square() * mask
        return SummedLoss(total=errors.sum(), num_items=int(mask.sum()))

    def count_items(self, batch: Batch) -> int:
        return int(batch[1].sum())

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        return [PaddedData().batch(np.arange(8))]

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        loss = self.loss(model, batch)
        return {"eval_loss": (float(loss.total), float(loss.num_items))}
