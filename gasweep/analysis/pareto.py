"""Which grid points are worth running: the Pareto front, and the two questions people ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from gasweep.analysis.cost import PointCost
from gasweep.analysis.cost_law import scale
from gasweep.analysis.estimate import Estimate
from gasweep.errors import ConfigError


class Standing(StrEnum):
    """Where a point stands when wall-clock, GPU-hours and examples are all to be small."""

    FRONT = "front"  # no point is better in one cost and no worse in the others
    CLOSE = "close"  # dominated by the values, but not once the intervals are counted
    DOMINATED = "dominated"
    UNRESOLVED = "unresolved"  # a cost is missing: its reason says why


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The answer to "best within a limit".

    expected: the best point whose expected cost is within the limit; None when `reason` says why.
    safe: the best point whose upper 95 % limit is within it too; None when no point is that sure.
    ties: other points whose expected objective and limited cost both equal those of `expected`.
    num_unresolved: points left out because a cost is missing.
    least: the limited cost's least expected value, where that is above the limit.
    """

    expected: PointCost | None
    safe: PointCost | None
    ties: tuple[PointCost, ...]
    num_unresolved: int
    reason: str | None
    least: float | None = None


def pareto_mask(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which rows of `costs` (num_points × num_costs, smaller is better) no other row dominates.

    A row dominates another when it is nowhere worse and somewhere better: equal rows are all kept.
    """
    front = np.empty((0, costs.shape[1]))
    mask = np.zeros(len(costs), dtype=np.bool_)
    for row in np.lexsort(costs.T[::-1]):
        # In lexicographic order whatever dominates a row comes before it, and something on the front does.
        beaten = (front <= costs[row]).all(axis=1) & (front < costs[row]).any(axis=1)
        if not beaten.any():
            front = np.vstack([front, costs[row]])
            mask[row] = True
    return mask


def standings(costs: Sequence[PointCost]) -> list[Standing]:
    """Where each point stands, in the order of `costs`.

    A dominated point is `CLOSE` unless some point is better beyond both 95 % intervals. Points that share
    their optimizer steps (same B and rate) share that error too, so between them only seconds per step count.
    Assumes: otherwise independent errors, which calls too many points close rather than too few.
    """
    resolved = [i for i, cost in enumerate(costs) if cost.resolved]
    result = [Standing.UNRESOLVED] * len(costs)
    if not resolved:
        return result
    table = _IntervalTable([costs[i] for i in resolved])
    on_front = pareto_mask(table.values)
    for row, i in enumerate(resolved):
        if on_front[row]:
            result[i] = Standing.FRONT
        else:
            result[i] = Standing.DOMINATED if table.surely_dominated(row) else Standing.CLOSE
    return result


def pareto_front(costs: Sequence[PointCost]) -> list[PointCost]:
    """The points of `Standing.FRONT`, fastest first."""
    places = standings(costs)
    front = [cost for cost, place in zip(costs, places, strict=True) if place is Standing.FRONT]
    return sorted(front, key=lambda cost: _values(cost))


def cheapest_within(costs: Sequence[PointCost], *, deadline_s: float) -> Choice:
    """The fewest GPU-hours among points that reach the target within `deadline_s` of wall-clock.

    Raises ConfigError unless the deadline is a positive number.
    """
    return _choose(costs, objective="gpu_hours", limited="wall_clock_s", limit=deadline_s, name="deadline_s")


def fastest_within(costs: Sequence[PointCost], *, budget_gpu_hours: float) -> Choice:
    """The least wall-clock among points that reach the target within `budget_gpu_hours`.

    Raises ConfigError unless the budget is a positive number.
    """
    return _choose(
        costs, objective="wall_clock_s", limited="gpu_hours", limit=budget_gpu_hours, name="budget_gpu_hours"
    )


class _IntervalTable:
    """Values and bounds of resolved costs as arrays of num_points × 3, unknown bounds infinite."""

    def __init__(self, costs: Sequence[PointCost]) -> None:
        self.values = np.array([_values(cost) for cost in costs])
        self._low, self._high = _bounds([(c.wall_clock_s, c.gpu_hours, c.examples) for c in costs])
        paired = [
            (c.seconds_per_optimizer_step, scale(c.seconds_per_optimizer_step, c.point.world_size))
            for c in costs
        ]
        self._paired_low, self._paired_high = _bounds(paired)
        shared = {key: i for i, key in enumerate(dict.fromkeys(map(_shared_steps, costs)))}
        self._shared = np.array([shared[_shared_steps(cost)] for cost in costs])

    def surely_dominated(self, row: int) -> bool:
        """Whether some point is better than `row` in one cost, and not worse in any, beyond the intervals."""
        same = self._shared == self._shared[row]
        others = _dominates(self._high[~same], self._low[row])
        paired = _dominates(self._paired_high[same], self._paired_low[row])
        return bool(others.any() or paired.any())


def _bounds(rows: Sequence[Sequence[Estimate]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    low = [[-np.inf if e.low is None else e.low for e in row] for row in rows]
    high = [[np.inf if e.high is None else e.high for e in row] for row in rows]
    return np.array(low), np.array(high)


def _dominates(high: npt.NDArray[np.float64], low: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return np.logical_and((high <= low).all(axis=1), (high < low).any(axis=1))


def _shared_steps(cost: PointCost) -> tuple[int, Estimate]:
    return cost.point.effective_batch_size, cost.optimizer_steps


def _values(cost: PointCost) -> tuple[float, float, float]:
    wall_clock, gpu_hours, examples = cost.wall_clock_s.value, cost.gpu_hours.value, cost.examples.value
    assert wall_clock is not None
    assert gpu_hours is not None
    assert examples is not None
    return wall_clock, gpu_hours, examples


def _choose(costs: Sequence[PointCost], *, objective: str, limited: str, limit: float, name: str) -> Choice:
    if not (np.isfinite(limit) and limit > 0):
        raise ConfigError(f"{name}={limit} must be a positive number")
    resolved = [cost for cost in costs if cost.resolved]

    def order(cost: PointCost) -> tuple[float, ...]:
        return (getattr(cost, objective).value, getattr(cost, limited).value, *_values(cost))

    within = sorted((c for c in resolved if getattr(c, limited).value <= limit), key=order)
    least = min((getattr(c, limited).value for c in resolved), default=None)
    high = [getattr(c, limited).high for c in within]
    safe = [c for c, bound in zip(within, high, strict=True) if bound is not None and bound <= limit]
    return Choice(
        expected=within[0] if within else None,
        safe=safe[0] if safe else None,
        ties=tuple(c for c in within[1:] if order(c)[:2] == order(within[0])[:2]),
        num_unresolved=len(costs) - len(resolved),
        reason=None if within else _nothing_within(least, limited, limit),
        least=None if within else least,
    )


def _nothing_within(least: float | None, limited: str, limit: float) -> str:
    if least is None:
        return "no grid point has both steps to target and seconds per step"
    return f"no grid point is within {limited}={limit:.4g}; the least is {least:.4g}"
