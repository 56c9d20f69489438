"""The learning rate as a pure function of applied optimizer steps and the contributions they used.

Micro-steps, ranks, skipped steps and restarts cannot reach it: they are not among its arguments.
"""

from __future__ import annotations

import math

from gasweep.config.schema import ScheduleConfig
from gasweep.errors import ConfigError, nearest

NAMES = ("constant", "linear", "cosine")


def learning_rate_factor(schedule: ScheduleConfig, *, optimizer_step: int, contributions: int) -> float:
    """The rate of one update as a fraction of the peak rate.

    optimizer_step: which applied update this is, from 1. Warm-up rises linearly, so that update n of W takes
        n/W of the peak: 8 warm-up steps give one half at the fourth.
    contributions: examples that applied updates used before this one, repeats counted; the decay follows
        them, so at a given number of examples it is equally far at every batch size.

    Warm-up and decay multiply: a longer warm-up delays nothing else.
    """
    warmup = schedule.warmup_optimizer_steps
    rise = min(1.0, optimizer_step / warmup) if warmup else 1.0
    return rise * _decay(schedule, contributions)


def check_schedule(schedule: ScheduleConfig) -> None:
    """Raises ConfigError for a schedule that has no meaning."""
    if schedule.name not in NAMES:
        raise ConfigError(f"schedule.name={schedule.name!r}: {nearest(schedule.name, NAMES)}")
    if schedule.name != "constant" and schedule.horizon_examples is None:
        raise ConfigError(
            f"schedule.horizon_examples is null, but schedule.name={schedule.name!r} decays over a horizon; "
            "give it in examples"
        )
    if schedule.horizon_examples is not None and schedule.horizon_examples < 1:
        raise ConfigError(f"schedule.horizon_examples={schedule.horizon_examples} must be >= 1")
    if schedule.warmup_optimizer_steps < 0:
        raise ConfigError(f"schedule.warmup_optimizer_steps={schedule.warmup_optimizer_steps} must be >= 0")


def _decay(schedule: ScheduleConfig, contributions: int) -> float:
    if schedule.name == "constant" or schedule.horizon_examples is None:
        return 1.0
    progress = min(1.0, contributions / schedule.horizon_examples)
    last = schedule.final_fraction
    if schedule.name == "linear":
        return 1.0 - (1.0 - last) * progress
    return last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * progress))
