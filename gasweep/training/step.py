"""One optimizer step: groups → one gradient → unscale → clip → update."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gasweep.batching.accumulation import run_accumulated_step
from gasweep.training.accumulator import Accumulator
from gasweep.training.main_parameters import MainParameters
from gasweep.training.observer import GradientObserver
from gasweep.training.optimizer import clip_gradients, set_learning_rate
from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts


@dataclass(kw_only=True, slots=True)
class StepOutcome:
    """What one attempted optimizer step did.

    skipped: why no update was made: "overflow" (fp16) or "no_items" (no valid item in the effective batch).
    loss_sum: Σ loss of this rank (or of all, `Accumulator.loss_is_global`), a float64 device scalar.
    grad_norm: of the whole gradient before clipping, where something needed it.
    extra: what the observer measured.
    """

    skipped: str | None = None
    loss_sum: Tensor | None = None
    grad_norm: Tensor | None = None
    extra: dict[str, float | Tensor] = field(default_factory=dict)


class OptimizerStep:
    """Runs attempted optimizer steps. When to zero, sync and step, and what to divide by, is asked of
    `gasweep.batching`; how to add up, of the accumulator."""

    def __init__(
        self,
        parts: TrainingParts,
        *,
        accumulator: Accumulator,
        optimizer: torch.optim.Optimizer,
        main: MainParameters | None,
        observer: GradientObserver | None,
    ) -> None:
        self._parts = parts
        self._accumulator = accumulator
        self._optimizer = optimizer
        self._main = main
        self._observer = observer
        self._max_norm = parts.spec.config.optimizer.max_grad_norm
        self._tensors = [tensor for _, tensor in parts.parameters]

    def run(self, plan: StepPlan, *, learning_rate: float, observed: bool = False) -> StepOutcome:
        """Attempt one update at `learning_rate`; on return the parameters have moved, or it says why not."""
        outcome = StepOutcome()
        if plan.num_items == 0:
            outcome.skipped = "no_items"
            return outcome
        set_learning_rate(self._optimizer, learning_rate)
        observer = self._observer if observed else None
        finished = False

        def train_step(
            micro_batch: MicroBatch,
            *,
            zero_grad: bool,
            sync_gradients: bool,
            step_optimizer: bool,
            loss_divisor: float,
            collect_metrics: bool,
        ) -> None:
            nonlocal finished
            if zero_grad:
                self._accumulator.begin_step(plan)
                if observer is not None:
                    observer.begin_step(plan)
            with _around(observer, micro_batch):
                self._accumulator.accumulate(
                    micro_batch, loss_divisor=loss_divisor, sync_gradients=sync_gradients
                )
            if step_optimizer:
                finished = self._accumulator.finish_step()
            if finished and collect_metrics:
                outcome.loss_sum = self._accumulator.loss_sum()
                self._update(plan, outcome, observer)

        with self._parts.strategy.counting():
            while not finished:
                run_accumulated_step(
                    train_step,
                    plan.micro_batches,
                    counts=(plan.num_items,),
                    no_sync=self._parts.strategy.no_sync,
                )
        return outcome

    def _update(self, plan: StepPlan, outcome: StepOutcome, observer: GradientObserver | None) -> None:
        """One unscale, one clip, one step; under fp16 an overflow anywhere skips the step everywhere."""
        scaler = self._parts.precision.scaler
        if scaler is not None:
            scaler.unscale_(self._optimizer)
            if self._overflowed(scaler):
                outcome.skipped = "overflow"
        if outcome.skipped is None:
            self._measure_and_clip(plan, outcome, observer)
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        if self._main is not None:
            self._main.copy_back()

    def _measure_and_clip(
        self, plan: StepPlan, outcome: StepOutcome, observer: GradientObserver | None
    ) -> None:
        if self._max_norm is not None or observer is not None:
            outcome.grad_norm = self._accumulator.gradient_norm()
        if observer is not None:
            outcome.extra = observer.end_step(plan)
        if self._max_norm is not None and outcome.grad_norm is not None:
            shard = self._parts.strategy.shard
            gradients = [shard(tensor.grad) for tensor in self._tensors if tensor.grad is not None]
            clip_gradients(gradients, norm=outcome.grad_norm, max_norm=self._max_norm)

    def _overflowed(self, scaler: torch.amp.GradScaler) -> bool:
        """Whether any rank's gradient holds an inf or NaN; made so for the scaler of every rank, since a
        sharded one has seen its own shard only."""
        found = list(scaler._found_inf_per_device(self._optimizer).values())
        for flag in found:
            self._parts.strategy.all_reduce(self._parts.strategy.shard(flag))
        return any(bool(flag) for flag in found)


def _around(observer: GradientObserver | None, micro_batch: MicroBatch) -> AbstractContextManager[Any]:
    return contextlib.nullcontext() if observer is None else observer.around(micro_batch)
