"""The report's numbers as JSON for its scripts: everything they draw is computed here, none of it twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gasweep.analysis.cost import GridPoint, PointCost, join, point_cost
from gasweep.analysis.cost_interpolation import StepTimeTable
from gasweep.analysis.cost_law import SampledLaw
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.pareto import standings
from gasweep.report.data import Layout, ReportData, RunRow
from gasweep.report.study_view import ObservationView, RateView, TargetView, read_study

NUM_LAW_POINTS = 97
MAX_FAMILIES = 24
MAX_LAYOUTS = 2000
MAX_RUN_ROWS = 5000

RUN_COLUMNS = (
    "state",
    "kind",
    "effective_batch_size",
    "micro_batch_size",
    "world_size",
    "accumulation_steps",
    "learning_rate",
    "seed",
    "optimizer_steps",
    "final_metric",
    "wall_s",
    "seconds_per_optimizer_step",
    "examples_per_s",
    "num_attempts",
    "axes",
    "reason",
    "run_id",
)


def build_payload(data: ReportData) -> dict[str, Any]:
    """JSON-ready; grid layouts, layout families and runs beyond a limit are left out and counted."""
    table = step_time_table(data)
    layouts = data.layouts[:MAX_LAYOUTS]
    return {
        "targets": [
            _target(view, label, layouts, table)
            for label, views in ((s.label, read_study(s.study)) for s in data.studies)
            for view in views
        ],
        "layouts": [_layout(layout) for layout in layouts],
        "memory": _memory(data.layouts),
        "worker": data.worker,
        "families": table.families[:MAX_FAMILIES],
        "runs": {"columns": RUN_COLUMNS, "rows": [_run(row) for row in data.runs[:MAX_RUN_ROWS]]},
        "left_out": {
            "layouts": len(data.layouts) - len(layouts),
            "families": max(len(table.families) - MAX_FAMILIES, 0),
            "runs": max(len(data.runs) - MAX_RUN_ROWS, 0),
        },
    }


def step_time_table(data: ReportData) -> StepTimeTable:
    return StepTimeTable(
        (layout.point, layout.step_time) for layout in data.layouts if layout.step_time is not None
    )


def short(value: float | None) -> float | int | None:
    """Five significant digits: more than a screen shows, and a third of the bytes."""
    if value is None:
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def target_title(view: TargetView, label: str) -> str:
    return f"{label} · {view.target}" if label else view.target


def target_costs(view: TargetView, layouts: tuple[Layout, ...], table: StepTimeTable) -> list[PointCost]:
    """What each grid layout costs at the best learning rate of its batch size.

    Every other rate needs more steps at the same seconds per step, so it is dominated and not listed.
    """
    steps = {o.effective_batch_size: o for o in view.observations}

    def optimizer_steps(point: GridPoint) -> Estimate:
        return steps_at(view, steps.get(float(point.effective_batch_size)), point.effective_batch_size)

    return join([layout.point for layout in layouts], optimizer_steps=optimizer_steps, step_time=table.at)


def steps_at(view: TargetView, observation: ObservationView | None, batch: float) -> Estimate:
    """The fitted law where there is one; else what was measured at this batch size, or why nothing was."""
    if view.law is not None:
        return view.law.steps(batch)
    if observation is None:
        return Estimate(value=None, low=None, high=None, reason=f"no run at B = {batch:g}")
    if observation.steps.value is None:
        return dataclasses.replace(observation.steps, low=observation.at_least)
    return observation.steps


def _target(
    view: TargetView, label: str, layouts: tuple[Layout, ...], table: StepTimeTable
) -> dict[str, Any]:
    return {
        "name": target_title(view, label),
        "critical_batch_size": _estimate(view.critical_batch_size),
        "min_steps": _estimate(view.min_steps),
        "min_examples": _estimate(view.min_examples),
        "observations": [_observation(o) for o in view.observations],
        "law": _law(view, table),
        "costs": _costs(view, layouts, table),
    }


def _observation(observation: ObservationView) -> dict[str, Any]:
    return {
        "B": short(observation.effective_batch_size),
        "steps": [short(observation.steps.value), short(observation.at_least)],
        "spread": [short(steps) for steps in observation.spread or ()],
        "learning_rate": short(observation.learning_rate),
        "label": observation.label,
        "note": observation.reason,
        "flagged": observation.flagged,
        "seeds": [short(seed.steps) for seed in observation.seeds],
        "rates": [_rate(rate) for rate in observation.rates if rate.learning_rate is not None],
    }


def _rate(rate: RateView) -> list[Any]:
    """[learning rate, mean steps, at least, seeds, seeds not reached, seeds diverged]."""
    steps = [short(rate.steps.value), short(rate.steps.low)]
    return [short(rate.learning_rate), *steps, rate.num_seeds, rate.num_censored, rate.num_diverged]


def _law(view: TargetView, table: StepTimeTable) -> list[dict[str, Any]]:
    """The fitted law sampled over batch sizes, with what it costs in each measured layout family."""
    if view.law is None or not view.observations:
        return []
    low, high = view.law.range
    grid = np.geomspace(low, high, NUM_LAW_POINTS)
    whole = {float(round(b)) for b in grid if low <= round(b) <= high}
    samples = sorted(whole | {o.effective_batch_size for o in view.observations})
    return [_law_point(view.law, batch, table) for batch in samples if low <= batch <= high]


def _law_point(law: SampledLaw, batch: float, table: StepTimeTable) -> dict[str, Any]:
    steps = law.steps(batch)
    times: list[list[float | int | None] | None] = []
    for family in table.families[:MAX_FAMILIES]:
        b, n = family
        step_time = table.between(family, accumulation_steps=batch / (b * n))
        point = GridPoint(
            micro_batch_size=b, world_size=n, accumulation_steps=1, effective_batch_size=max(round(batch), 1)
        )
        cost = point_cost(point, optimizer_steps=steps, step_time=step_time)
        times.append(_estimate(cost.wall_clock_s)[:3] if cost.resolved else None)
    return {"B": short(batch), "steps": _estimate(steps)[:3], "seconds": times}


def _costs(view: TargetView, layouts: tuple[Layout, ...], table: StepTimeTable) -> list[dict[str, Any]]:
    costs = target_costs(view, layouts, table)
    return [
        {
            "layout": index,
            "standing": place.value,
            "steps": _estimate(cost.optimizer_steps),
            "wall_clock_s": _estimate(cost.wall_clock_s),
            "gpu_hours": _estimate(cost.gpu_hours),
            "examples": _estimate(cost.examples),
            "source": cost.step_time_source,
        }
        for index, (cost, place) in enumerate(zip(costs, standings(costs), strict=True))
    ]


def _estimate(estimate: Estimate) -> list[Any]:
    return [short(estimate.value), short(estimate.low), short(estimate.high), estimate.reason]


def _layout(layout: Layout) -> list[Any]:
    point = layout.point
    seconds = None if layout.step_time is None else short(layout.step_time.seconds.value)
    sizes = [point.micro_batch_size, point.world_size, point.accumulation_steps, point.effective_batch_size]
    return [*sizes, seconds, layout.peak_memory_bytes]


def _memory(layouts: tuple[Layout, ...]) -> list[list[int]]:
    """[b, least, most] peak bytes of one rank over every N and G measured at that b."""
    peaks: dict[int, list[int]] = {}
    for layout in layouts:
        if layout.peak_memory_bytes is not None:
            peaks.setdefault(layout.point.micro_batch_size, []).append(layout.peak_memory_bytes)
    return [[b, min(found), max(found)] for b, found in sorted(peaks.items())]


def _run(row: RunRow) -> list[Any]:
    values = [getattr(row, column) for column in RUN_COLUMNS]
    return [short(v) if isinstance(v, float) else v for v in values]
