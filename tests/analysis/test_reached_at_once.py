"""Runs that had reached their target when they were first evaluated: a bound, never a number."""

from __future__ import annotations

from gasweep.analysis.observation import Observation
from gasweep.analysis.steps_summary import summarise_steps


def test_the_mean_is_bounded_from_above_only() -> None:
    at_once = Observation(batch_size=256, seed=0, low=0.0, high=10.0)
    later = Observation(batch_size=256, seed=1, steps=14.0, low=12.0, high=16.0)
    mean, median = summarise_steps([at_once, later])
    assert (mean.value, mean.low, mean.high, median) == (None, None, 12.0, None)
    assert mean.reason == "1 of 2 seeds had reached the target by their first evaluation"


def test_beside_a_seed_that_never_reached_nothing_bounds_it() -> None:
    at_once = Observation(batch_size=256, seed=0, low=0.0, high=10.0)
    never = Observation(batch_size=256, seed=1, censored_at=100.0)
    mean, _ = summarise_steps([at_once, never])
    assert (mean.value, mean.low, mean.high) == (None, None, None)
