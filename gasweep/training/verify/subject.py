"""A task under examination: losses and gradients of small groups, at fixed parameters, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gasweep.config.run_spec import RunSpec
from gasweep.data.index_stream import Indices
from gasweep.tasks.base import Batch, Data, MeanLoss, Task, move
from gasweep.training.randomness import seed_everything
from gasweep.training.verify.silence import without_dropout
from gasweep.training.verify.widened import double


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the task said of one group. summed: the loss as the trainer takes it, Σ over items.

    gradient: of `summed`, all parameters end to end. num_items: the loss's own count; counted: what
    `count_items` says.
    """

    summed: float
    gradient: Tensor
    num_items: int
    counted: int
    is_mean: bool


class Subject:
    """One task's model and data. tolerance: relative difference that is not rounding."""

    def __init__(self, spec: RunSpec, task: Task, *, device: torch.device, wide: bool) -> None:
        self.task = task
        self.data: Data = task.train_data(root=spec.config.data.root)
        self.wide = wide
        self.device = device
        seed_everything(spec.seed, "init", cuda=device.type == "cuda")
        model = task.build_model()
        self.model: nn.Module = (model.double() if wide else model).to(device).train()
        self.tolerance = 1e-8 if wide else 2e-3

    def indices(self, *sizes: int) -> list[Indices]:
        """Disjoint groups of these sizes, spread over the data (repeating where there are too few)."""
        total = sum(sizes)
        spread = (np.arange(total, dtype=np.int64) * 7919) % len(self.data)
        return list(np.split(spread, np.cumsum(sizes)[:-1]))

    def batch(self, indices: Indices) -> Batch:
        batch = self.data.batch(indices)
        return move(double(batch) if self.wide else batch, self.device)

    def ask(self, indices: Indices, *, seed: int = 0, silent: bool = True) -> Answer:
        """Loss and gradient of one group, torch's generators seeded with `seed` before it."""
        mode: AbstractContextManager[object] = without_dropout() if silent else contextlib.nullcontext()
        batch = self.batch(indices)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        with mode:
            loss = self.task.loss(self.model, batch)
            is_mean = isinstance(loss, MeanLoss)
            total = loss.mean * loss.num_items if isinstance(loss, MeanLoss) else loss.total
            total.backward()  # type: ignore[no-untyped-call]
        gradient = self._gradient()
        is_empty = loss.num_items == 0  # the mean of nothing is NaN; such a group adds 0
        return Answer(
            summed=0.0 if is_empty else float(total.detach()),
            gradient=torch.zeros_like(gradient) if is_empty else gradient,
            num_items=loss.num_items,
            counted=self.task.count_items(batch),
            is_mean=is_mean,
        )

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """Whether two gradients differ by more than rounding."""
        scale = max(float(a.abs().max()), float(b.abs().max()))
        return not float((a - b).abs().max()) <= self.tolerance * scale

    def restored(self) -> AbstractContextManager[None]:
        """Put buffers back after the block, whatever the forward did to them."""
        return _restored(self.model)

    def _gradient(self) -> Tensor:
        pieces = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).double()
            for p in self.model.parameters()
            if p.requires_grad
        ]
        return torch.cat(pieces) if pieces else torch.zeros(1)


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    saved = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in saved and saved[name].shape == buffer.shape:
                    buffer.copy_(saved[name])


Check = Callable[[Subject], list[str]]
