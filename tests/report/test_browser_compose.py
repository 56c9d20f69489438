"""Composing the effective batch in a real browser: sliders move the numbers, only b the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report import examples
from tests.report.browser import opened

pytestmark = pytest.mark.browser


def test_sliders_compose_the_batch(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    for axis, value in (("b", 8), ("n", 2), ("g", 4)):
        page.choose(axis, value)
    assert page.output("compose-equation") == "B = 8 × 2 × 4 = 64"
    assert page.text("stage-text") == (
        "Each cell is one contribution to one optimizer step of 64; a row is a rank, a column is a pass."
    )
    assert "Each of 2 ranks makes 4 passes of 8 examples." in page.text("compose-meaning")


def test_only_b_moves_the_memory_bar(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    page.choose("b", 32)
    before = page.memory()
    for axis, value in (("n", 1), ("n", 64), ("g", 1), ("g", 500)):
        page.choose(axis, value)
        assert page.memory() == before
    assert page.output("memory-text") == "234 MiB measured at b = 32, the same at every N and G"
    page.choose("b", 128)
    assert float(page.memory().rstrip("%")) > float(before.rstrip("%"))


def test_memory_is_never_extrapolated(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    page.choose("b", 16)
    assert "between the measured b = 8 and b = 32" in page.output("memory-text")
    page.choose("b", 256)
    assert page.output("memory-text").startswith("more than ")
    page.choose("b", 1)
    assert page.output("memory-text").startswith("less than ")


def test_without_measured_memory_the_bar_says_so_and_still_follows_b_alone(
    driver: Any, tmp_path: Path
) -> None:
    section = examples.section(examples.study_dict(), layouts=examples.planted_layouts(memory=False))
    page = opened(driver, tmp_path, examples.report_data(studies=(section,)))
    page.choose("b", 8)
    assert page.output("memory-text").startswith("not measured in this sweep")
    before = page.memory()
    page.choose("g", 8)
    page.choose("n", 32)
    assert page.memory() == before
    page.choose("b", 64)
    assert float(page.memory().rstrip("%")) > float(before.rstrip("%"))


def test_a_huge_batch_is_drawn_in_groups(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path, width=400)
    page.choose("b", 4096)
    page.choose("n", 1024)
    page.run(
        "const it = document.getElementById('compose-g-exact'); it.value = '1024';"
        "it.dispatchEvent(new Event('change'))"
    )
    assert page.run("return document.querySelectorAll('*').length") < 20_000
    assert page.output("compose-equation") == "B = 4,096 × 1,024 × 1,024 = 4,294,967,296"
    text = page.text("stage-text")
    assert "contributions to one optimizer step of 4,294,967,296" in text
    assert "a row is 64 ranks" in text
    assert "passes." in text
    assert page.overflow() <= 0


def test_every_rank_and_pass_has_its_own_colour(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    for axis, value in (("b", 4), ("n", 3), ("g", 5)):
        page.choose(axis, value)
    colours = page.run(
        "const canvas = document.querySelector('#stage canvas'); const pen = canvas.getContext('2d');"
        "const { data } = pen.getImageData(0, 30, canvas.width - 40, canvas.height - 30); const seen = {};"
        "for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) {"
        "const key = `${data[i]},${data[i + 1]},${data[i + 2]}`; seen[key] = (seen[key] ?? 0) + 1; }"
        "return Object.values(seen).filter((n) => n > 400).length"
    )
    assert colours == 15


def test_layouts_of_the_same_batch_are_offered_and_can_be_taken(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    for axis, value in (("b", 32), ("n", 1), ("g", 4)):
        page.choose(axis, value)
    chips = [chip.text for chip in driver.find_elements("css selector", "#same-batch button")]
    assert [chip.split(" · ")[0] for chip in chips] == ["8 × 1 × 16", "32 × 1 × 4", "128 × 1 × 1"]
    driver.find_elements("css selector", "#same-batch button")[2].send_keys("\ue007")
    assert page.output("compose-equation") == "B = 128 × 1 × 1 = 128"
    assert page.run("return document.activeElement.getAttribute('aria-pressed')") == "true"
