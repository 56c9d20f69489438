"""The life of a run: one enum, one transition table."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    REACHED = "reached"  # convergence: the hardest target was reached; probe: measured
    CENSORED = "censored"  # the budget ended first
    DIVERGED = "diverged"
    PRUNED = "pruned"  # stopped because it could no longer change the answer
    FAILED = "failed"
    INFEASIBLE = "infeasible"  # asks for more than the cluster can ever give, or for what it cannot do
    INTERRUPTED = "interrupted"  # stopped by the user or a lost driver; resumable


FINISHED = frozenset({RunState.REACHED, RunState.CENSORED, RunState.DIVERGED, RunState.PRUNED})

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.WAITING: frozenset({RunState.RUNNING, RunState.INFEASIBLE, RunState.PRUNED, *FINISHED}),
    RunState.RUNNING: frozenset({*FINISHED, RunState.FAILED, RunState.INTERRUPTED, RunState.WAITING}),
    RunState.INTERRUPTED: frozenset({RunState.RUNNING, RunState.WAITING, RunState.INFEASIBLE, *FINISHED}),
    RunState.FAILED: frozenset({RunState.WAITING}),
    RunState.INFEASIBLE: frozenset({RunState.WAITING}),
    RunState.REACHED: frozenset(),
    RunState.CENSORED: frozenset({RunState.WAITING}),  # a larger budget reopens it
    RunState.DIVERGED: frozenset(),
    RunState.PRUNED: frozenset(),
}


def check_transition(old: RunState, new: RunState) -> None:
    """Assert an invariant: only the table's transitions happen."""
    if new not in TRANSITIONS[old]:
        raise AssertionError(f"run state {old} cannot become {new}")
