"""What each grid layout costs to a target: steps by the fitted law times measured seconds."""

from __future__ import annotations

import dataclasses

from gasweep.analysis.cost import GridPoint, PointCost, join
from gasweep.analysis.cost_interpolation import StepTimeTable
from gasweep.analysis.estimate import Estimate
from gasweep.report.data import Layout
from gasweep.report.study_view import ObservationView, TargetView


def step_time_table(layouts: tuple[Layout, ...]) -> StepTimeTable:
    return StepTimeTable(
        (layout.point, layout.step_time) for layout in layouts if layout.step_time is not None
    )


def target_costs(view: TargetView, layouts: tuple[Layout, ...]) -> list[PointCost]:
    """One cost for each layout, in their order, at the best learning rate of its batch size.

    Every other rate needs more steps at the same seconds per step, so it is dominated and not listed.
    """
    observations = {o.effective_batch_size: o for o in view.observations}
    table = step_time_table(layouts)

    def optimizer_steps(point: GridPoint) -> Estimate:
        batch = float(point.effective_batch_size)
        return steps_at(view, observations.get(batch), batch)

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
