"""Seconds per optimizer step of a run, from probes: the interval must hold for a run at another time."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gasweep.analysis.cost import GridPoint
from gasweep.results.records import Throughput
from gasweep.results.step_time import step_times
from tests.results.examples import make_result

LAYOUTS = list(itertools.product((8, 32, 128), (1, 2), (1, 2, 4)))


def truth(b: int, n: int, g: int) -> float:
    return 0.002 + g * (0.001 + 1e-4 * b) + (0.02 if n > 1 else 0.0)


def point(b: int, n: int, g: int) -> GridPoint:
    return GridPoint(micro_batch_size=b, world_size=n, accumulation_steps=g, effective_batch_size=b * n * g)


def throughput(seconds: float, *, mean_error: float | None = 0.0) -> Throughput:
    base = make_result("r").throughput
    assert base is not None
    return dataclasses.replace(
        base,
        seconds_per_optimizer_step=0.9 * seconds,
        seconds_per_optimizer_step_low=0.5 * seconds,
        seconds_per_optimizer_step_high=3 * seconds,
        seconds_per_optimizer_step_mean=seconds,
        seconds_per_optimizer_step_mean_error=mean_error,
    )


def test_the_mean_is_what_a_run_adds_up() -> None:
    times = step_times({point(*p): throughput(truth(*p)) for p in LAYOUTS})
    assert times[point(32, 2, 4)].seconds.value == truth(32, 2, 4)


def test_few_layouts_keep_the_range_of_single_steps() -> None:
    (only,) = step_times({point(8, 1, 1): throughput(0.1)}).values()
    assert (only.seconds.value, only.seconds.low, only.seconds.high) == pytest.approx((0.1, 0.05, 0.3))


def test_a_record_without_a_mean_gives_its_median() -> None:
    old = dataclasses.replace(throughput(0.1), seconds_per_optimizer_step_mean=None)
    (only,) = step_times({point(8, 1, 1): old}).values()
    assert only.seconds.value == pytest.approx(0.09)


def test_a_machine_that_drifts_between_measurements_stays_inside() -> None:
    """Every measurement 5 % off at random, probes and runs alike: runs fall inside about 95 % of the time."""
    rng = np.random.default_rng(0)

    def measured(p: tuple[int, int, int]) -> float:
        return truth(*p) * float(np.exp(0.05 * rng.standard_normal()))

    inside, widths = [], []
    for _ in range(40):
        times = step_times({point(*p): throughput(measured(p)) for p in LAYOUTS})
        for p in LAYOUTS:
            seconds = times[point(*p)].seconds
            low, high = seconds.low or 0.0, seconds.high or 0.0
            inside.append(low <= measured(p) <= high)
            widths.append(high / low)
    assert np.mean(inside) >= 0.93
    assert np.median(widths) < 1.6


def test_an_unsteady_probe_widens_its_own_interval() -> None:
    found = {point(*p): throughput(truth(*p) * (1.01 if p[1] == 1 else 0.99)) for p in LAYOUTS}
    shaky = point(*LAYOUTS[0])
    before = step_times(found)[shaky].seconds
    found[shaky] = throughput(truth(*LAYOUTS[0]) * 1.01, mean_error=0.2 * truth(*LAYOUTS[0]))
    after = step_times(found)[shaky].seconds
    assert (after.high or 0.0) > 1.2 * (before.high or 0.0)


def test_one_step_has_no_interval() -> None:
    single = dataclasses.replace(throughput(0.01, mean_error=None), num_timed_optimizer_steps=1)
    found = step_times({point(8, 1, 1): single})[point(8, 1, 1)].seconds
    assert (found.value, found.low, found.high) == (0.01, None, None)
