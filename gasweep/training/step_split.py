"""Where the time of an optimizer step goes: data, computing, the optimizer, and communication that nothing
hides."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from gasweep.training.advance import Flags, Stepper
from gasweep.training.build import Trainer
from gasweep.training.parts import StepPlan
from gasweep.training.planner import StepPlanner
from gasweep.training.progress import RunProgress

Result = TypeVar("Result")
Clock = Callable[[], float]


def measure_split(
    trainer: Trainer, *, progress: RunProgress, num_pairs: int, flags: Flags
) -> dict[str, float]:
    """Mean seconds per optimizer step of each part; the model is spoilt by it. Collective.

    Means, so that the parts add up to the mean of the steps they were taken from: as they run on several
    ranks, the instrumented ones on one.

    data: choosing, gathering and moving the examples. optimizer: the optimizer's own step. compute: all else
    that a step without communication does: forward, backward, clipping, bookkeeping.
    exposed_communication: what a step takes longer than the one after it with the collectives left out, so
    what computing does not overlap, waiting for slower ranks included; noise may make it negative. Absent on
    one rank.
    flags: asked on rank 0 as each step ends, and not obeyed.

    Assumes: the strategy's collectives are the run's; those inside the model (tensor parallelism) count as
        compute.
    """
    clock = _clock(trainer.parts.device)
    spent = {"data": 0.0, "optimizer": 0.0}
    as_it_runs = _stepper(trainer, progress, flags)
    in_parts = _stepper(_timed(trainer, spent, clock), progress, flags)
    rows: list[dict[str, float]] = []
    handles = _time_optimizer(trainer.optimizer, spent, clock)
    try:
        for _ in range(num_pairs):
            whole = None if trainer.parts.process.world_size == 1 else _seconds(as_it_runs, clock)
            spent.update(data=0.0, optimizer=0.0)
            with trainer.parts.strategy.meter.muted():
                alone = _seconds(in_parts, clock)
            row = dict(spent, compute=alone - sum(spent.values()))
            if whole is not None:
                row["exposed_communication"] = whole - alone
            rows.append(row)
    finally:
        for handle in handles:
            handle.remove()
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}


def _stepper(trainer: Trainer, progress: RunProgress, flags: Flags) -> Stepper:
    return Stepper(trainer, progress=progress, sink=lambda **_: None, flags=flags)


def _seconds(stepper: Stepper, clock: Clock) -> float:
    started = clock()
    stepper.attempt()
    return clock() - started


def _clock(device: torch.device) -> Clock:
    """The time once the device has done what it was asked to."""
    if device.type != "cuda":
        return time.perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronized


class _TimedPlanner:
    """A planner whose plans, and the fetches of their micro-batches, add to `spent["data"]`."""

    def __init__(self, planner: StepPlanner, spent: dict[str, float], clock: Clock) -> None:
        self._planner = planner
        self._spent = spent
        self._clock = clock

    def plan(self, **arguments: Any) -> StepPlan:
        plan = self._timed(lambda: self._planner.plan(**arguments))
        micro_batches = [
            dataclasses.replace(group, fetch=functools.partial(self._timed, group.fetch))
            for group in plan.micro_batches
        ]
        return dataclasses.replace(plan, micro_batches=micro_batches)

    def _timed(self, function: Callable[[], Result]) -> Result:
        started = self._clock()
        result = function()
        self._spent["data"] += self._clock() - started
        return result


def _timed(trainer: Trainer, spent: dict[str, float], clock: Clock) -> Trainer:
    planner = _TimedPlanner(trainer.planner, spent, clock)
    return dataclasses.replace(trainer, planner=cast(StepPlanner, planner))


def _time_optimizer(optimizer: torch.optim.Optimizer, spent: dict[str, float], clock: Clock) -> list[Any]:
    started = 0.0

    def before(*_: Any) -> None:
        nonlocal started
        started = clock()

    def after(*_: Any) -> None:
        spent["optimizer"] += clock() - started

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
