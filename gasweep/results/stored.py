"""What the journal gives back about runs, beside the records themselves. Times: seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gasweep.results.states import FINISHED, RunState


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as the journal knows it.

    spec: plain data of its RunSpec (`RunSpec.from_dict` rebuilds it).
    current: whether the latest grid holds it; runs of an earlier grid keep their records.
    num_attempts: attempts started so far.
    """

    run_id: str
    spec: dict[str, Any]
    state: RunState
    reason: str | None
    current: bool
    num_attempts: int
    updated_at: float

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def kind(self) -> str:
        return str(self.spec["kind"])

    @property
    def effective_batch_size(self) -> int:
        return int(self.spec["effective_batch_size"])

    @property
    def micro_batch_size(self) -> int:
        return int(self.spec["layout"]["micro_batch_size"])

    @property
    def world_size(self) -> int:
        return int(self.spec["layout"]["world_size"])

    @property
    def accumulation_steps(self) -> int:
        return int(self.spec["layout"]["accumulation_steps"])

    @property
    def syncs_every_micro_step(self) -> bool:
        """The twin of a layout in a bench, where that makes a difference."""
        return bool(self.spec["config"]["strategy_options"]["sync_every_micro_step"])

    @property
    def learning_rate(self) -> float:
        return float(self.spec["learning_rate"])

    @property
    def seed(self) -> int:
        return int(self.spec["seed"])

    @property
    def axes(self) -> dict[str, Any]:
        return dict(self.spec.get("axes", {}))


@dataclass(frozen=True, kw_only=True)
class StoredAttempt:
    """One try of a run; `ended_at` None: running, or its driver died before it could say."""

    run_id: str
    number: int
    started_at: float
    ended_at: float | None
    cause: str | None
    message: str | None


@dataclass(frozen=True, kw_only=True)
class StoredTransition:
    run_id: str
    old_state: RunState
    new_state: RunState
    reason: str | None
    at: float


@dataclass(frozen=True, kw_only=True)
class ConfigVersion:
    """A resolved config the sweep ran under, and the code revision and versions it ran with."""

    version: int
    recorded_at: float
    config: dict[str, Any]
    environment: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LastProgress:
    """The newest measurements of a run; None where there are none yet."""

    optimizer_step: int
    contributions: int
    loss: float | None
    examples_per_s: float | None
    tokens_per_s: float | None
    evaluation_metrics: dict[str, float] | None
    evaluation_optimizer_step: int | None


def config_changes(old: dict[str, Any], new: dict[str, Any], *, prefix: str = "") -> list[str]:
    """One line per dotted path whose value differs, e.g. "budget.max_examples: 100 -> 200"."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        path = f"{prefix}{key}"
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += config_changes(before, after, prefix=f"{path}.")
        elif before != after:
            lines.append(f"{path}: {before!r} -> {after!r}")
    return lines
