"""From what probes measured to the seconds per optimizer step of a run, with an interval for the run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gasweep.analysis.cost import GridPoint, StepTime
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.step_time import ProbePoint, StepCost, StepTimeModel, fit_step_time
from gasweep.results.records import Throughput, mean_error_blocks
from gasweep.results.stored import StoredRun

MIN_DEGREES_OF_FREEDOM = 3
"""Of the step-time model; with fewer its error is hardly known, and the interval would be useless."""


def step_times(measured: Mapping[GridPoint, Throughput]) -> dict[GridPoint, StepTime]:
    """The mean seconds per optimizer step at each measured layout, with a 95 % interval for a run there.

    A run adds its steps up, so it is the mean that counts, not the median. What a run's mean does differently
    from a probe's is mostly not the scatter of single steps, which averages out, but the machine being faster
    or slower at another time. Probes are taken one after another, so their misfit to one smooth law of
    (b, N, G), each left out in turn, shows it: the interval joins that, for the run and for the probe, with
    the standard error of the probe's mean.
    Too few layouts for the law: the 5 %-95 % range of single steps instead.

    Assumes: errors log-normal; the law's own misfit only widens the interval.
    """
    model = fit_step_time([probe_point(point, found.mean_seconds) for point, found in measured.items()])
    return {
        point: StepTime(seconds=_estimate(found, model), source="measured")
        for point, found in measured.items()
    }


def step_cost(throughput: Throughput) -> StepCost:
    """The mean, and how well its own steps tell it."""
    has_mean = throughput.seconds_per_optimizer_step_mean is not None
    return StepCost(
        mean=throughput.mean_seconds,
        standard_error=throughput.seconds_per_optimizer_step_mean_error if has_mean else None,
        degrees_of_freedom=mean_error_blocks(throughput.num_timed_optimizer_steps) - 1,
    )


def grid_point(run: StoredRun) -> GridPoint:
    """Where in the grid a run was planned."""
    return GridPoint(
        micro_batch_size=run.micro_batch_size,
        world_size=run.world_size,
        accumulation_steps=run.accumulation_steps,
        effective_batch_size=run.effective_batch_size,
    )


def probe_point(point: GridPoint, seconds: float | None) -> ProbePoint:
    return ProbePoint(
        micro_batch_size=point.micro_batch_size,
        world_size=point.world_size,
        accumulation_steps=point.accumulation_steps,
        effective_batch_size=point.effective_batch_size,
        seconds=seconds,
    )


def _estimate(throughput: Throughput, model: StepTimeModel | None) -> Estimate:
    value = throughput.mean_seconds
    if throughput.num_timed_optimizer_steps < 2:
        return Estimate(value=value, low=None, high=None, reason="one step tells nothing of its scatter")
    if model is None or model.degrees_of_freedom < MIN_DEGREES_OF_FREEDOM:
        return Estimate(
            value=value,
            low=min(value, throughput.seconds_per_optimizer_step_low),
            high=max(value, throughput.seconds_per_optimizer_step_high),
        )
    own_error = (throughput.seconds_per_optimizer_step_mean_error or 0.0) / value
    # The misfit counts twice: the probe, like the run, met the machine at one of its speeds.
    return model.around(value, relative_error=math.hypot(model.log_error, own_error))
