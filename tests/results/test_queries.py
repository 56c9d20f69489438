"""From the journal to the analysis: planted truth comes back, replicates do not count as seeds."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from gasweep.analysis.steps_to_target import TargetRule
from gasweep.analysis.study_report import NoiseSource
from gasweep.config.schema import ScheduleConfig
from gasweep.results.journal import Journal
from gasweep.results.queries import fit_sweep, measured_layouts, settings, stored_targets
from gasweep.results.reader import JournalReader
from gasweep.results.spread import spreads
from tests.results.planted import (
    BATCHES,
    CRITICAL,
    LAYOUTS,
    MIN_STEPS,
    NOISE_SCALE,
    RATES,
    TARGET,
    plant,
    probe_of,
)


def test_a_planted_critical_batch_size_is_recovered_from_the_journal(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path)) as reader:
        (fitted,) = fit_sweep(reader)
    (target,) = fitted.to_dict()["targets"]
    for name, truth in (
        ("critical_batch_size", CRITICAL),
        ("min_steps", MIN_STEPS),
        ("min_examples", MIN_STEPS * CRITICAL),
    ):
        assert target[name]["low"] < truth < target[name]["high"]
        assert target[name]["value"] == pytest.approx(truth, rel=0.05)
    assert [point["learning_rate"] for point in target["observations"]] == [0.1] * len(BATCHES)
    (flag,) = target["flags"]
    assert flag.startswith("seeds: a seed moves all batch sizes together"), "it was planted so"
    assert "axes" not in target


def test_c65_a_decaying_rate_is_flagged_with_its_horizon(tmp_path: Path) -> None:
    cosine = ScheduleConfig(name="cosine", horizon_examples=5000)
    with JournalReader.open(plant(tmp_path, schedule=cosine)) as reader:
        (fitted,) = fit_sweep(reader)
    (target,) = fitted.to_dict()["targets"]
    assert any("cosine decay over 5000 examples" in flag for flag in target["flags"])


def test_a_warm_up_is_flagged_with_the_bias_it_implies(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path, schedule=ScheduleConfig(warmup_optimizer_steps=60))) as reader:
        (fitted,) = fit_sweep(reader)
    (target,) = fitted.to_dict()["targets"]
    assert any(flag.startswith("delay: 60 steps of warm-up") for flag in target["flags"])


def test_layouts_of_one_run_are_not_seeds(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path, layouts=LAYOUTS)) as reader:
        (setting,) = settings(reader, metric="eval_loss")
        assert len(setting.runs) == len(BATCHES) * len(RATES) * 3
        (spread,) = spreads(reader, fit_sweep(reader))
    assert spread.num_layout_groups == len(BATCHES) * 3
    assert spread.factorisations == pytest.approx(0.001 / 2**0.5, rel=0.1)
    assert spread.seeds == pytest.approx(0.02, rel=0.1)
    assert spread.num_seed_groups == len(BATCHES)


def test_without_repeated_layouts_there_is_no_spread_over_them(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path)) as reader:
        (spread,) = spreads(reader, fit_sweep(reader))
    assert (spread.factorisations, spread.num_layout_groups) == (None, 0)
    assert spread.seeds is not None


def test_extra_axes_are_studies_of_their_own(tmp_path: Path) -> None:
    axes = ({"task.width": 64}, {"task.width": 128})
    with JournalReader.open(plant(tmp_path, axes=axes)) as reader:
        fitted = fit_sweep(reader)
    assert [report.setting.label for report in fitted] == ["task.width=64", "task.width=128"]
    assert fitted[1].to_dict()["targets"][0]["axes"] == {"task.width": 128}


def test_open_runs_are_left_out_and_said(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path, unfinished=2)) as reader:
        (fitted,) = fit_sweep(reader)
    assert fitted.setting.num_open == 2
    assert "2 runs have no result yet: the estimates may change" in fitted.to_dict()["targets"][0]["flags"]


@pytest.mark.parametrize(
    ("waiting", "infeasible", "flags"),
    [
        (0, 0, []),
        (1, 0, ["1 run has no result yet: the estimates may change"]),
        (0, 2, ["2 runs cannot be run here (infeasible) and are not in them"]),
    ],
)
def test_what_cannot_run_is_not_waited_for(
    tmp_path: Path, waiting: int, infeasible: int, flags: list[str]
) -> None:
    with JournalReader.open(plant(tmp_path)) as reader:
        (fitted,) = fit_sweep(reader)
    setting = dataclasses.replace(
        fitted.setting, num_open=waiting + infeasible, num_infeasible=infeasible, flags=[]
    )
    found = dataclasses.replace(fitted, setting=setting).to_dict()["targets"][0]["flags"]
    before = dataclasses.replace(fitted.setting, num_open=0, num_infeasible=0, flags=[])
    bare = dataclasses.replace(fitted, setting=before).to_dict()["targets"][0]["flags"]
    assert found == [*bare, *flags]


def test_an_easier_target_can_be_read_off_the_same_curves(tmp_path: Path) -> None:
    easier = TargetRule(metric="eval_loss", value=(1.0 + TARGET) / 2)
    with JournalReader.open(plant(tmp_path)) as reader:
        (fitted,) = fit_sweep(reader, targets=[easier])
    (target,) = fitted.to_dict()["targets"]
    assert target["min_steps"]["value"] == pytest.approx(MIN_STEPS / 2, rel=0.05)


def test_a_sweep_without_a_target_has_no_estimate(tmp_path: Path) -> None:
    with Journal.create_or_open(tmp_path) as journal:
        assert stored_targets(journal) == []
        journal.record_config({"target": {"metric": "eval_loss", "value": None}}, {})
        assert stored_targets(journal) == []
        assert fit_sweep(journal) == []


def test_step_times_come_from_the_probes(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path)) as reader:
        layouts = measured_layouts(reader)
    assert [layout.point.effective_batch_size for layout in layouts] == list(BATCHES)
    step_time = layouts[0].step_time
    assert step_time is not None
    assert step_time.seconds.value == 0.1
    assert step_time.source == "measured"
    with Journal.create_or_open(tmp_path) as journal:
        journal.add_runs([probe_of(1024)])
        (unmeasured,) = measured_layouts(journal)
    assert unmeasured.step_time is None


def test_the_noise_scale_at_the_target_stands_beside_b_crit(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path, noise=True)) as reader:
        (fitted,) = fit_sweep(reader)
    (target,) = fitted.to_dict()["targets"]
    noise = target["noise_scale"]
    assert noise["low"] < NOISE_SCALE < noise["high"]
    assert noise["value"] == pytest.approx(NOISE_SCALE, rel=0.05)
    assert target["critical_batch_size"]["value"] == pytest.approx(CRITICAL, rel=0.05)
    source = target["noise_scale_source"]
    nearest = min(BATCHES, key=lambda batch: abs(math.log(batch / target["critical_batch_size"]["value"])))
    assert (source["effective_batch_size"], source["num_runs"]) == (nearest, 3)
    assert source["first_optimizer_step"] < source["last_optimizer_step"]
    assert source["widened"] == any(flag.startswith("noise scale: ") for flag in target["flags"])


def test_a_noise_scale_from_far_around_the_target_is_flagged() -> None:
    near = NoiseSource(
        batch_size=8.0, learning_rate=0.1, num_runs=2, num_measured=40, first_step=90, last_step=110,
        is_widened=False,
    )  # fmt: skip
    assert (near.flags(), str(near)) == ([], "at B = 8: 40 measured optimizer steps, 90 – 110, of 2 runs")
    (flag,) = dataclasses.replace(near, num_measured=7, first_step=1, is_widened=True).flags()
    assert flag.startswith("noise scale: 7 measured steps, 1 – 110, stand for those around the target")


def test_without_measurements_the_noise_scale_is_unknown(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path)) as reader:
        (fitted,) = fit_sweep(reader)
    noise = fitted.to_dict()["targets"][0]["noise_scale"]
    assert (noise["value"], noise["reason"]) == (None, "not measured")
