"""The noise scale along training, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report import examples
from tests.report.browser import opened
from tests.report.test_noise import course, measured_study

pytestmark = pytest.mark.browser

AXES = ("optimizer steps", "examples", "training loss (falls from right to left)")


def shapes(page: Any, kind: str) -> int:
    return int(page.run(f"return document.querySelectorAll('#noise-chart .{kind}').length"))


@pytest.mark.parametrize("width", [400, 1400])
def test_each_course_is_a_curve_with_a_band_against_any_axis(driver: Any, tmp_path: Path, width: int) -> None:
    section = examples.section(measured_study(), noise=(course(32.0), course(64.0), course(8.0, sq_norm=0.0)))
    page = opened(driver, tmp_path, examples.report_data(studies=(section,)), width=width)
    for index, name in enumerate(AXES):
        page.set("noise-against", index)
        assert page.run(
            "return document.querySelector('#noise-chart svg').textContent.includes(arguments[0])", name
        )
        assert (shapes(page, "band"), shapes(page, "line")) == (2, 2)
        assert shapes(page, "open") > 0  # the third is not resolved: lower bounds alone
    assert page.console() == []
    assert page.overflow() <= 0
    legend = [item.text for item in driver.find_elements("css selector", "#noise-legend li")]
    assert legend == ["B 32, learning rate 0.1", "B 64, learning rate 0.1", "B 8, learning rate 0.1"]
