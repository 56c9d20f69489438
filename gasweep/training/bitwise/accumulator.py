"""The accumulator of `determinism: bitwise`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gasweep.data.index_stream import Indices
from gasweep.tasks.base import Batch, move
from gasweep.training.accumulator import Accumulator
from gasweep.training.bitwise.environment import kernel_fingerprint, refuse_other_kernels
from gasweep.training.bitwise.exchange import Exchange, exchange_for
from gasweep.training.bitwise.grains import Grain, check_grain, cut, most_grains, num_grains
from gasweep.training.bitwise.randomness import seed_grain
from gasweep.training.bitwise.refusals import BufferWatch, refuse_coupling, refuse_options, refuse_parameters
from gasweep.training.bitwise.totals import UNTOUCHED, GradientTotals
from gasweep.training.losses import summed_loss
from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts
from gasweep.training.strategies.base import trainable


class BitwiseAccumulator(Accumulator):
    """Forward and backward grain by grain; gradients and losses added in an order-independent form.

    Every layout of one B whose micro-batch is a whole number of grains runs the same grains, in the same
    shapes, from the same random numbers, and adds integers: the gradient has the same bits. The grid of a
    step follows from the largest gradient elements of the step before; where they do not fit, all ranks
    repeat the step on the grid that its own largest elements ask for.

    Raises RefusedError, at construction or in `finish_step`, where the same bits cannot be promised.
    """

    syncs_itself = True
    loss_is_global = True

    def __init__(self, parts: TrainingParts) -> None:
        super().__init__(parts)
        config, layout = parts.spec.config, parts.spec.layout
        check_grain(grain=config.grain, micro_batch_size=layout.micro_batch_size)
        refuse_coupling(parts.module)
        refuse_parameters(parts.parameters, parts.module)
        refuse_options(config.strategy_options)
        self._grain = config.grain
        self._exchange: Exchange = exchange_for(parts)
        shapes = [parameter.shape for parameter in trainable(parts.module)]
        is_wide = any(tensor.dtype == torch.float64 for _, tensor in parts.parameters)
        self._totals = GradientTotals(
            shapes, device=parts.device, dtype=torch.float64 if is_wide else torch.float32
        )
        self._expected_peaks = [0.0] * len(shapes)
        self._counts = True
        self.repeated_steps = 0

    def begin_step(self, plan: StepPlan) -> None:
        self._plan = plan
        self._num_grains = num_grains(plan.partition.effective_batch_size, grain=self._grain)
        self._totals.reset(self._expected_peaks, num_grains=self._num_grains)
        self._losses = torch.zeros(self._num_grains, dtype=torch.float64, device=self.parts.device)
        self._buffers = BufferWatch(self.parts.module)
        for _, tensor in self.parts.parameters:
            tensor.grad = None

    def accumulate(self, micro_batch: MicroBatch, *, loss_divisor: float, sync_gradients: bool) -> None:
        grains = cut(micro_batch.start, micro_batch.start + len(micro_batch.indices), grain=self._grain)
        with self.parts.strategy.own_gradients(self._take, take=True):
            for grain in grains:
                self._run(grain, micro_batch, loss_divisor)
            if self._exchange.every_rank_runs_equally_often:
                most = most_grains(self._plan.partition, micro_step=micro_batch.micro_step, grain=self._grain)
                for _ in range(most - len(grains)):
                    self._join(self._examples(micro_batch.indices[:0]))

    def finish_step(self) -> bool:
        self._buffers.refuse_changes()
        peaks = self._exchange.largest(self._totals.peaks).tolist()
        self._exchange.add_control(self._losses)
        if math.inf in peaks:
            self._exchange.fill_gradients(math.nan)
            return True
        expected = [max(peak, 0.0) or old for peak, old in zip(peaks, self._expected_peaks, strict=True)]
        if not self._totals.fits(peaks):
            self._expected_peaks = expected
            self.repeated_steps += 1
            return False
        reached = [peak != UNTOUCHED for peak in peaks]
        self._exchange.sum_gradients(self._totals, reached)
        self._expected_peaks = expected
        return True

    def loss_sum(self) -> Tensor:
        return self._losses.sum()

    def gradient_norm(self) -> Tensor:
        return self._exchange.gradient_norm()

    def unsynced_bytes(self, num_micro_steps: int) -> int:
        return self._exchange.unsynced_bytes(num_micro_steps)

    def report(self) -> dict[str, Any]:
        return {"grain": self._grain, "repeated_steps": self.repeated_steps}

    def state_dict(self) -> dict[str, Any]:
        return {
            "repeated_steps": self.repeated_steps,
            "expected_peaks": list(self._expected_peaks),
            "kernels": kernel_fingerprint(device=self.parts.device),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_other_kernels(state["kernels"], device=self.parts.device)
        self._expected_peaks = list(state["expected_peaks"])
        self.repeated_steps = int(state["repeated_steps"])

    def _run(self, grain: Grain, micro_batch: MicroBatch, loss_divisor: float) -> None:
        parts = self.parts
        batch = self._fetch(grain, micro_batch)
        num_items = parts.task.count_items(batch)
        if num_items == 0:
            if self._exchange.every_rank_runs_equally_often:
                self._join(batch)
            return
        seed_grain(
            seed=parts.spec.seed,
            optimizer_step=micro_batch.optimizer_step,
            grain_index=grain.index,
            device=parts.device,
        )
        with parts.precision.autocast():
            loss = parts.task.loss(parts.model, batch)
        total = summed_loss(loss, num_items=num_items)
        self._losses[grain.index] = total.detach()
        parts.precision.scale(total / loss_divisor).backward()  # type: ignore[no-untyped-call]
        self._totals.end_grain()

    def _join(self, batch: Batch) -> None:
        """Take part in the other ranks' forward and backward; nothing of it counts."""
        self._counts = False
        with self.parts.precision.autocast():
            loss = self.parts.task.loss(self.parts.model, batch)
        joined = summed_loss(loss, num_items=self.parts.task.count_items(batch))
        joined.backward()  # type: ignore[no-untyped-call]
        self._counts = True

    def _take(self, index: int, gradient: Tensor) -> None:
        if self._counts:
            self._totals.add(index, gradient)

    def _fetch(self, grain: Grain, micro_batch: MicroBatch) -> Batch:
        """The grain's examples, asked for alone: padding must not depend on their neighbours."""
        if grain.stop - grain.start == len(micro_batch.indices):
            return micro_batch.fetch()
        first = grain.start - micro_batch.start
        return self._examples(micro_batch.indices[first : first + grain.stop - grain.start])

    def _examples(self, indices: Indices) -> Batch:
        return move(self.parts.data.batch(indices), self.parts.device)
