"""Fast accumulation: autograd adds each group's gradient up, in fp32, in the order the groups run."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor

from gasweep.training.accumulator import Accumulator
from gasweep.training.losses import summed_loss
from gasweep.training.main_parameters import MainParameters
from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts
from gasweep.training.randomness import seed_micro_step


class FastAccumulator(Accumulator):
    """Gradients gather in `.grad` itself; the strategy syncs them in the last backward.

    Promise: equal gradients from equal parameters for every factorisation of one effective batch, up to the
    rounding of sums taken in another order.
    """

    def __init__(self, parts: TrainingParts) -> None:
        super().__init__(parts)
        self._tensors = [tensor for _, tensor in parts.parameters]
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=parts.device)
        self._seed, self._rank = parts.spec.seed, parts.process.rank
        self._cuda = parts.device.type == "cuda"

    def begin_step(self, plan: StepPlan) -> None:
        self.parts.strategy.reset_gradients(num_micro_steps=len(plan.micro_batches))
        self._loss_sum.zero_()
        self._num_syncs = 0

    def accumulate(self, micro_batch: MicroBatch, *, loss_divisor: float, sync_gradients: bool) -> None:
        parts = self.parts
        self._num_syncs += sync_gradients or parts.strategy.options.sync_every_micro_step
        seed_micro_step(
            self._seed,
            optimizer_step=micro_batch.optimizer_step,
            rank=self._rank,
            micro_step=micro_batch.micro_step,
            cuda=self._cuda,
        )
        with self._silenced(micro_batch):
            with parts.precision.autocast():
                loss = parts.task.loss(parts.model, micro_batch.fetch())
            total = summed_loss(loss, num_items=micro_batch.num_items)
            if micro_batch.num_items > 0:
                self._loss_sum += total.detach()
            torch.autograd.backward(parts.precision.scale(total / loss_divisor))

    def finish_step(self) -> bool:
        self.parts.strategy.check_synced(self._num_syncs)
        return True

    def loss_sum(self) -> Tensor:
        return self._loss_sum

    def _silenced(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        """A group without items must add exactly 0: the mean of nothing is NaN, and so is its gradient."""
        if micro_batch.num_items > 0:
            return contextlib.nullcontext()
        return self.parts.strategy.own_gradients(lambda _, gradient: torch.zeros_like(gradient))


class MainGradientAccumulator(FastAccumulator):
    """Each group's gradient is taken out of the parameters and added to fp32 gradients of its own.

    For low-precision parameters, whose own `.grad` would round at every addition, and for a DDP that syncs on
    every micro-step, whose buckets would otherwise sum what is already summed.

    syncs: "never" (one rank), "strategy" (DDP reduces each group's gradient during its backward), or
    "every_group" / "last" (this object asks the strategy to add fp32 gradients up).
    """

    def __init__(self, parts: TrainingParts, *, main: MainParameters, syncs: str) -> None:
        super().__init__(parts)
        self._main = main
        self._syncs = syncs

    def begin_step(self, plan: StepPlan) -> None:
        super().begin_step(plan)
        for tensor in self._tensors:
            tensor.grad = None

    def accumulate(self, micro_batch: MicroBatch, *, loss_divisor: float, sync_gradients: bool) -> None:
        super().accumulate(micro_batch, loss_divisor=loss_divisor, sync_gradients=sync_gradients)
        gradients = self._main.take_gradients()
        if self._syncs == "every_group":
            self.parts.strategy.all_reduce_gradients(self._filled(gradients))
        self._main.add_gradients(gradients)

    def finish_step(self) -> bool:
        if self._syncs == "last":
            gradients = self._filled([tensor.grad for tensor in self._tensors])
            self.parts.strategy.all_reduce_gradients(gradients)
            for tensor, gradient in zip(self._tensors, gradients, strict=True):
                tensor.grad = gradient
        return super().finish_step() if self._syncs == "strategy" else True

    def _filled(self, gradients: list[Tensor | None]) -> list[Tensor]:
        """Zeros where a backward did not reach: all ranks must send the same tensors."""
        for index, tensor in enumerate(self._tensors):
            if gradients[index] is None:
                gradients[index] = torch.zeros_like(tensor)
        return cast(list[Tensor], gradients)
