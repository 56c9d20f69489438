"""The join: optimizer steps to target × seconds per optimizer step = what each grid point costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gasweep.analysis.cost_law import scale
from gasweep.analysis.estimate import Estimate

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One (b, N, G, lr) of the grid; B is given, since with incomplete groups it is not b·N·G."""

    micro_batch_size: int
    world_size: int
    accumulation_steps: int
    effective_batch_size: int
    learning_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds per optimizer step of a grid point; `source` says where they come from."""

    seconds: Estimate
    source: str  # measured | interpolated | predicted


@dataclass(frozen=True, kw_only=True)
class PointCost:
    """What reaching the target costs at one grid point.

    wall_clock_s: training time, evaluation and start-up excluded.
    gpu_hours: wall-clock × world_size (of workers, where there is no GPU).
    examples: contributions, repeats counted.
    An estimate whose value is None says why in its reason, and keeps what bounds are known.
    """

    point: GridPoint
    optimizer_steps: Estimate
    seconds_per_optimizer_step: Estimate
    wall_clock_s: Estimate
    gpu_hours: Estimate
    examples: Estimate
    step_time_source: str | None

    @property
    def resolved(self) -> bool:
        """Whether every cost has a value, so that the point can be compared."""
        return self.wall_clock_s.value is not None

    @property
    def reason(self) -> str | None:
        return self.wall_clock_s.reason


def product(left: Estimate, right: Estimate) -> Estimate:
    """The product of two positive estimates with a 95 % interval.

    Assumes: independent errors, each log-normal, so half-widths in log space add in quadrature, either side
    for itself; a side that one factor lacks is lacking in the product. Without a value, the known bounds
    multiply (≥ a times ≥ b is ≥ a·b), which errs on the wide side.
    """
    if left.value is None or right.value is None:
        reasons = [e.reason for e in (left, right) if e.value is None and e.reason]
        return Estimate(
            value=None,
            low=_times(left.low, right.low),
            high=_times(left.high, right.high),
            reason="; ".join(dict.fromkeys(reasons)),
        )
    value = left.value * right.value
    return Estimate(
        value=value,
        low=_side(value, (left.value, left.low), (right.value, right.low), sign=-1),
        high=_side(value, (left.value, left.high), (right.value, right.high), sign=1),
    )


def point_cost(point: GridPoint, *, optimizer_steps: Estimate, step_time: StepTime | None) -> PointCost:
    """Cost of one grid point; `step_time=None` when it was neither measured nor predicted.

    Assumes: steady-state seconds per step hold for the whole run, and steps depend on (B, lr) alone.
    """
    missing = "seconds per optimizer step were not measured here"
    seconds = (
        Estimate(value=None, low=None, high=None, reason=missing) if step_time is None else step_time.seconds
    )
    wall_clock = product(optimizer_steps, seconds)
    return PointCost(
        point=point,
        optimizer_steps=optimizer_steps,
        seconds_per_optimizer_step=seconds,
        wall_clock_s=wall_clock,
        gpu_hours=scale(wall_clock, point.world_size / SECONDS_PER_HOUR),
        examples=scale(optimizer_steps, float(point.effective_batch_size)),
        step_time_source=None if step_time is None else step_time.source,
    )


def join(
    points: Iterable[GridPoint],
    *,
    optimizer_steps: Callable[[GridPoint], Estimate],
    step_time: Callable[[GridPoint], StepTime | None],
) -> list[PointCost]:
    """Costs of a whole grid, in the order of `points`; see `point_cost`."""
    return [
        point_cost(point, optimizer_steps=optimizer_steps(point), step_time=step_time(point))
        for point in points
    ]


def _times(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left * right


def _side(value: float, *pairs: tuple[float, float | None], sign: int) -> float | None:
    widths = []
    for centre, bound in pairs:
        if bound is None or bound <= 0:
            return None
        widths.append(math.log(bound / centre))
    return value * math.exp(sign * math.hypot(*widths))
