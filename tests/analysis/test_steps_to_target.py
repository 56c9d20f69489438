"""Crossing rules against curves whose crossing is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasweep.analysis.steps_to_target import TargetRule, crossing, is_reached
from gasweep.errors import ConfigError


def rule(value: float = 1.0, **options: object) -> TargetRule:
    return TargetRule(metric="eval_loss", value=value, **options)  # type: ignore[arg-type]


def test_first_crossing_interpolates_and_keeps_its_interval() -> None:
    found = crossing([(0, 3.0), (10, 2.0), (20, 0.5)], rule())
    assert found.steps == pytest.approx(10 + 10 * 1.0 / 1.5)
    assert (found.low, found.high, found.reached) == (10, 20, True)


def test_higher_is_better() -> None:
    found = crossing([(0, 0.1), (10, 0.5), (20, 0.9)], rule(0.7, mode="max"))
    assert found.steps == pytest.approx(15)


def test_exactly_on_target_is_reached() -> None:
    assert crossing([(0, 2.0), (10, 1.0)], rule()).steps == 10


def test_run_not_reached_keeps_its_last_step_and_no_number() -> None:
    found = crossing([(0, 3.0), (200, 1.1)], rule())
    assert (found.reached, found.steps, found.low, found.high) == (False, None, None, None)
    assert found.last_step == 200


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_missing_metric_never_reaches(bad: float | None) -> None:
    assert not is_reached([(0, 3.0), (10, bad)], rule())
    assert not is_reached([(0, 0.1), (10, bad)], rule(0.7, mode="max"))


def test_crossing_after_a_missing_metric_has_an_interval_but_no_interpolation() -> None:
    found = crossing([(0, 3.0), (10, math.nan), (20, 0.5)], rule())
    assert (found.steps, found.low, found.high) == (None, 10, 20)


def test_first_evaluation_already_below_has_no_interpolation() -> None:
    found = crossing([(50, 0.5), (60, 0.4)], rule())
    assert (found.steps, found.low, found.high) == (None, 0, 50)


def test_untrained_model_meets_the_target_at_step_zero() -> None:
    found = crossing([(0, 0.5), (60, 0.4)], rule())
    assert (found.steps, found.high) == (0, 0)


def test_empty_curve() -> None:
    assert crossing([], rule()).last_step == 0


def test_steps_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="optimizer_step 10 follows 20"):
        crossing([(20, 3.0), (10, 2.0)], rule())


DIP = [(0, 3.0), (100, 0.9), (104, 1.2), (110, 0.9), (115, 0.8), (122, 0.7)]


def test_first_crossing_takes_the_dip_and_stays_below_does_not() -> None:
    assert crossing(DIP, rule()).high == 100
    assert crossing(DIP, rule(rule="stays_below", window_fraction=0.1)).high == 110


def test_stays_below_needs_confirmation() -> None:
    staying = rule(rule="stays_below", window_fraction=0.1)
    assert not is_reached(DIP[:-1], staying)
    assert is_reached(DIP, staying)


def test_unconfirmed_crossing_is_censored_before_it() -> None:
    assert crossing(DIP[:-1], rule(rule="stays_below", window_fraction=0.1)).last_step == 104


def test_smoothed_ignores_one_lucky_evaluation() -> None:
    points = [(10, 2.0), (20, 1.9), (30, 0.9), (40, 1.7), (50, 1.0), (60, 0.8), (70, 0.7)]
    assert crossing(points, rule()).high == 30
    assert crossing(points, rule(rule="smoothed", window_fraction=0.4)).steps == pytest.approx(65)


@given(scale=st.floats(0.01, 1e4), window=st.floats(0.01, 0.9))
def test_windows_are_scale_free(scale: float, window: float) -> None:
    """Stretching the curve in steps stretches the answer alike: no constant delay."""
    points = [(1.07**k, 4.0 * 1.07 ** (-0.5 * k)) for k in range(80)]
    smoothed = rule(rule="smoothed", window_fraction=window)
    base = crossing(points, smoothed)
    stretched = crossing([(s * scale, v) for s, v in points], smoothed)
    assert base.steps is not None
    assert stretched.steps == pytest.approx(base.steps * scale, rel=1e-6)


def test_interpolation_error_is_second_order_in_the_spacing() -> None:
    truth = (4.0 / 1.0) ** 2
    for spacing in (0.05, 0.1):
        points = [((1 + spacing) ** k, 4.0 * (1 + spacing) ** (-0.5 * k)) for k in range(90)]
        found = crossing(points, rule())
        assert found.steps == pytest.approx(truth, rel=spacing**2 / 4)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "mim"}, "target.mode: 'mim' is unknown; did you mean 'min'"),
        ({"rule": "smooth"}, "did you mean 'smoothed'"),
        ({"rule": "smoothed"}, "target.window_fraction: 0.0 must lie in"),
        ({"rule": "stays_below", "window_fraction": 1.0}, "target.window_fraction"),
    ],
)
def test_bad_rules_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        rule(**options)  # type: ignore[arg-type]


def test_non_finite_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target\.value"):
        rule(math.nan)
