"""Published numbers, from the slice shipped in experiments/data (see its NOTICE)."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest

from experiments.public_data import UNITS, ZHANG_MODELS, options_for, zhang_reports
from gasweep.analysis.power_law import fit_power_law
from gasweep.analysis.sources import read_source
from gasweep.analysis.study import TargetReport, fit_study

DATA = Path(__file__).parents[2] / "experiments" / "data"


@functools.cache
def mlperf(benchmark: str) -> TargetReport:
    path = next((DATA / "mlperf_rcp").glob(f"*_{benchmark}.json"))
    return fit_study(read_source(path, options_for(benchmark, UNITS[benchmark])).runs).targets[0]


@pytest.mark.parametrize(
    ("benchmark", "published"),
    [("llama31_405b", 5900.0), ("flux1", 3400.0), ("bert", 12800.0), ("llama2_70b_lora", 40.0)],
)
def test_mlperf_reference_points(benchmark: str, published: float) -> None:
    estimate = mlperf(benchmark).fit.critical_batch_size
    assert estimate.value == pytest.approx(published, rel=0.02)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < published < estimate.high


def test_four_batch_sizes_off_the_law_have_a_wide_interval() -> None:
    estimate = mlperf("llama2_70b_lora").fit.critical_batch_size
    assert math.log((estimate.high or 0.0) / (estimate.low or 1.0)) > math.log(4.0)
    assert any(flag.startswith("misfit") for flag in mlperf("llama2_70b_lora").flags)


def test_corrupt_gpt3_seed_is_named_and_does_not_move_the_answer() -> None:
    report = mlperf("gpt3")
    [outlier] = report.outliers
    assert outlier.observation.batch_size == 3072
    assert str(outlier.observation.seed).startswith("6 of ")
    path = next((DATA / "mlperf_rcp").glob("*_gpt3.json"))
    runs = read_source(path, options_for("gpt3", UNITS["gpt3"])).runs
    clean = [run for run in runs if run.seed != outlier.observation.seed]
    assert len(clean) == len(runs) - 1
    assert fit_study(clean).targets[0].fit.critical_batch_size == report.fit.critical_batch_size


def test_places_in_sorted_lists_are_not_taken_for_seeds() -> None:
    """The lists of llama31_405b are sorted: its n-th values would rise together if they were one seed's."""
    assert not any(flag.startswith("seeds:") for flag in mlperf("llama31_405b").flags)


@pytest.mark.parametrize(
    ("model", "critical", "twenty_percent"),
    [("85M", 2191.0, 745.0), ("151M", 3240.0, 955.0), ("302M", 5433.0, 1394.0)],
)
def test_zhang_2024(model: str, critical: float, twenty_percent: float) -> None:
    fit = zhang_reports(DATA / "zhang2024_steps_to_target.csv")[model].fit
    assert fit.critical_batch_size.value == pytest.approx(critical, rel=1e-3)
    assert fit.critical_batch_size_20pct.value == pytest.approx(twenty_percent, rel=1e-3)


def test_zhang_growth_with_parameters() -> None:
    reports = zhang_reports(DATA / "zhang2024_steps_to_target.csv")
    law = fit_power_law([(ZHANG_MODELS[name], one.fit.critical_batch_size) for name, one in reports.items()])
    assert law.exponent.value == pytest.approx(0.72, abs=0.03)
