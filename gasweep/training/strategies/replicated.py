"""What single process and DDP share: every rank holds the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gasweep.training.strategies.base import Strategy
from gasweep.training.strategies.tensor_files import WHOLE_FILE, read_sharded, read_whole, write_whole


class ReplicatedStrategy(Strategy):
    """Whole parameters, gradients and optimizer state on every rank."""

    def gradient_norm(self, parameters: list[Tensor]) -> Tensor:
        gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield name, parameter.detach()
        yield from self.module.named_buffers()

    def write_tensors(self, tensors: dict[str, Tensor], folder: Path) -> None:
        if self.process.rank == 0:
            write_whole(tensors, folder)

    def read_tensors(self, tensors: dict[str, Tensor], folder: Path) -> None:
        if (folder / WHOLE_FILE).exists():
            read_whole(tensors, folder)
        else:
            read_sharded(tensors, folder)

    def unsynced_bytes(self, num_micro_steps: int) -> int:
        return self.meter.model.total_bytes
