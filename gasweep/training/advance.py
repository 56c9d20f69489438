"""Attempting optimizer steps one after another, with their log, shared by convergence runs and probes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gasweep.training.build import Trainer
from gasweep.training.meter import StepTraffic, Traffic
from gasweep.training.process import Sink
from gasweep.training.progress import RunProgress
from gasweep.training.schedule import learning_rate_factor
from gasweep.training.step_log import StepLog, StepReading

Flags = Callable[[], tuple[bool, bool]]


class Stepper:
    """Moves a run's progress by one attempted optimizer step at a time.

    flags: (stop, save), asked on rank 0 whenever steps are read; its answer reaches every rank with that
        step's loss.
    """

    def __init__(self, trainer: Trainer, *, progress: RunProgress, sink: Sink, flags: Flags) -> None:
        parts = trainer.parts
        self.tokens_per_example = _tokens_per_example(trainer)
        self.traffic = StepTraffic(model=Traffic(), control=Traffic(), unsynced_bytes=0)
        self.log = StepLog(
            parts,
            sink=sink,
            loss_is_global=trainer.accumulator.loss_is_global,
            tokens_per_example=self.tokens_per_example,
        )
        self._trainer = trainer
        self._progress = progress
        self._flags = flags
        self._started_s: float | None = None

    def attempt(self) -> list[StepReading]:
        """One attempted step; returns the steps read after it, none while they gather on a GPU."""
        if self._started_s is None:
            self._started_s = time.perf_counter()
        parts, progress = self._trainer.parts, self._progress
        batch_size = parts.spec.effective_batch_size
        parts.strategy.meter.reset()
        rate = parts.spec.learning_rate * learning_rate_factor(
            parts.spec.config.schedule,
            optimizer_step=progress.applied + 1,
            contributions=progress.applied_contributions,
        )
        observed = self._is_observed(batch_size)
        plan = self._trainer.planner.plan(
            optimizer_step=progress.attempted,
            contributions=progress.contributions,
            effective_batch_size=batch_size,
            micro_batch_size=self._micro_batch_size(observed),
        )
        outcome = self._trainer.step.run(plan, learning_rate=rate, observed=observed)
        progress.advance(effective_batch_size=batch_size, skipped=outcome.skipped)
        is_read = self.log.is_read_after(progress.attempted)
        flags = self._flags() if is_read and parts.process.rank == 0 else (False, False)
        agreed = self.log.agree(outcome.loss_sum, flags)
        self.traffic = self._metered(plan.partition.accumulation_steps)
        self.log.add(
            outcome,
            optimizer_step=progress.applied,
            contributions=progress.contributions,
            effective_batch_size=batch_size,
            num_items=plan.num_items,
            learning_rate=rate,
            traffic=self.traffic,
            agreed=agreed,
        )
        return self.read() if is_read else []

    def read(self) -> list[StepReading]:
        """Read what has gathered. Time until the next attempt (evaluation, a checkpoint) is no step's."""
        if self._trainer.parts.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.parts.device)
        seconds = 0.0 if self._started_s is None else time.perf_counter() - self._started_s
        self._started_s = None
        return self.log.read(seconds=seconds)

    def _metered(self, num_micro_steps: int) -> StepTraffic:
        """The step's traffic so far; what follows it (its log, an evaluation) is no part of it."""
        strategy = self._trainer.parts.strategy
        meter = strategy.meter
        unsynced = strategy.unsynced_bytes(num_micro_steps) if meter.model.calls else 0
        traffic = StepTraffic(model=meter.model, control=meter.control, unsynced_bytes=unsynced)
        meter.reset()
        return traffic

    def _is_observed(self, batch_size: int) -> bool:
        observer, progress = self._trainer.observer, self._progress
        return observer is not None and observer.observes(
            optimizer_step=progress.attempted,
            contributions=progress.contributions,
            effective_batch_size=batch_size,
        )

    def _micro_batch_size(self, observed: bool) -> int:
        size = self._trainer.parts.spec.layout.micro_batch_size
        observer = self._trainer.observer
        return observer.max_group_size(size) if observed and observer is not None else size


def _tokens_per_example(trainer: Trainer) -> float | None:
    """Mean over the data's first 64 examples; None where tokens do not exist."""
    parts = trainer.parts
    count = min(len(parts.data), 64)
    indices = torch.arange(count).numpy()
    num_tokens = parts.task.num_tokens(parts.data.batch(indices))
    return None if num_tokens is None else num_tokens / count
