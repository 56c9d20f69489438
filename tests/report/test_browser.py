"""The report in a real browser: it opens alone, reads at every width and scheme, and runs no one's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report import examples
from tests.report.browser import Page, column, head, opened, set_view

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=document.title='broken'>"


@pytest.mark.parametrize("width", [400, 1400])
def test_the_file_opens_alone_without_errors_and_without_sideways_scroll(
    driver: Any, tmp_path: Path, width: int
) -> None:
    page = opened(driver, tmp_path, width=width)
    assert page.console() == []
    assert page.requests() == [(tmp_path / "report.html").as_uri()]
    assert page.overflow() <= 0
    assert page.run("return document.querySelectorAll('.chart svg').length") == 4


def smallest_text(page: Page) -> float:
    """The least font size of any text on the page, in CSS pixels."""
    return float(
        page.run(
            "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); let least = 99;"
            "while (walk.nextNode()) { const box = walk.currentNode.parentElement;"
            "if (walk.currentNode.data.trim() && box.checkVisibility())"
            "least = Math.min(least, parseFloat(getComputedStyle(box).fontSize)); } return least"
        )
    )


@pytest.mark.parametrize("width", [400, 1400])
def test_no_text_is_too_small_to_read(driver: Any, tmp_path: Path, width: int) -> None:
    page = opened(driver, tmp_path, width=width)
    assert smallest_text(page) >= 12
    scale = page.run(
        "const svg = document.querySelector('#steps-chart svg');"
        "return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
    )
    assert scale == pytest.approx(1, abs=0.02)


def test_charts_follow_the_window(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path, width=1400)
    wide = page.run("return document.querySelector('#cost-chart svg').viewBox.baseVal.width")
    set_view(driver, width=400)
    page.settle()
    page.settle()
    narrow = page.run("return document.querySelector('#cost-chart svg').viewBox.baseVal.width")
    assert narrow < 400 < wide
    assert page.console() == []


def test_sliders_work_from_the_keyboard(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    page.choose("b", 8)
    page.press("compose-b", "\ue014")
    assert page.output("compose-b-exact") == "12"
    knee = page.output("knee-b")
    page.press("knee-batch", "\ue010")
    assert page.output("knee-b") == "4,096"
    assert page.output("knee-b") != knee
    value = page.run("return document.getElementById('knee-batch').getAttribute('aria-valuetext')")
    assert value == "4,096 examples per optimizer step"


def test_every_control_has_a_name_and_can_be_reached(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    unnamed = page.run(
        "return [...document.querySelectorAll('input, select, button')].filter((it) =>"
        "!(it.labels?.length || it.getAttribute('aria-label') || it.textContent.trim())).map((it) => it.id)"
    )
    assert unnamed == []
    assert page.run("return [...document.querySelectorAll('[tabindex]')].every((it) => it.tabIndex === 0)")


def test_hostile_names_run_nothing(driver: Any, tmp_path: Path) -> None:
    study = examples.two_target_study()
    for target in study["targets"]:
        target["target"] = HOSTILE
    rows = tuple(examples.run_rows(6))
    data = examples.report_data(
        name=HOSTILE,
        config_yaml=HOSTILE,
        notes=(HOSTILE,),
        studies=(examples.section(study, label=HOSTILE),),
        runs=tuple(type(row)(**{**vars(row), "run_id": HOSTILE, "reason": HOSTILE}) for row in rows),
    )
    page = opened(driver, tmp_path, data)
    assert page.console() == []
    assert page.run("return document.images.length") == 0
    assert driver.title == HOSTILE
    assert HOSTILE in column(page, head(page, "run"))


def test_dark_and_light_have_readable_contrast(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    for scheme in ("light", "dark"):
        set_view(driver, width=1400, scheme=scheme)
        page.settle()
        for selector in ("body", ".soft", "td", ".bar a", ".flags li", "output", "th"):
            for element in driver.find_elements("css selector", selector)[:1]:
                assert contrast(page, element) >= 4.5, (scheme, selector)


def contrast(page: Page, element: Any) -> float:
    """WCAG contrast of an element's text to the nearest painted background."""
    ink, back = page.run(
        "let it = arguments[0]; const ink = getComputedStyle(it).color;"
        "const solid = (c) => !/^(transparent|rgba\\(.*, 0\\)|color\\(.*\\/)/.test(c);"
        "while (it && !solid(getComputedStyle(it).backgroundColor)) it = it.parentElement;"
        "return [ink, getComputedStyle(it ?? document.body).backgroundColor]",
        element,
    )
    light, dark = sorted((luminance(ink), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_motion_is_reduced_on_request(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    assert page.run("return getComputedStyle(document.getElementById('memory-fill')).transitionDuration") in (
        "0s",
        "1e-05s",
    )


def test_an_empty_report_has_no_errors(driver: Any, tmp_path: Path) -> None:
    data = examples.report_data(studies=(), runs=(), collapse=None, config_yaml="", environments=())
    page = opened(driver, tmp_path, data, width=400)
    assert page.console() == []
    page.choose("b", 7)
    assert page.output("compose-equation").startswith("B = 7 × ")


def test_long_names_do_not_widen_the_page(driver: Any, tmp_path: Path) -> None:
    study = examples.two_target_study()
    for target in study["targets"]:
        target["target"] = "a_metric_with_a_very_long_name_" * 6
        target["flags"] = ["x" * 400]
    data = examples.report_data(
        name="sweep" * 60, task="package." * 30, studies=(examples.section(study, label="axis=" * 40),)
    )
    page = opened(driver, tmp_path, data, width=400)
    assert page.overflow() <= 0
