"""What a worker is told to do: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gasweep.scheduling.backend import Attempt

DEFAULT_ENTRY = "gasweep.training:train_run"


@dataclass(frozen=True, kw_only=True)
class WorkOrder:
    """One rank's part of an attempt.

    spec: the RunSpec as plain data. entry: dotted path "module:function", called as
    `entry(spec, process=..., sink=..., run_directory=..., should_stop=...)`.
    timeout_s: how long a collective may wait for a rank.
    """

    spec: dict[str, Any]
    attempt: int
    rank: int
    world_size: int
    run_directory: str
    entry: str
    timeout_s: float

    @property
    def run_id(self) -> str:
        return str(self.spec["run_id"])

    @classmethod
    def for_ranks(cls, attempt: Attempt, *, entry: str, timeout_s: float) -> list[WorkOrder]:
        """The orders of an attempt, rank 0's first."""
        spec, world_size = attempt.spec.to_dict(), attempt.spec.layout.world_size
        return [
            cls(
                spec=spec,
                attempt=attempt.number,
                rank=rank,
                world_size=world_size,
                run_directory=str(attempt.run_directory),
                entry=entry,
                timeout_s=timeout_s,
            )
            for rank in range(world_size)
        ]
