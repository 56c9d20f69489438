"""Tables and axes of the report in a real browser: every column can be seen, no label lies over another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gasweep.analysis.cost import StepTime
from gasweep.report.data import StudySection
from tests.report import examples
from tests.report.browser import opened
from tests.report.test_layout_costs import POINT

pytestmark = pytest.mark.browser

OVERLAPS = """
const boxes = [...document.querySelectorAll('.chart svg')].map((svg) =>
  [...svg.querySelectorAll('text')].map((it) => [it.textContent, it.getBoundingClientRect()]));
const over = ([, p], [, q]) => p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom;
return boxes.flatMap((texts) => texts.flatMap((one, i) =>
  texts.slice(i + 1).filter((other) => over(one, other)).map((other) => `${one[0]} over ${other[0]}`)));
"""
HIDDEN = """
return [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => box.closest('section').id);
"""


def predicted_section() -> StudySection:
    """Every layout's seconds are predicted, which the front's last column notes."""
    layouts = tuple(
        dataclasses.replace(one, step_time=StepTime(seconds=one.step_time.seconds, source="predicted"))
        for one in examples.planted_layouts()
        if one.step_time is not None
    )
    return examples.section(examples.two_target_study(), layouts=layouts)


def test_a_desk_shows_every_column_of_the_front_and_of_the_layouts(driver: Any, tmp_path: Path) -> None:
    bounds = {"seconds_saved_fraction_low": 0.641, "seconds_saved_fraction_high": 0.684}
    data = examples.report_data(studies=(predicted_section(),), layout_costs=(POINT | bounds,) * 3)
    page = opened(driver, tmp_path, data, width=1400)
    assert "seconds predicted" in page.run("return document.getElementById('cost').innerText")
    assert set(page.run(HIDDEN)) <= {"runs"}


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("step", [1.2, 2.0, 10.0])
def test_labels_of_an_axis_never_lie_over_each_other(
    driver: Any, tmp_path: Path, width: int, step: float
) -> None:
    """Also where the rates tried are close to each other and take many digits."""
    study = examples.two_target_study()
    for target in study["targets"]:
        for seen in target["observations"]:
            for index, trial in enumerate(seen["learning_rates"]):
                trial["learning_rate"] = 0.08662 * step**index
    page = opened(driver, tmp_path, examples.report_data(studies=(examples.section(study),)), width=width)
    assert page.run(OVERLAPS) == []
    labels = page.run(
        "return [...document.querySelectorAll('#rates-chart text')].map((it) => it.textContent)"
    )
    assert "0.08662" in labels
