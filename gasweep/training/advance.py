"""Attempting optimizer steps one after another, with their log, shared by convergence runs and probes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gasweep.training.agreement import Agreement, Decision
from gasweep.training.build import Trainer
from gasweep.training.meter import StepTraffic, Traffic
from gasweep.training.process import Sink
from gasweep.training.progress import RunProgress
from gasweep.training.schedule import learning_rate_factor
from gasweep.training.step_log import StepLog, StepReading

Flags = Callable[[], tuple[bool, bool]]
SECONDS_PER_READ = 0.25
MAX_STEPS_PER_READ = 64


class Stepper:
    """Moves a run's progress by one attempted optimizer step at a time.

    On a CPU every step is read as it ends. On a GPU reading means waiting for it, so steps are read together,
    as many as take about a quarter of a second; rank 0 says how many, so that all ranks read, and act, after
    the same step.

    flags: (stop, save), asked on rank 0 whenever steps are read.
    traffic: of the last step that made an update and measured nothing beside it, if there was one.
    """

    def __init__(self, trainer: Trainer, *, progress: RunProgress, sink: Sink, flags: Flags) -> None:
        parts = trainer.parts
        self.tokens_per_example = _tokens_per_example(trainer)
        self.traffic = StepTraffic(model=Traffic(), control=Traffic(), unsynced_bytes=0)
        self._traffic_is_plain = False
        self._agreement = Agreement(parts, loss_is_global=trainer.accumulator.loss_is_global)
        self.log = StepLog(
            parts, sink=sink, agreement=self._agreement, tokens_per_example=self.tokens_per_example
        )
        self._trainer = trainer
        self._progress = progress
        self._flags = flags
        self._started_s: float | None = None
        self._read_at = progress.attempted + 1
        self._next_read_in = 1

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
        is_read = progress.attempted >= self._read_at
        row = self._agreement.row(outcome.loss_sum, self._decide(is_read))
        traffic = self._metered(plan.partition.accumulation_steps)
        self._note(traffic, is_plain=not observed and outcome.skipped is None)
        self.log.add(
            outcome,
            optimizer_step=progress.applied,
            contributions=progress.contributions,
            effective_batch_size=batch_size,
            num_items=plan.num_items,
            learning_rate=rate,
            traffic=traffic,
            attempted=progress.attempted,
            row=row,
        )
        return self.read() if is_read else []

    def read(self) -> list[StepReading]:
        """Read what has gathered. Time until the next attempt (evaluation, a checkpoint) is no step's."""
        if self._trainer.parts.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.parts.device)
        seconds = 0.0 if self._started_s is None else time.perf_counter() - self._started_s
        self._started_s = None
        readings = self.log.read(seconds=seconds)
        if readings:
            self._read_at = readings[-1].attempted + readings[-1].decision.next_read_in
            if self._trainer.parts.device.type == "cuda":
                wanted = SECONDS_PER_READ / max(readings[-1].seconds, 1e-9)
                self._next_read_in = max(1, min(MAX_STEPS_PER_READ, int(wanted)))
        return readings

    def _decide(self, is_read: bool) -> Decision:
        if not is_read or self._trainer.parts.process.rank != 0:
            return Decision(next_read_in=self._next_read_in)
        stop, save = self._flags()
        return Decision(stop=stop, save=save, next_read_in=self._next_read_in)

    def _metered(self, num_micro_steps: int) -> StepTraffic:
        """The step's traffic so far; what follows it (its log, an evaluation) is no part of it."""
        strategy = self._trainer.parts.strategy
        meter = strategy.meter
        accumulator = self._trainer.accumulator
        unsynced = accumulator.unsynced_bytes(num_micro_steps) if meter.model.by_collective else 0
        traffic = StepTraffic(model=meter.model, control=meter.control, unsynced_bytes=unsynced)
        meter.reset()
        return traffic

    def _note(self, traffic: StepTraffic, *, is_plain: bool) -> None:
        if is_plain or not self._traffic_is_plain:
            self.traffic, self._traffic_is_plain = traffic, is_plain

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
