"""The report's numbers as JSON for its scripts: everything they draw is computed here, none of it twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gasweep.analysis.cost import GridPoint, PointCost, point_cost
from gasweep.analysis.cost_interpolation import Family, StepTimeTable
from gasweep.analysis.cost_law import SampledLaw
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.pareto import Standing, standings
from gasweep.report.costs import step_time_table, target_costs
from gasweep.report.data import Layout, ReportData, RunRow, StudySection
from gasweep.report.markup import json_script
from gasweep.report.study_view import ObservationView, RateView, TargetView
from gasweep.report.targets import ShownTarget, shown_targets
from gasweep.results.noise_course import NoiseCourse

NUM_LAW_POINTS = 97
MAX_TEXT = 240

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


def build_payload(data: ReportData, *, room_bytes: int = 10**6) -> dict[str, Any]:
    """JSON-ready. What does not fit a limit, or `room_bytes` for the runs, is left out and counted."""
    shown = shown_targets(data)
    limits = Limits(num_targets=len(shown))
    num_sections = 1 + max((target.section_index for target in shown), default=0)
    sections = [_section(section, limits) for section in data.studies[:num_sections]]
    targets = [_target(target, limits) for target in shown]
    payload = {"worker": data.worker, "sections": sections, "targets": targets}
    room = room_bytes - len(json_script(payload).encode())
    rows = _runs_within(data.runs, room)
    left_out = {
        "layouts": max(max((len(s.layouts) for s in data.studies), default=0) - limits.layouts, 0),
        "runs": len(data.runs) - len(rows),
    }
    return payload | {"runs": {"columns": RUN_COLUMNS, "rows": rows}, "left_out": left_out}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of a sweep each target shows: the more targets, the less of each."""

    num_targets: int

    @property
    def layouts(self) -> int:
        return max(4000 // max(self.num_targets, 1), 100)

    @property
    def courses(self) -> int:
        """Batch sizes whose noise scale is drawn along training."""
        return min(max(48 // max(self.num_targets, 1), 2), 12)

    @property
    def families(self) -> int:
        """(b, N) families whose wall-clock follows the slider."""
        return min(max(96 // max(self.num_targets, 1), 4), 24)


def short(value: float | None) -> float | int | None:
    """Five significant digits: more than a screen shows, and a third of the bytes."""
    if value is None:
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _section(section: StudySection, limits: Limits) -> dict[str, Any]:
    return {
        "layouts": [_layout(layout) for layout in section.layouts[: limits.layouts]],
        "memory": _memory(section.layouts),
        "families": step_time_table(section.layouts).families[: limits.families],
        "noise": [_course(course) for course in section.noise[: limits.courses]],
    }


def _course(course: NoiseCourse) -> dict[str, Any]:
    """points: [optimizer step, examples, loss, noise scale, its low, its high]."""
    return {
        "B": short(course.effective_batch_size),
        "learning_rate": short(course.learning_rate),
        "points": [
            [
                point.optimizer_step,
                point.contributions,
                short(point.loss),
                *_estimate(point.window.noise_scale)[:3],
            ]
            for point in course.points
        ],
    }


def _target(target: ShownTarget, limits: Limits) -> dict[str, Any]:
    view, layouts = target.view, target.section.layouts[: limits.layouts]
    costs = target_costs(view, layouts)
    return {
        "name": target.title,
        "section": target.section_index,
        "critical_batch_size": _estimate(view.critical_batch_size),
        "min_steps": short(view.min_steps.value),
        "min_examples": short(view.min_examples.value),
        "observations": [_observation(o) for o in view.observations],
        "law": _law(view, step_time_table(layouts), limits),
        "costs": [_cost(cost, place) for cost, place in zip(costs, standings(costs), strict=True)],
    }


def _cost(cost: PointCost, standing: Standing) -> list[Any]:
    """[standing, wall-clock, its low, its high, examples], in the order of the section's layouts."""
    return [standing.value, *_estimate(cost.wall_clock_s)[:3], short(cost.examples.value)]


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


def _law(view: TargetView, table: StepTimeTable, limits: Limits) -> list[dict[str, Any]]:
    """The fitted law sampled over batch sizes, with what it costs in each measured layout family."""
    if view.law is None or not view.observations:
        return []
    low, high = view.law.range
    grid = np.geomspace(low, high, NUM_LAW_POINTS)
    whole = {float(round(b)) for b in grid if low <= round(b) <= high}
    samples = sorted(whole | {o.effective_batch_size for o in view.observations})
    families = table.families[: limits.families]
    return [_law_point(view.law, batch, table, families) for batch in samples if low <= batch <= high]


def _law_point(law: SampledLaw, batch: float, table: StepTimeTable, families: list[Family]) -> dict[str, Any]:
    steps = law.steps(batch)
    times: list[list[float | int | None] | None] = []
    for family in families:
        b, n = family
        step_time = table.between(family, accumulation_steps=batch / (b * n))
        point = GridPoint(
            micro_batch_size=b, world_size=n, accumulation_steps=1, effective_batch_size=max(round(batch), 1)
        )
        cost = point_cost(point, optimizer_steps=steps, step_time=step_time)
        times.append(_estimate(cost.wall_clock_s)[:3] if cost.resolved else None)
    return {"B": short(batch), "steps": _estimate(steps)[:3], "seconds": times}


def _estimate(estimate: Estimate) -> list[Any]:
    return [short(estimate.value), short(estimate.low), short(estimate.high), estimate.reason]


def _layout(layout: Layout) -> list[Any]:
    point = layout.point
    seconds = None if layout.step_time is None else short(layout.step_time.seconds.value)
    sizes = [point.micro_batch_size, point.world_size, point.accumulation_steps, point.effective_batch_size]
    return [*sizes, seconds, None if layout.step_time is None else layout.step_time.source]


def _memory(layouts: tuple[Layout, ...]) -> list[list[int]]:
    """[b, least, most] peak bytes of one rank over every N and G measured at that b."""
    peaks: dict[int, list[int]] = {}
    for layout in layouts:
        if layout.peak_memory_bytes is not None:
            peaks.setdefault(layout.point.micro_batch_size, []).append(layout.peak_memory_bytes)
    return [[b, min(found), max(found)] for b, found in sorted(peaks.items())]


def _runs_within(runs: tuple[RunRow, ...], room_bytes: int) -> list[list[Any]]:
    """As many rows, in order, as fit into `room_bytes` of JSON."""
    rows = []
    for run in runs:
        row = _run(run)
        room_bytes -= len(json_script(row).encode()) + 1
        if room_bytes < 0:
            break
        rows.append(row)
    return rows


def _run(row: RunRow) -> list[Any]:
    values = [getattr(row, column) for column in RUN_COLUMNS]
    return [_cell(value) for value in values]


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return short(value)
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return value[: MAX_TEXT - 1] + "…"
    return value
