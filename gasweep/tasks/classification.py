"""Image classification by a small MLP: what Digits and FashionMnist share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gasweep.tasks.arguments import require_whole
from gasweep.tasks.base import Batch, Data, SummedLoss, Task

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class LabelledImages(Data):
    """pixels [D, num_features] uint8 and labels [D] int64; a batch is (pixels, labels) as torch tensors."""

    pixels: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Array) -> Batch:
        import torch

        return torch.from_numpy(self.pixels[indices]), torch.from_numpy(self.labels[indices])


@dataclass(kw_only=True)
class ImageClassification(Task):
    """Cross-entropy on pixels; the item of the loss is the example.

    hidden: width of each hidden layer.
    layers: number of hidden ReLU layers; 0 is softmax regression.
    """

    hidden: int = 64
    layers: int = 1

    def __post_init__(self) -> None:
        require_whole(type(self).__name__, "hidden", self.hidden, at_least=1)
        require_whole(type(self).__name__, "layers", self.layers, at_least=0)

    @abstractmethod
    def held_out(self, *, root: str | None) -> LabelledImages:
        """The examples of `eval_batches`, in their fixed order."""

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        return SummedLoss(total=self.group_losses(model, batch).sum(), num_items=len(batch[1]))

    def group_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        from torch.nn import functional

        pixels, labels = batch
        return functional.cross_entropy(model(pixels), labels, reduction="none")

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        data = self.held_out(root=root)
        return fixed_batches(data, batch_size=batch_size, max_examples=max_examples)

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        from torch.nn import functional

        pixels, labels = batch
        logits = model(pixels)
        loss = functional.cross_entropy(logits, labels, reduction="none").double().sum()
        correct = (logits.argmax(dim=1) == labels).sum()
        count = float(len(labels))
        return {"eval_loss": (float(loss), count), "eval_accuracy": (float(correct), count)}

    def metrics(self) -> tuple[str, ...]:
        return ("eval_loss", "eval_accuracy")


def fixed_batches(data: Data, *, batch_size: int, max_examples: int | None) -> list[Batch]:
    """The first `max_examples` of `data` (None: all), in order, in batches of `batch_size`."""
    count = len(data) if max_examples is None else min(max_examples, len(data))
    starts = range(0, count, batch_size)
    return [data.batch(np.arange(start, min(start + batch_size, count))) for start in starts]
