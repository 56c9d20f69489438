"""The knee, the front and the best within a limit, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gasweep.analysis.pareto import Choice, cheapest_within, fastest_within
from gasweep.report.costs import target_costs
from gasweep.report.data import Layout, ReportData
from gasweep.report.study_view import read_study
from tests.report import examples
from tests.report.browser import opened

pytestmark = pytest.mark.browser


def test_the_knee_moves_steps_examples_time_and_cost(driver: Any, tmp_path: Path) -> None:
    data = examples.report_data(studies=(examples.section(examples.study_dict()),))
    page = opened(driver, tmp_path, data)
    law = page.run("return JSON.parse(document.getElementById('report-data').textContent).targets[0].law")
    index = next(i for i, sample in enumerate(law) if sample["B"] == 64)
    page.set("knee-batch", index)
    assert page.output("knee-b") == "64"
    steps = law[index]["steps"][0]
    assert float(page.output("knee-steps").replace(",", "")) == pytest.approx(steps, rel=1e-3)
    assert float(page.output("knee-examples").replace(",", "")) == pytest.approx(64 * steps, rel=1e-3)
    assert "95 %" in page.text("knee-steps-note")
    first = [page.output(f"knee-{name}") for name in ("steps", "examples", "time", "cost")]
    page.set("knee-batch", index + 10)
    second = [page.output(f"knee-{name}") for name in ("steps", "examples", "time", "cost")]
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_the_knee_says_when_no_layout_was_timed_at_this_batch(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    page.set("knee-batch", 0)
    assert page.output("knee-time") == "not measured"
    assert "lies outside what was timed" in page.text("knee-time-note")


@pytest.mark.parametrize("study", [examples.censored_study, examples.single_batch_study])
def test_without_a_law_there_is_no_knee_to_slide(driver: Any, tmp_path: Path, study: Any) -> None:
    page = opened(driver, tmp_path, examples.report_data(studies=(examples.section(study()),)))
    assert page.console() == []
    assert page.run("return document.getElementById('knee').hidden")
    assert not page.run("return document.getElementById('knee-missing').hidden")


def test_a_one_sided_answer_is_drawn_at_the_edge(driver: Any, tmp_path: Path) -> None:
    study = examples.one_sided_study()
    page = opened(driver, tmp_path, examples.report_data(studies=(examples.section(study),)))
    assert page.console() == []
    notes = [note.text for note in driver.find_elements("css selector", "#steps-chart .note")]
    assert len(notes) == 1
    assert notes[0].startswith("B_crit ≥ ")


def test_flagged_and_censored_points_look_different(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path, examples.report_data(studies=(examples.section(examples.edge_study()),)))
    fills = page.run(
        "return [...document.querySelectorAll('#steps-chart .mark')].map((it) => getComputedStyle(it).fill)"
    )
    card = page.run("return getComputedStyle(document.querySelector('section')).backgroundColor")
    assert len(fills) == 9
    assert [fill == card for fill in fills] == [False] * 8 + [True]


def expected_choice(data: ReportData, choose: Any, **limit: float) -> Choice:
    section = data.studies[0]
    choice: Choice = choose(target_costs(read_study(section.study)[0], section.layouts), **limit)
    return choice


@pytest.mark.parametrize("limit", [1.2, 2.0, 5.0, 60.0])
def test_best_within_a_limit_is_what_the_analysis_says(driver: Any, tmp_path: Path, limit: float) -> None:
    data = examples.report_data()
    page = opened(driver, tmp_path, data)
    for name, choice in (
        ("deadline", expected_choice(data, cheapest_within, deadline_s=limit)),
        ("budget", expected_choice(data, fastest_within, budget_gpu_hours=limit / 3600)),
    ):
        page.set(f"{name}-unit", 1)
        page.set(name, limit)
        answer = page.output(f"{name}-answer")
        if choice.expected is None:
            assert answer == "no layout of the grid is within this limit"
            continue
        point = choice.expected.point
        layout = f"b {point.micro_batch_size} × N {point.world_size} × G {point.accumulation_steps}"
        assert answer.startswith(layout)
        assert ("Within the limit at 95 %" in answer) is (choice.safe is choice.expected)


def test_a_limit_that_is_no_number_is_refused(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    page.set("deadline", -1)
    assert page.output("deadline-answer") == "give a number above 0"


def test_without_seconds_per_step_the_cost_section_says_so(driver: Any, tmp_path: Path) -> None:
    bare = tuple(Layout(point=layout.point) for layout in examples.planted_layouts())
    section = examples.section(examples.study_dict(), layouts=bare)
    page = opened(driver, tmp_path, examples.report_data(studies=(section,)))
    assert page.console() == []
    assert page.run("return document.getElementById('cost-body').hidden")
    assert page.output("knee-time") == "not measured"
    assert "no seconds per step were measured" in page.text("knee-time-note")


def test_choosing_a_target_changes_every_section(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    before = [page.output("knee-steps"), page.text("compose-meaning")]
    page.set("target", 1)
    assert [page.output("knee-steps"), page.text("compose-meaning")] != before
    shown = page.run(
        "return [...document.querySelectorAll('[data-target]')].map((it) => [it.dataset.target, it.hidden])"
    )
    assert all(hidden is (target != "1") for target, hidden in shown)
