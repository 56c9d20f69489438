"""The task contract: what is trained.

A task is a keyword-only dataclass deriving from `Task`; its fields are the config keys under `task:`. Its
module may import torch, but shipped tasks import it inside their methods so that `gasweep plan` stays light.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

Batch = Any  # a tensor, or a (nested) tuple, list or dict of tensors, examples along dimension 0


@dataclass(frozen=True, kw_only=True)
class SummedLoss:
    """A group's loss as a sum over its items, and how many items were summed.

    total: scalar tensor with graph, Σ loss over the group's valid items.
    num_items: examples, or valid tokens; 0 is legal (a group without a valid token contributes nothing).
    """

    total: Tensor
    num_items: int


@dataclass(frozen=True, kw_only=True)
class MeanLoss:
    """A group's loss as a mean, with the number of items it averages; converted to a sum by the trainer."""

    mean: Tensor
    num_items: int


class Data(ABC):
    """A finite, indexable set of training examples. Immutable once built; safe to read from any thread."""

    @abstractmethod
    def __len__(self) -> int:
        """D, the number of distinct examples; at least 1."""

    @abstractmethod
    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        """The examples at `indices` (shape [n], int64, repeats allowed, n may be 0), on the CPU.

        Depends on `indices` alone: no hidden state, no randomness.
        """


class Task(ABC):
    """What is trained, on what, by which loss, and how it is evaluated.

    Every method must be deterministic given its arguments and the torch RNG state; the trainer seeds that
    state from named streams before `build_model` and before each group's forward pass.
    Errors: raise `gasweep.errors.TaskError` (one line) for arguments that cannot work.
    """

    @abstractmethod
    def train_data(self, *, root: str | None) -> Data:
        """Training examples; `root` is `data.root` (None: what is shipped or generated)."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A freshly initialised model in fp32 on the CPU, its randomness from torch's global RNG alone."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss | MeanLoss:
        """The training loss of one group. Call `model(...)` exactly once (wrappers hook the forward).

        The group may be empty (n = 0): still run the model, so that every rank joins the last backward.
        """

    @abstractmethod
    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        """Held-out examples in fixed batches: the same whatever b, N and G are."""

    @abstractmethod
    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        """Metric -> (sum, count) over one evaluation batch, under no_grad; must hold "eval_loss".

        The trainer reports Σ sum / Σ count, added in batch order in double precision.
        """

    def count_items(self, batch: Batch) -> int:
        """Items `loss` will sum over for this group, known before the forward; default: its examples."""
        return num_examples(batch)

    def items_per_example(self) -> int | None:
        """Items of every example, where all have equally many: the step's item count is then known without
        asking the other ranks before each first backward. None: counts differ from example to example."""
        return 1 if type(self).count_items is Task.count_items else None

    def num_tokens(self, batch: Batch) -> int | None:
        """Tokens in the group for tokens/s; None where tokens do not exist."""
        return None

    def metrics(self) -> tuple[str, ...]:
        """The names `eval_sums` returns, so that `target.metric` can be checked before anything runs."""
        return ("eval_loss",)

    def group_losses(self, model: nn.Module, batch: Batch) -> Tensor | None:
        """Per-item summed losses per example, shape [n], or None where the task cannot tell them apart.

        Used only to measure the gradient noise scale when an optimizer step has a single group.
        """
        return None

    def flops_per_example(self, model: nn.Module) -> float | None:
        """Model FLOPs (forward + backward, no recomputation) per example, for MFU; None: 6·parameters."""
        return None

    def parallelize(self, model: nn.Module) -> list[nn.Module] | None:
        """Submodules that FSDP shards as units of their own; None: the root alone."""
        return None


def num_examples(batch: Batch) -> int:
    """Length of dimension 0 of the first tensor found in a batch."""
    if isinstance(batch, dict):
        return num_examples(next(iter(batch.values())))
    if isinstance(batch, (tuple, list)):
        return num_examples(batch[0])
    return int(batch.shape[0])


def move(batch: Batch, device: torch.device | str) -> Batch:
    """The batch with every tensor on `device`; on its way to a GPU through pinned memory, so that the copy
    does not wait for the work already queued there."""
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        moved = [move(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if not hasattr(batch, "to"):
        return batch
    if str(device).startswith("cuda") and batch.device.type == "cpu":
        batch = batch.pin_memory()
    return batch.to(device, non_blocking=True)
