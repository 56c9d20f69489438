"""Pure placement: which of the waiting runs start now, on how many free workers.

First in, first out, with backfill: a run that does not fit lets later ones pass. So that a large world
size does not starve, every worker that passes it is counted, and when those reach `patience_workers` nothing
passes any more until it starts. A run is therefore passed by fewer than `patience_workers` workers plus one
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

BACKFILL_DEPTH = 500  # waiting runs looked at per call; keeps a placement cheap when ten thousand wait


class Company(StrEnum):
    """What a run may share the cluster with."""

    ANY = "any"  # everything but a run that wants other company
    ALIKE = "alike"  # only runs that ask for the same
    ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A waiting or running run, as far as placement cares."""

    run_id: str
    world_size: int
    company: Company = Company.ANY


@dataclass(frozen=True, kw_only=True)
class Placement:
    """start: run ids to start now, in order. passed: run id -> workers that have started past it so far,
    for the next call (runs that were never passed are absent)."""

    start: list[str] = field(default_factory=list)
    passed: dict[str, int] = field(default_factory=dict)


def place(
    waiting: Sequence[Request],
    *,
    running: Sequence[Request],
    free_workers: int,
    passed: Mapping[str, int],
    patience_workers: int,
) -> Placement:
    """Choose what to start.

    waiting: most wanted first; each can run on this cluster at some time.
    patience_workers: workers that may start past a blocked run before it is waited for.
    """
    start: list[str] = []
    counts = dict(passed)
    blocked: list[str] = []
    beside = {request.company for request in running}
    someone_is_due = False
    for request in waiting[:BACKFILL_DEPTH]:
        if free_workers == 0 or someone_is_due:
            break
        if request.world_size > free_workers or not _welcome(request.company, beside):
            blocked.append(request.run_id)
            someone_is_due = counts.get(request.run_id, 0) >= patience_workers
            continue
        start.append(request.run_id)
        beside.add(request.company)
        free_workers -= request.world_size
        counts.pop(request.run_id, None)
        for run_id in blocked:
            counts[run_id] = counts.get(run_id, 0) + request.world_size
            someone_is_due = someone_is_due or counts[run_id] >= patience_workers
    return Placement(start=start, passed=counts)


def _welcome(company: Company, beside: set[Company]) -> bool:
    return not beside or (company is not Company.ALONE and beside == {company})


def wanted_workers(waiting: Sequence[Request], running: Sequence[Request]) -> int:
    """Workers that could be used at once: runs that want to be alone count one at a time."""
    alone = [item.world_size for item in waiting if item.company is Company.ALONE]
    if alone and waiting[0].company is Company.ALONE:
        return max(alone)
    return sum(item.world_size for item in (*waiting, *running))
