"""The likelihood against scipy's, the profile against its own definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from gasweep.analysis.likelihood import build_rows, log_interval, log_probability
from gasweep.analysis.likelihood_profile import Profile, log_hyperbola
from gasweep.analysis.observation import Observation


def test_density_and_interval_agree_with_scipy() -> None:
    low = np.array([1.0, 0.5, -np.inf, 2.0])
    high = np.array([1.0, 1.5, 0.3, np.inf])
    got = log_probability(low, high, np.array([0.8]), np.array([0.7]))
    expected = [
        norm.logpdf(1.0, 0.8, 0.7),
        math.log(norm.cdf(1.5, 0.8, 0.7) - norm.cdf(0.5, 0.8, 0.7)),
        norm.logcdf(0.3, 0.8, 0.7),
        norm.logsf(2.0, 0.8, 0.7),
    ]
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [-40.0, -8.0, 8.0, 40.0])
def test_interval_far_in_a_tail_does_not_cancel(shift: float) -> None:
    """By Mills' ratio log(Phi(z + 1) - Phi(z)) is close to the log density at the nearer end over |z|."""
    got = float(log_interval(np.array([shift]), np.array([shift + 1.0]))[0])
    nearer = min(abs(shift), abs(shift + 1.0))
    assert got == pytest.approx(norm.logpdf(nearer) - math.log(nearer), rel=0.02)


def test_limits_of_the_law() -> None:
    """B_crit = 0 makes steps constant, B_crit = inf makes them proportional to 1 / B."""
    log_batch = np.log([8.0, 64.0])
    shape = log_hyperbola(np.array([-np.inf, np.inf, math.log(128.0)]), log_batch, log_batch[0])
    assert shape[0] == pytest.approx([0.0, 0.0])
    assert shape[1] == pytest.approx([0.0, -math.log(8.0)])
    assert shape[2, 1] == pytest.approx(math.log((1 + 128 / 64) / (1 + 128 / 8)))


def mixed() -> list[Observation]:
    return [
        Observation(batch_size=8, steps=1500.0),
        Observation(batch_size=8, low=1400.0, high=1500.0),
        Observation(batch_size=32, low=0.0, high=600.0),
        Observation(batch_size=32, censored_at=450.0),
        Observation(batch_size=256, steps=150.0),
        Observation(batch_size=512, steps=140.0, is_upper_bound=True),
        Observation(batch_size=512, steps=120.0, is_upper_bound=True),
    ]


def test_upper_bounds_of_a_batch_become_one_row_at_their_mean() -> None:
    rows = build_rows(mixed())
    assert rows.is_bound.sum() == 1
    bound = int(np.flatnonzero(rows.is_bound)[0])
    assert rows.high[bound] == pytest.approx(0.5 * math.log(140.0 * 120.0))
    assert rows.scale[bound] == 0.5


def test_edge_rate_that_did_not_reach_says_nothing() -> None:
    rows = build_rows(
        [
            Observation(batch_size=8, steps=100.0),
            Observation(batch_size=16, censored_at=90.0, is_upper_bound=True),
        ]
    )
    assert len(rows.low) == 1


def test_best_level_is_where_the_deviance_is_least() -> None:
    rows = build_rows(mixed())
    profile = Profile(rows=rows, sigma=0.1, reference=float(rows.log_batch.mean()))
    theta = np.array([-np.inf, 2.0, math.log(128.0), np.inf])
    level = profile.best_level(theta)
    for nudge in (-1e-3, 1e-3):
        assert (profile.deviance(theta, level + nudge) > profile.deviance(theta, level)).all()


def test_level_interval_is_where_the_deviance_crosses_the_threshold() -> None:
    rows = build_rows(mixed())
    profile = Profile(rows=rows, sigma=0.1, reference=float(rows.log_batch.mean()))
    theta = np.array([math.log(128.0)])
    level = profile.best_level(theta)
    threshold = float(profile.deviance(theta, level)[0]) + 3.84
    for end in profile.level_interval(theta, level, threshold):
        assert float(profile.deviance(theta, end)[0]) == pytest.approx(threshold, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"batch_size": 0.0, "steps": 1.0}, "batch_size: 0.0 must be a positive"),
        ({"batch_size": 8.0, "steps": -1.0}, "steps: -1.0 must be a positive"),
        ({"batch_size": 8.0, "steps": math.nan}, "steps: nan must be a positive"),
        ({"batch_size": 8.0}, "give steps, an interval"),
        ({"batch_size": 8.0, "steps": 1.0, "censored_at": 2.0}, "one or the other"),
        ({"batch_size": 8.0, "low": 3.0, "high": 2.0}, "low: 3.0 must not exceed high"),
    ],
)
def test_impossible_observations_are_refused(fields: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Observation(**fields)  # type: ignore[arg-type]
