"""What a sweep has no result of, and why: said last, where progress has not scrolled it away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gasweep.config.plan import Rejected
from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState

MAX_LAYOUTS = 6


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Runs that share a reason. state: "failed", "infeasible", or "rejected" for what never became a run.

    layouts: distinct ones as "b x N x G", in grid order.
    """

    state: str
    reason: str
    layouts: tuple[str, ...]
    num_runs: int

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self), layouts=list(self.layouts))


def left_out(reader: JournalReader, rejected: Sequence[Rejected] = ()) -> list[LeftOut]:
    """Of the current grid, grouped by state and reason; rejected: combinations of axes that are no run."""
    groups: dict[tuple[str, str], list[str]] = {}
    for run in reader.runs(current_only=True):
        if run.state in (RunState.FAILED, RunState.INFEASIBLE):
            layout = f"{run.micro_batch_size}x{run.world_size}x{run.accumulation_steps}"
            groups.setdefault((run.state.value, run.reason or "no reason was recorded"), []).append(layout)
    for item in rejected:
        groups.setdefault(("rejected", item.reason), []).append(str(item.point))
    return [
        LeftOut(state=state, reason=reason, layouts=tuple(dict.fromkeys(names)), num_runs=len(names))
        for (state, reason), names in groups.items()
    ]


def left_out_lines(groups: Sequence[LeftOut]) -> list[str]:
    """One line per reason."""
    return [f"{group.state}: {_names(group)}: {group.reason}" for group in groups]


def _names(group: LeftOut) -> str:
    more = len(group.layouts) - MAX_LAYOUTS
    names = ", ".join(group.layouts[:MAX_LAYOUTS]) + (f" and {more} more" if more > 0 else "")
    return names if group.num_runs == len(group.layouts) else f"{names} ({group.num_runs} runs)"
