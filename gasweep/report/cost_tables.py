"""Time and cost to target in plain text and as JSON: the Pareto front, and the best within a limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gasweep.analysis.cost import SECONDS_PER_HOUR, PointCost
from gasweep.analysis.cost_law import scale
from gasweep.analysis.pareto import Choice, cheapest_within, fastest_within, pareto_front, standings
from gasweep.report import numbers
from gasweep.report.costs import target_costs
from gasweep.report.data import Layout
from gasweep.report.study_view import read_study
from gasweep.report.tables import text_table

FRONT_HEADER = ("b×N×G", "B", "optimizer steps", "per step", "wall-clock", "worker time", "examples", "note")


def cost_lines(
    study: dict[str, Any],
    layouts: tuple[Layout, ...],
    *,
    deadline_s: float | None = None,
    budget_gpu_hours: float | None = None,
) -> list[str]:
    """For every target of `fit`'s JSON object: the front, fastest first, and the answers to the limits given.

    Raises ConfigError when a limit is not a positive number.
    """
    lines: list[str] = []
    for view in read_study(study):
        costs = target_costs(view, layouts)
        lines += [f"target {view.target}: time and cost (95 % intervals), the Pareto front", *_front(costs)]
        if deadline_s is not None:
            lines += _choice_lines(
                "cheapest", numbers.duration, deadline_s, cheapest_within(costs, deadline_s=deadline_s)
            )
        if budget_gpu_hours is not None:
            choice = fastest_within(costs, budget_gpu_hours=budget_gpu_hours)
            lines += _choice_lines("fastest", _gpu_hours, budget_gpu_hours, choice)
        lines.append("")
    return lines[:-1]


def cost_dict(
    study: dict[str, Any],
    layouts: tuple[Layout, ...],
    *,
    deadline_s: float | None = None,
    budget_gpu_hours: float | None = None,
) -> dict[str, Any]:
    """{targets: [{target, points: [...], cheapest_within_deadline?, fastest_within_budget?}]}, JSON-ready.

    A point holds b, N, G, B, the five estimates, where its seconds come from, and its standing.
    """
    targets = []
    for view in read_study(study):
        costs = target_costs(view, layouts)
        places = standings(costs)
        entry: dict[str, Any] = {
            "target": view.target,
            "points": [
                point_dict(cost) | {"standing": place.value}
                for cost, place in zip(costs, places, strict=True)
            ],
        }
        if deadline_s is not None:
            entry["cheapest_within_deadline"] = _choice_dict(cheapest_within(costs, deadline_s=deadline_s))
        if budget_gpu_hours is not None:
            entry["fastest_within_budget"] = _choice_dict(
                fastest_within(costs, budget_gpu_hours=budget_gpu_hours)
            )
        targets.append(entry)
    return {"targets": targets}


def point_dict(cost: PointCost) -> dict[str, Any]:
    """One layout's cost with the vocabulary's keys; `learning_rate` only where one was given."""
    point = {key: value for key, value in dataclasses.asdict(cost.point).items() if value is not None}
    return point | {
        "optimizer_steps": cost.optimizer_steps.to_dict(),
        "seconds_per_optimizer_step": cost.seconds_per_optimizer_step.to_dict(),
        "wall_clock_s": cost.wall_clock_s.to_dict(),
        "gpu_hours": cost.gpu_hours.to_dict(),
        "num_examples": cost.examples.to_dict(),
        "step_time_source": cost.step_time_source,
    }


def front_row(cost: PointCost) -> list[str]:
    """The cells under `FRONT_HEADER`."""
    point = cost.point
    return [
        f"{point.micro_batch_size}×{point.world_size}×{point.accumulation_steps}",
        numbers.count(point.effective_batch_size),
        numbers.estimate(cost.optimizer_steps),
        numbers.estimate(cost.seconds_per_optimizer_step, numbers.duration),
        numbers.estimate(cost.wall_clock_s, numbers.duration),
        numbers.estimate(scale(cost.gpu_hours, SECONDS_PER_HOUR), numbers.duration),
        numbers.estimate(cost.examples),
        "" if cost.step_time_source == "measured" else f"seconds {cost.step_time_source}",
    ]


def _front(costs: Sequence[PointCost]) -> list[str]:
    front = pareto_front(costs)
    if front:
        return text_table(FRONT_HEADER, [front_row(cost) for cost in front])
    reasons = dict.fromkeys(cost.reason or "" for cost in costs)
    return [f"  none: {'; '.join(reasons) if reasons else 'the sweep has no layout'}"]


def _gpu_hours(hours: float) -> str:
    return f"{numbers.number(hours)} GPU-hours"


def _choice_lines(best: str, text: Callable[[float], str], limit: float, choice: Choice) -> list[str]:
    """text: how the limit, and what is compared with it, are written."""
    question = f"{best} within {text(limit)}"
    if choice.expected is None:
        why = choice.reason if choice.least is None else f"the least of any layout is {text(choice.least)}"
        return [f"{question}: none: {why}"]
    lines = [f"{question}: {_short(choice.expected)}"]
    lines += [f"  the same at {_layout(tie)}" for tie in choice.ties]
    if choice.safe is None:
        lines.append("  its interval crosses the limit, and no layout is surely within it")
    elif choice.safe is not choice.expected:
        lines.append(f"  its interval crosses the limit; surely within it: {_short(choice.safe)}")
    if choice.num_unresolved:
        lines.append(f"  {choice.num_unresolved} layouts lack a measurement and are left out")
    return lines


def _short(cost: PointCost) -> str:
    worker_time = scale(cost.gpu_hours, SECONDS_PER_HOUR)
    return (
        f"{_layout(cost)} (B = {cost.point.effective_batch_size}), "
        f"{numbers.estimate(cost.wall_clock_s, numbers.duration)}, "
        f"worker time {numbers.estimate(worker_time, numbers.duration)}"
    )


def _layout(cost: PointCost) -> str:
    return f"b×N×G = {cost.point.micro_batch_size}×{cost.point.world_size}×{cost.point.accumulation_steps}"


def _choice_dict(choice: Choice) -> dict[str, Any]:
    return {
        "expected": None if choice.expected is None else point_dict(choice.expected),
        "safe": None if choice.safe is None else point_dict(choice.safe),
        "ties": [point_dict(cost) for cost in choice.ties],
        "num_unresolved": choice.num_unresolved,
        "reason": choice.reason,
    }
