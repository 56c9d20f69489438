"""A short version of experiments/coverage.py: intervals that cover, in seconds, with fixed seeds."""

from __future__ import annotations

import pytest

from experiments.coverage import measure
from gasweep.analysis.simulated_study import Scenario

STUDIES = 120
"""With a true coverage of 95 %, fewer than 108 of 120 happen once in 70 draws of the seed, which is fixed."""


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(name="plain", num_seeds=2),
        Scenario(name="evaluated", evaluation="interval", num_batches=4),
        Scenario(name="censored", max_steps_over_min=11.0, seed_sd=0.1, num_batches=7),
        Scenario(name="rates", learning_rates=5, rate_ratio=3.0, num_batches=5),
    ],
    ids=lambda scenario: scenario.name,
)
def test_interval_covers_and_is_not_too_wide(scenario: Scenario) -> None:
    tally = measure(scenario, STUDIES, seed=1)
    assert tally.coverage >= 108 / 120
    assert tally.width_ratio <= 1.4
    assert tally.one_sided + tally.unknown <= 0.05


def test_one_sided_answers_where_the_truth_is_out_of_range() -> None:
    far = Scenario(name="far", range_below=512.0, range_above=0.05, num_seeds=2)
    tally = measure(far, STUDIES, seed=1)
    assert tally.coverage >= 108 / 120
    assert tally.one_sided >= 0.5
