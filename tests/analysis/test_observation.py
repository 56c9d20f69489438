"""Wrong input is refused in one line that names the field, and for a study the run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.observation import Observation
from gasweep.analysis.study import StudyRun, fit_study
from gasweep.analysis.trials import listed


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 120.0, "steps": 100.0}, r"low: 120\.0 must not exceed steps: 100\.0"),
        ({"low": 90.0, "steps": 120.0, "high": 110.0}, r"steps: 120\.0 must not exceed high: 110\.0"),
        ({"low": 120.0, "high": 110.0}, r"low: 120\.0 must not exceed high: 110\.0"),
        ({"low": math.nan, "high": 110.0}, "low: nan must be a number of optimizer steps >= 0"),
        ({"low": -1.0, "high": 110.0}, r"low: -1\.0 must be a number of optimizer steps >= 0"),
        ({"low": True, "high": 110.0}, "low: True must be a number"),
        ({"steps": math.nan}, "steps: nan must be a positive number of optimizer steps"),
        ({"steps": math.inf}, "steps: inf must be a positive number"),
        ({"steps": True}, "steps: True must be a positive number"),
        ({"steps": 0.0}, r"steps: 0\.0 must be a positive number"),
        ({"steps": "100"}, "steps: '100' must be a positive number"),
        ({"high": math.nan}, "high: nan must be a positive number"),
        ({"censored_at": False}, "censored_at: False must be a positive number"),
        ({"censored_at": 100.0, "low": 90.0}, r"censored_at: 100\.0 was given beside low"),
        ({"censored_at": 100.0, "steps": 90.0}, r"censored_at: 100\.0 was given beside steps"),
        ({"low": 90.0}, r"steps: give steps, an interval \(low, high\] or censored_at"),
        ({"steps": 100.0, "log_sd": math.nan}, "log_sd: nan must be a finite number >= 0"),
        ({"steps": 100.0, "log_sd": -0.1}, r"log_sd: -0\.1 must be a finite number >= 0"),
        ({"steps": 100.0, "log_shift": math.inf}, "log_shift: inf must be a finite number"),
    ],
)
def test_impossible_observation_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Observation(batch_size=8.0, **fields)


@pytest.mark.parametrize("batch", [math.nan, math.inf, 0.0, -8.0, True])
def test_impossible_batch_size_is_refused(batch: float) -> None:
    with pytest.raises(ValueError, match=f"batch_size: {batch} must be a positive number"):
        Observation(batch_size=batch, steps=100.0)


def test_numbers_of_numpy_are_numbers() -> None:
    fields: dict[str, Any] = {"batch_size": np.int64(8), "steps": np.float32(100.0), "low": np.int32(0)}
    assert Observation(**fields).log_interval[0] == pytest.approx(math.log(100.0))


def test_study_names_the_run_whose_numbers_are_none() -> None:
    runs = [StudyRun(batch_size=8.0, seed=3, learning_rate=0.1, steps=math.nan)]
    with pytest.raises(ValueError, match=r"batch 8, learning rate 0\.1, seed 3: steps: nan must be"):
        fit_study(runs)


def test_reached_by_the_first_evaluation_is_not_called_unreached() -> None:
    items = [
        Observation(batch_size=batch, low=0.0, high=100.0, seed=seed)
        for batch in (8.0, 64.0)
        for seed in range(3)
    ]
    reason = fit_critical_batch_size(items).critical_batch_size.reason or ""
    assert "by its first evaluation" in reason
    assert "no run reached" not in reason


def test_runs_that_say_nothing_share_one_flag() -> None:
    runs = [StudyRun(batch_size=8.0, seed=seed, state="censored") for seed in range(1000)]
    flags = [flag for flag in fit_study(runs).targets[0].flags if "its last step is unknown" in flag]
    assert len(flags) == 1
    assert "and 997 more" in flags[0]
    assert len(flags[0]) < 300


def test_unnamed_target_has_a_name_that_says_so() -> None:
    report = fit_study([StudyRun(batch_size=8.0, seed=0, steps=100.0)]).targets[0]
    assert report.target == "as given"


def test_listed_says_how_many_more() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b", "c", "d"], limit=2) == "a, b and 2 more"
