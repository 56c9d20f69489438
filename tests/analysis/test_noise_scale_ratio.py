"""The noise scale over B_crit: a measured ratio of two measured things."""

from __future__ import annotations

import numpy as np
import pytest

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.noise_scale_ratio import noise_scale_ratio

UNKNOWN = Estimate(value=None, low=None, high=None, reason="too few batch sizes")


def known(value: float, factor: float) -> Estimate:
    return Estimate(value=value, low=value / factor, high=value * factor)


def test_the_planted_ratio_is_covered_as_often_as_said():
    rng = np.random.default_rng(3)
    truth, covered, spreads = 40.0 / 64.0, 0, (0.2, 0.4)
    for _ in range(2000):
        noise, critical = (
            known(float(value * np.exp(rng.normal(0.0, spread))), float(np.exp(1.96 * spread)))
            for value, spread in zip((40.0, 64.0), spreads, strict=True)
        )
        found = noise_scale_ratio(noise, critical)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.02)


def test_an_exact_b_crit_leaves_the_noise_scales_own_interval():
    found = noise_scale_ratio(known(40.0, 2.0), known(80.0, 1.0))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.25, 1.0))


def test_bounds_stay_bounds():
    at_least = Estimate(value=None, low=100.0, high=None, reason="|G|² is not resolved")
    found = noise_scale_ratio(at_least, known(50.0, 2.0))
    assert (found.value, found.low, found.high) == (None, 1.0, None)
    assert found.reason == "noise scale: |G|² is not resolved"
    beyond = Estimate(value=None, low=400.0, high=None, reason="steps still fall")
    found = noise_scale_ratio(known(40.0, 2.0), beyond)
    assert (found.value, found.low, found.high) == (None, None, 0.2)
    assert found.reason == "B_crit: steps still fall"


def test_a_noise_scale_without_limits_or_at_zero_has_a_value_alone():
    loose = Estimate(value=40.0, low=0.0, high=None, reason="3 measured steps")
    found = noise_scale_ratio(loose, known(80.0, 2.0))
    assert (found.value, found.low, found.high) == (0.5, 0.0, None)


def test_what_was_not_measured_has_no_ratio():
    missing = Estimate(value=None, low=None, high=None, reason="not measured")
    assert noise_scale_ratio(missing, known(8.0, 2.0)).reason == "noise scale not measured"
    assert noise_scale_ratio(known(8.0, 2.0), UNKNOWN).reason == "B_crit: too few batch sizes"
