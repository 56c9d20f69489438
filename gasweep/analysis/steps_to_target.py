"""Steps to target: when a metric, known only at evaluations, reached a value, under a stated rule.

Windows are fractions of the optimizer steps taken, never counts: a constant number of steps added at every
batch size leaves the hyperbola's fit perfect and its answer wrong, a constant fraction cancels in B_crit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gasweep.errors import ConfigError, nearest

RULES = ("first_crossing", "smoothed", "stays_below")
MODES = ("min", "max")

Points = Sequence[tuple[float, float | None]]
"""(optimizer_step, metric) at each evaluation, steps strictly increasing; None or non-finite: no metric."""


@dataclass(frozen=True, kw_only=True)
class TargetRule:
    """What "reached" means; stored with every result that rests on it.

    metric: name of the evaluation metric.
    value: reached when the metric is <= value (mode "min") or >= value ("max").
    rule: "first_crossing" of the raw metric;
        "smoothed": first crossing of its mean over the evaluations of the last `window_fraction` * steps;
        "stays_below": first crossing after which every evaluation of the next `window_fraction` * steps
        is on the target's side too (above it, for mode "max").
    window_fraction: of the optimizer steps taken so far; in (0, 1) for the last two rules, unused otherwise.
    """

    metric: str
    value: float
    mode: str = "min"
    rule: str = "first_crossing"
    window_fraction: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigError(f"target.value: {self.value} is not a finite number")
        if self.mode not in MODES:
            raise ConfigError(f"target.mode: '{self.mode}' is unknown; {nearest(self.mode, MODES)}")
        if self.rule not in RULES:
            raise ConfigError(f"target.rule: '{self.rule}' is unknown; {nearest(self.rule, RULES)}")
        if self.rule != "first_crossing" and not 0.0 < self.window_fraction < 1.0:
            raise ConfigError(
                f"target.window_fraction: {self.window_fraction} must lie in (0, 1) for rule '{self.rule}'; "
                "try 0.05"
            )

    def is_met_by(self, value: float | None) -> bool:
        """Whether one metric value is on the target's side; a missing or non-finite one never is."""
        if value is None or not math.isfinite(value):
            return False
        return value <= self.value if self.mode == "min" else value >= self.value

    def to_dict(self) -> dict[str, float | str]:
        return asdict(self)

    def __str__(self) -> str:
        sign = "<=" if self.mode == "min" else ">="
        window = "" if self.rule == "first_crossing" else f" ({self.rule}, {self.window_fraction:g})"
        return f"{self.metric} {sign} {self.value:g}{window}"


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """When a run reached a target, in optimizer steps.

    reached: whether the rule was met within the curve.
    steps: interpolated between the two evaluations around the crossing; None when not reached, or when there
        is nothing to interpolate from (the first evaluation already met the target).
    low, high: the evaluations around the crossing: not met at `low`, met at `high`. None when not reached.
    last_step: the last step at which the target is known not to have been reached yet (censored run),
        or the last evaluation (reached run).
    """

    reached: bool
    steps: float | None
    low: float | None
    high: float | None
    last_step: float


def crossing(points: Points, rule: TargetRule) -> Crossing:
    """When `points` met `rule`.

    Raises: ValueError when the steps are not strictly increasing.
    Assumes: the metric is close to linear in the step between two evaluations; the error is second order in
        the spacing, and the interval (low, high] is kept for who does not want to assume it.
    """
    _check_increasing(points)
    series = _smooth(points, rule.window_fraction) if rule.rule == "smoothed" else points
    index = _first_met(series, rule)
    last = float(points[-1][0]) if points else 0.0
    if index is None:
        return Crossing(reached=False, steps=None, low=None, high=None, last_step=_known_unmet(points, rule))
    low = float(series[index - 1][0]) if index else 0.0
    steps = _interpolate(series, index, rule)
    return Crossing(reached=True, steps=steps, low=low, high=float(series[index][0]), last_step=last)


def is_reached(points: Points, rule: TargetRule) -> bool:
    """Whether a run may stop: `rule` is met by the evaluations so far. Cheap enough after each evaluation."""
    return crossing(points, rule).reached


def _check_increasing(points: Points) -> None:
    for (before, _), (after, _) in itertools.pairwise(points):
        if not after > before:
            raise ValueError(f"optimizer_step {after:g} follows {before:g}: steps must increase strictly")


def _smooth(points: Points, window_fraction: float) -> Points:
    """Causal mean over the trailing window; a window that holds a missing value has no mean."""
    smoothed: list[tuple[float, float | None]] = []
    start = 0
    for index, (step, _) in enumerate(points):
        while points[start][0] <= (1.0 - window_fraction) * step and start < index:
            start += 1
        window = [value for _, value in points[start : index + 1]]
        finite = [value for value in window if value is not None and math.isfinite(value)]
        mean = math.fsum(finite) / len(finite) if len(finite) == len(window) else None
        smoothed.append((step, mean))
    return smoothed


def _first_met(series: Points, rule: TargetRule) -> int | None:
    """Index of the evaluation at which the rule is first met and, for "stays_below", confirmed."""
    start: int | None = None
    for index, (step, value) in enumerate(series):
        if not rule.is_met_by(value):
            start = None
            continue
        start = index if start is None else start
        if rule.rule != "stays_below" or step >= series[start][0] * (1.0 + rule.window_fraction):
            return start
    return None


def _known_unmet(points: Points, rule: TargetRule) -> float:
    """The last step at which the target is surely not reached yet, for a run that ended first.

    Under "stays_below" a crossing still waiting for confirmation may yet prove to be the one, so the run is
    censored before it, not at its end.
    """
    last = 0.0
    for step, value in points:
        if rule.rule != "stays_below" or not rule.is_met_by(value):
            last = float(step)
    return last


def _interpolate(series: Points, index: int, rule: TargetRule) -> float | None:
    step, value = series[index]
    if step == 0:
        return 0.0
    if index == 0:
        return None
    step_before, value_before = series[index - 1]
    if value is None or value_before is None or not math.isfinite(value_before):
        return None
    share = (value_before - rule.value) / (value_before - value)
    return min(step_before + (step - step_before) * share, float(step))
