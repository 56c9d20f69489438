"""B_crit over several studies: planted exponents, scatter, and studies without a number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.power_law import fit_power_law


def study(value: float, relative: float = 0.1) -> Estimate:
    return Estimate(
        value=value, low=value * math.exp(-1.96 * relative), high=value * math.exp(1.96 * relative)
    )


def test_exact_power_law() -> None:
    law = fit_power_law([(x, study(3.0 * x**0.7)) for x in (1.0, 10.0, 100.0)])
    assert law.exponent.value == pytest.approx(0.7)
    assert law.prefactor.value == pytest.approx(3.0)
    assert law.flags == []


def test_two_studies_carry_their_own_intervals() -> None:
    law = fit_power_law([(1.0, study(3.0)), (math.e, study(6.0))])
    assert law.exponent.value == pytest.approx(math.log(2.0))
    half = 1.96 * 0.1 * math.sqrt(2.0)
    assert law.exponent.high == pytest.approx(math.log(2.0) + half, rel=1e-3)


def test_interval_covers_under_scatter_beyond_the_studies_intervals() -> None:
    generator = np.random.default_rng(0)
    x = np.geomspace(1.0, 1000.0, 6)
    covered = 0
    for _ in range(200):
        noise = np.exp(0.3 * generator.standard_normal(6))
        law = fit_power_law([(a, study(2.0 * a**0.5 * b, 0.05)) for a, b in zip(x, noise, strict=True)])
        covered += (law.exponent.low or 0.0) <= 0.5 <= (law.exponent.high or 0.0)
    assert covered >= 184


def test_one_sided_studies_are_left_out_and_said() -> None:
    bound = Estimate(value=None, low=10.0, high=None, reason="larger batch sizes are needed")
    law = fit_power_law([(1.0, study(3.0)), (2.0, bound), (10.0, study(9.0))])
    assert law.num_studies == 2
    assert law.flags == ["x = 2: no two-sided B_crit (larger batch sizes are needed); left out"]


def test_one_study_has_no_exponent() -> None:
    law = fit_power_law([(1.0, study(3.0)), (1.0, study(4.0))])
    assert law.exponent.value is None
    assert "two values of x" in (law.exponent.reason or "")


def test_x_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"x: 0\.0 must be positive"):
        fit_power_law([(0.0, study(3.0))])
