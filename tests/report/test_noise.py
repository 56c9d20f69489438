"""The noise scale in tables and report: beside B_crit per target, and along training with its bands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.analysis.noise_scale_ratio import noise_scale_ratio
from gasweep.analysis.noise_scale_window import noise_trajectory
from gasweep.report.from_sweep import read_report
from gasweep.report.html import render_report
from gasweep.report.tables import estimate_lines
from gasweep.results.noise_course import NoiseCourse
from gasweep.results.queries import fit_sweep
from gasweep.results.reader import JournalReader
from tests.report import examples
from tests.report.test_html import Page, payload_of
from tests.results.planted import BATCHES, CRITICAL, NOISE_SCALE, plant


def course(batch: float, *, sq_norm: float = 1.0) -> NoiseCourse:
    steps = [
        NoiseMeasurement(
            grad_sq_norm=sq_norm + 0.1 * (-1) ** i,
            grad_noise_trace=40.0 + i % 3,
            num_groups=4,
            num_examples=int(batch),
            optimizer_step=5 * i,
            contributions=int(5 * i * batch),
            loss=2.0 - 0.01 * i,
        )
        for i in range(1, 60)
    ]
    return NoiseCourse(
        run_id="c0",
        effective_batch_size=batch,
        learning_rate=0.1,
        seed=0,
        points=tuple(noise_trajectory(steps, num_points=20)),
    )


def measured_study() -> dict[str, Any]:
    study = examples.two_target_study()
    for target in study["targets"]:
        noise = Estimate(value=40.0, low=30.0, high=50.0)
        critical = Estimate(**target["critical_batch_size"])
        target["noise_scale"] = noise.to_dict()
        target["noise_scale_ratio"] = noise_scale_ratio(noise, critical).to_dict()
    return study


def test_a_sweep_prints_both_and_their_ratio(tmp_path: Path) -> None:
    with JournalReader.open(plant(tmp_path, noise=True)) as reader:
        (fitted,) = fit_sweep(reader)
    study = fitted.to_dict()
    ratio = study["targets"][0]["noise_scale_ratio"]
    assert ratio["value"] == pytest.approx(NOISE_SCALE / CRITICAL, rel=0.1)
    assert ratio["low"] < NOISE_SCALE / CRITICAL < ratio["high"]
    lines = estimate_lines(study)
    assert [line for line in lines if line.startswith("  noise scale / B_crit")]


def test_several_targets_stand_side_by_side_in_one_table() -> None:
    lines = estimate_lines(measured_study())
    start = next(i for i, line in enumerate(lines) if line.startswith("noise scale beside B_crit"))
    assert lines[start + 1].split()[:2] == ["target", "B_crit"]
    rows = lines[start + 2 :]
    assert ["eval_loss <= 0.5" in rows[0], "eval_loss <= 0.45" in rows[1], len(rows)] == [True, True, 2]
    assert all("40 [30, 50]" in row for row in rows)


def test_without_measurements_no_ratio_is_printed() -> None:
    text = "\n".join(estimate_lines(examples.two_target_study()))
    assert "noise scale (examples)         unknown (not measured)" in text
    assert "/ B_crit" not in text


def test_the_report_holds_courses_with_bands_against_steps_examples_and_loss() -> None:
    section = examples.section(measured_study(), noise=(course(32.0), course(64.0, sq_norm=0.0)))
    page = Page(render_report(examples.report_data(studies=(section,))))
    resolved, unresolved = payload_of(page)["sections"][0]["noise"]
    steps, contributions, loss, value, low, high = resolved["points"][-1]
    assert (steps, contributions, resolved["B"]) == (295, 295 * 32, 32)
    assert 1.41 < loss < 1.6
    assert low < value < high
    assert value == pytest.approx(41.0, rel=0.05)
    assert [point[3] for point in unresolved["points"]] == [None] * len(unresolved["points"])
    assert any(attributes.get("id") == "noise-chart" for _, attributes in page.elements)
    assert any(attributes.get("href") == "#noise" for _, attributes in page.elements)


def test_the_report_reads_without_scripts() -> None:
    section = examples.section(measured_study(), noise=(course(32.0),))
    text = render_report(examples.report_data(studies=(section,)))
    assert "Beside B_crit, where each target was reached" in text
    assert re.sub("<[^>]*>", "", text).count("40\n[30, 50]") == 2


def test_without_measurements_there_is_no_section() -> None:
    page = Page(render_report(examples.report_data()))
    assert not any("noise" in (attributes.get("id") or "") for _, attributes in page.elements)
    assert not any(attributes.get("href") == "#noise" for _, attributes in page.elements)


def test_courses_are_read_from_the_journal_one_run_per_batch_size(tmp_path: Path) -> None:
    data = read_report(plant(tmp_path, noise=True))
    (study,) = data.studies
    assert [found.effective_batch_size for found in study.noise] == list(BATCHES)
    winners = [o["learning_rate"] for o in study.study["targets"][0]["observations"]]
    assert [found.learning_rate for found in study.noise] == winners
    last = study.noise[0].points[-1].window.noise_scale
    assert last.value == pytest.approx(NOISE_SCALE, rel=0.1)
    assert json.dumps(payload_of(Page(render_report(data)))["sections"][0]["noise"])
