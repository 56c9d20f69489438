"""What ranks tell each other once per optimizer step: one small all-reduce, none on one rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gasweep.errors import TaskError
from gasweep.training.parts import TrainingParts


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What rank 0 wants of every rank after a step: stop, save a checkpoint, and when to read again (in
    attempted steps; reading waits for the device)."""

    stop: bool = False
    save: bool = False
    next_read_in: int = 1


class Agreement:
    """Rows of numbers on the device, summed over ranks: [Σ loss, decision of rank 0, checks].

    loss_is_global: every rank already holds the same Σ loss.
    """

    def __init__(self, parts: TrainingParts, *, loss_is_global: bool) -> None:
        self._parts = parts
        self._world_size = parts.process.world_size
        self._contributes_loss = parts.process.rank == 0 or not loss_is_global

    def row(self, loss_sum: Tensor | None, decision: Decision) -> Tensor:
        """Collective. decision: counts on rank 0 only."""
        order = self._parts.strategy.call_order()
        own = [0.0, 0.0, 0.0, 0.0, order, order**2]
        if self._parts.process.rank == 0:
            own[1:4] = [decision.stop, decision.save, decision.next_read_in]
        row = _on_device(own, self._parts.device)
        if loss_sum is not None and self._contributes_loss:
            row[0] = loss_sum
        return row if self._world_size == 1 else self._parts.strategy.all_reduce(row)

    def read(self, row: list[float]) -> tuple[float, Decision]:
        """Σ loss and rank 0's decision. Raises TaskError when ranks did not run the same collectives."""
        # Equality in the Cauchy-Schwarz inequality: all ranks gave the same number.
        if self._world_size * int(row[5]) != int(row[4]) ** 2:
            raise TaskError(
                "strategy='fsdp': the ranks ran different sharded submodules in one optimizer step, so their "
                "parameters were mixed up; let task.parallelize() name only submodules that every forward "
                "runs, or use strategy=ddp"
            )
        return row[0], Decision(stop=row[1] > 0, save=row[2] > 0, next_read_in=max(1, int(row[3])))


def _on_device(values: list[float], device: torch.device) -> Tensor:
    """`values` as float64 on `device`, without waiting for it (a copy from pageable memory would)."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.float64)
    row = torch.zeros(len(values), dtype=torch.float64, device=device)
    for index, value in enumerate(values):
        if value:
            row[index] = value
    return row
