"""What optimizer steps measured, read from the device in batches and handed on in batches."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gasweep.results.records import EvalRecord, StepRecord
from gasweep.training.agreement import Agreement, Decision
from gasweep.training.meter import StepTraffic
from gasweep.training.parts import TrainingParts
from gasweep.training.process import Sink
from gasweep.training.step import StepOutcome

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
    attempted: int
    row: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReading:
    """One attempted step, read. attempted: attempted steps with this one. loss: per item, non-finite if it
    was; None: the step had no item."""

    record: StepRecord
    attempted: int
    loss: float | None
    skipped: str | None
    seconds: float
    decision: Decision


class StepLog:
    """Collects steps and evaluations; rank 0 passes them to the sink.

    Steps that are read together share their wall time equally.
    """

    def __init__(
        self,
        parts: TrainingParts,
        *,
        sink: Sink,
        agreement: Agreement,
        tokens_per_example: float | None,
    ) -> None:
        self._parts = parts
        self._sink = sink
        self._agreement = agreement
        self._tokens_per_example = tokens_per_example
        self._every = parts.spec.config.tracking.every_optimizer_steps
        self._pending: list[_Pending] = []
        self._steps: list[StepRecord] = []
        self._evaluations: list[EvalRecord] = []
        self._handed_over_s = time.perf_counter()

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
        attempted: int,
        row: Tensor,
    ) -> None:
        """One attempted step. row: what the ranks agreed on after it."""
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
                attempted=attempted,
                row=row,
            )
        )

    def read(self, *, seconds: float) -> list[StepReading]:
        """The steps since the last read, which took `seconds` together."""
        if not self._pending:
            return []
        rows = torch.stack([pending.row for pending in self._pending]).tolist()
        share = seconds / len(self._pending)
        readings = [self._reading(p, row, share) for p, row in zip(self._pending, rows, strict=True)]
        self._pending.clear()
        for reading in readings:
            due = reading.record.optimizer_step % self._every == 0 or reading.record.extra
            if reading.skipped is None and due:
                self._steps.append(reading.record)
        return readings

    def drop_after(self, optimizer_step: int) -> None:
        """Forget steps read but not handed over yet that came after a run's end."""
        self._steps = [record for record in self._steps if record.optimizer_step <= optimizer_step]

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

    def _reading(self, pending: _Pending, row: list[float], seconds: float) -> StepReading:
        loss_sum, decision = self._agreement.read(row)
        loss = loss_sum / pending.num_items if pending.num_items else None
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
            attempted=pending.attempted,
            loss=loss,
            skipped=pending.outcome.skipped,
            seconds=seconds,
            decision=decision,
        )


def _finite(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _finite_values(extra: dict[str, Any]) -> dict[str, float]:
    read = {key: _finite(value) for key, value in extra.items()}
    return {key: value for key, value in read.items() if value is not None}
