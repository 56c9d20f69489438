"""Which run is worth most next. Pure ask/tell: no clock, no I/O, the same answer for the same history.

The order, and why:

1. Throughput probes first, fewest examples first. They take seconds, they must not be timed beside other
   work where workers share a machine (see `company_of`), and at the start of a sweep they need not wait for
   any. In the middle of a sweep each would have to drain the cluster.
2. Convergence runs in rounds, one per seed: a whole first estimate exists when the first round has ended, and
   every later round narrows it.
3. In a round, learning rates from the middle of the grid outwards: the best guess first.
4. Then the larger world size first, which packs the cluster without holes (the scheduler's ageing keeps it
   from starving when it waits), and batch sizes from the ends of their range inwards: both regimes of the
   curve, perfect scaling and saturation, are seen before the points between them.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Sequence

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import RunResult
from gasweep.results.states import RunState
from gasweep.scheduling.scheduler import Company

Order = tuple[float, ...]


class Study:
    """The runs of a sweep, in falling order of worth.

    `tell` is called for every change of a run's state, with the result when there is one. What `ask` returns
    depends only on the runs given and what was told. A run is waiting until it is told otherwise.
    """

    def __init__(self, *, runs: Sequence[RunSpec], probes: Sequence[RunSpec]) -> None:
        order = {spec.run_id: (0.0, *key) for spec, key in zip(probes, _probe_order(probes), strict=True)}
        order |= {spec.run_id: (1.0, *key) for spec, key in zip(runs, _run_order(runs), strict=True)}
        specs = {spec.run_id: spec for spec in (*probes, *runs)}
        self._specs = [specs[run_id] for run_id in sorted(specs, key=order.__getitem__)]
        self._rank = {spec.run_id: rank for rank, spec in enumerate(self._specs)}
        self._waiting = list(range(len(self._specs)))  # ranks, ascending

    def ask(self, limit: int | None = None) -> list[RunSpec]:
        """The waiting runs, most wanted first; at most `limit`."""
        return [self._specs[rank] for rank in self._waiting[:limit]]

    def tell(self, run_id: str, state: RunState, result: RunResult | None = None) -> None:
        """A run's new state. Telling WAITING puts it back at its place in the order."""
        rank = self._rank[run_id]
        place = bisect.bisect_left(self._waiting, rank)
        waits = place < len(self._waiting) and self._waiting[place] == rank
        if state is RunState.WAITING and not waits:
            self._waiting.insert(place, rank)
        elif state is not RunState.WAITING and waits:
            del self._waiting[place]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)


def company_of(spec: RunSpec, *, isolated_workers: bool) -> Company:
    """What a run may run beside: a probe is timed alone where workers share a machine's cores and memory
    bandwidth, and beside other probes only (never beside training) where each has a device of its own."""
    if spec.kind != "probe":
        return Company.ANY
    return Company.ALIKE if isolated_workers else Company.ALONE


def _probe_order(probes: Sequence[RunSpec]) -> Iterable[Order]:
    for index, probe in enumerate(probes):
        yield (probe.effective_batch_size, -probe.layout.world_size, index)


def _run_order(runs: Sequence[RunSpec]) -> Iterable[Order]:
    seeds = _index({run.seed for run in runs})
    rates: dict[str, set[float]] = {}
    batches: dict[str, set[int]] = {}
    for run in runs:
        rates.setdefault(_curve(run), set()).add(run.learning_rate)
        batches.setdefault(_axes(run), set()).add(run.effective_batch_size)
    rate_ranks = {curve: _from_the_middle(sorted(values)) for curve, values in rates.items()}
    batch_ranks = {axes: _from_the_ends(sorted(values)) for axes, values in batches.items()}
    for index, run in enumerate(runs):
        yield (
            seeds[run.seed],
            rate_ranks[_curve(run)][run.learning_rate],
            -run.layout.world_size,
            batch_ranks[_axes(run)][run.effective_batch_size],
            index,
        )


def _axes(run: RunSpec) -> str:
    return json.dumps(run.axes, sort_keys=True, default=str)


def _curve(run: RunSpec) -> str:
    return f"{run.effective_batch_size} {_axes(run)}"


def _index(values: Iterable[int]) -> dict[int, int]:
    return {value: index for index, value in enumerate(sorted(values))}


def _from_the_middle(values: Sequence[float]) -> dict[float, int]:
    """Rank 0 for the middle value, then outwards; of two as far the smaller, which diverges less.

    >>> _from_the_middle([0.1, 0.2, 0.3, 0.4])
    {0.2: 0, 0.3: 1, 0.1: 2, 0.4: 3}
    """
    middle = (len(values) - 1) / 2
    by_distance = sorted(range(len(values)), key=lambda index: (abs(index - middle), index))
    return {values[index]: rank for rank, index in enumerate(by_distance)}


def _from_the_ends(values: Sequence[int]) -> dict[int, int]:
    """Rank 0 and 1 for the ends, then always the value farthest (in log) from those ranked so far.

    >>> _from_the_ends([8, 16, 32, 64, 128])
    {8: 0, 128: 1, 32: 2, 16: 3, 64: 4}
    """
    ranked: list[int] = []
    left = sorted(values)
    while left:
        if not ranked:
            chosen = left[0]
        else:
            chosen = max(left, key=lambda value: (min(abs(math.log(value / r)) for r in ranked), -value))
        ranked.append(chosen)
        left.remove(chosen)
    return {value: rank for rank, value in enumerate(ranked)}
