"""What optimizer steps measured, read from the device in batches and handed on in batches."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gasweep.errors import TaskError
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.training.meter import StepTraffic
from gasweep.training.parts import TrainingParts
from gasweep.training.process import Sink
from gasweep.training.step import StepOutcome

_CUDA_STEPS_PER_READ = 16
_SECONDS_PER_HANDOVER = 0.25


@dataclass(kw_only=True, slots=True)
class _Pending:
    optimizer_step: int
    contributions: int
    effective_batch_size: int
    num_items: int
    learning_rate: float
    outcome: StepOutcome
    bytes_on_wire: int
    bytes_saved: int
    loss_and_flags: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReading:
    """One attempted step, read. loss: per item, non-finite if it was; None: the step had no item."""

    record: StepRecord
    loss: float | None
    skipped: str | None
    seconds: float
    flags: tuple[bool, bool]


class StepLog:
    """Collects steps and evaluations; rank 0 passes them to the sink.

    On a CPU every step is read as it ends. On a GPU reading means waiting for it, so steps are read 16 at a
    time and share their wall time equally; which steps are read depends on the step number alone, so all
    ranks read, and decide, together.
    """

    def __init__(
        self, parts: TrainingParts, *, sink: Sink, loss_is_global: bool, tokens_per_example: float | None
    ) -> None:
        self._parts = parts
        self._sink = sink
        self._tokens_per_example = tokens_per_example
        self._contributes_loss = parts.process.rank == 0 or not loss_is_global
        self._every = parts.spec.config.tracking.every_optimizer_steps
        self._steps_per_read = _CUDA_STEPS_PER_READ if parts.device.type == "cuda" else 1
        self._pending: list[_Pending] = []
        self._steps: list[StepRecord] = []
        self._evaluations: list[EvalRecord] = []
        self._handed_over_s = time.perf_counter()

    def is_read_after(self, attempted: int) -> bool:
        """Whether the step that makes `attempted` attempted steps is followed by a read."""
        return attempted % self._steps_per_read == 0

    def add(
        self,
        outcome: StepOutcome,
        *,
        optimizer_step: int,
        contributions: int,
        effective_batch_size: int,
        num_items: int,
        learning_rate: float,
        traffic: StepTraffic,
        agreed: Tensor,
    ) -> None:
        """One attempted step. agreed: what `agree` returned for it."""
        self._pending.append(
            _Pending(
                optimizer_step=optimizer_step,
                contributions=contributions,
                effective_batch_size=effective_batch_size,
                num_items=num_items,
                learning_rate=learning_rate,
                outcome=outcome,
                bytes_on_wire=traffic.model.total_bytes,
                bytes_saved=traffic.unsynced_bytes - traffic.model.total_bytes,
                loss_and_flags=agreed,
            )
        )

    def read(self, *, seconds: float) -> list[StepReading]:
        """The steps since the last read, which took `seconds` together."""
        if not self._pending:
            return []
        rows = torch.stack([pending.loss_and_flags for pending in self._pending]).tolist()
        share = seconds / len(self._pending)
        readings = [self._reading(p, row, share) for p, row in zip(self._pending, rows, strict=True)]
        self._pending.clear()
        for reading in readings:
            due = reading.record.optimizer_step % self._every == 0 or reading.record.extra
            if reading.skipped is None and due:
                self._steps.append(reading.record)
        return readings

    def add_evaluation(self, record: EvalRecord) -> None:
        self._evaluations.append(record)

    def hand_over(self, *, now: bool = False) -> None:
        """Give the sink what has gathered, a few times a second or at once."""
        clock = time.perf_counter()
        if not now and clock - self._handed_over_s < _SECONDS_PER_HANDOVER:
            return
        self._handed_over_s = clock
        if self._parts.process.rank == 0 and (self._steps or self._evaluations):
            self._sink(steps=self._steps, evaluations=self._evaluations)
        self._steps, self._evaluations = [], []

    def agree(self, loss_sum: Tensor | None, flags: tuple[bool, bool]) -> Tensor:
        """[Σ loss, *flags, Σ order, Σ order²] over ranks, on the device, the flags being rank 0's; one small
        all-reduce, none on one rank."""
        order = self._parts.strategy.call_order()
        row = torch.tensor([0.0, *flags, order, order**2], dtype=torch.float64, device=self._parts.device)
        if loss_sum is not None and self._contributes_loss:
            row[0] = loss_sum
        return row if self._parts.process.world_size == 1 else self._parts.strategy.all_reduce(row)

    def _reading(self, pending: _Pending, row: list[float], seconds: float) -> StepReading:
        self._refuse_different_orders(total=int(row[3]), of_squares=int(row[4]))
        loss = row[0] / pending.num_items if pending.num_items else None
        rate = pending.effective_batch_size / seconds if seconds > 0 else None
        tokens = self._tokens_per_example
        record = StepRecord(
            optimizer_step=pending.optimizer_step,
            contributions=pending.contributions,
            loss=_finite(loss),
            learning_rate=pending.learning_rate,
            grad_norm=_finite(pending.outcome.grad_norm),
            seconds=seconds,
            examples_per_s=rate,
            tokens_per_s=None if rate is None or tokens is None else rate * tokens,
            bytes_on_wire=pending.bytes_on_wire,
            bytes_saved=pending.bytes_saved,
            extra=_finite_values(pending.outcome.extra),
        )
        return StepReading(
            record=record,
            loss=loss,
            skipped=pending.outcome.skipped,
            seconds=seconds,
            flags=(row[1] > 0, row[2] > 0),
        )

    def _refuse_different_orders(self, *, total: int, of_squares: int) -> None:
        # Equality in the Cauchy-Schwarz inequality: all ranks gave the same number.
        if self._parts.process.world_size * of_squares != total**2:
            raise TaskError(
                "strategy='fsdp': the ranks ran different sharded submodules in one optimizer step, so their "
                "parameters were mixed up; let task.parallelize() name only submodules that every forward "
                "runs, or use strategy=ddp"
            )


def _finite(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _finite_values(extra: dict[str, Any]) -> dict[str, float]:
    read = {key: _finite(value) for key, value in extra.items()}
    return {key: value for key, value in read.items() if value is not None}
