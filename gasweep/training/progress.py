"""How far a run has come: everything that decides its next step, apart from tensors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from gasweep.results.records import EvalRecord


@dataclass(kw_only=True)
class RunProgress:
    """Plain data; a checkpoint holds it as JSON.

    attempted, applied: optimizer steps; the schedule and the weights move with the applied ones, randomness
        and the data stream with the attempted ones.
    contributions: examples used, repeats counted, by attempted steps; applied_contributions: by applied ones.
    next_evaluation: the applied optimizer step to evaluate at next.
    recent_losses: training loss per item of the last steps, the newest last.
    wall_s: seconds spent so far, over all attempts.
    """

    attempted: int = 0
    applied: int = 0
    contributions: int = 0
    applied_contributions: int = 0
    skipped_overflow: int = 0
    skipped_no_items: int = 0
    consecutive_skips: int = 0
    next_evaluation: int = 0
    recent_losses: list[float] = field(default_factory=list)
    evaluations: list[EvalRecord] = field(default_factory=list)
    wall_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunProgress:
        evaluations = [EvalRecord(**record) for record in data["evaluations"]]
        return cls(**{**data, "evaluations": evaluations})

    def advance(self, *, effective_batch_size: int, skipped: str | None) -> None:
        """Count one attempted optimizer step."""
        self.attempted += 1
        self.contributions += effective_batch_size
        self.consecutive_skips = 0 if skipped is None else self.consecutive_skips + 1
        if skipped is None:
            self.applied += 1
            self.applied_contributions += effective_batch_size
        elif skipped == "overflow":
            self.skipped_overflow += 1
        else:
            self.skipped_no_items += 1
