"""The table of runs in a real browser."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.report import examples
from tests.report.browser import column, head, opened

pytestmark = pytest.mark.browser


def test_the_table_of_runs_sorts_by_number_both_ways_from_the_keyboard(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    index = head(page, "optimizer steps")
    button = driver.find_elements("css selector", "#runs-table th button")[index]
    button.send_keys("\ue007")
    steps = [int(cell.replace(",", "")) for cell in column(page, index)]
    assert steps == sorted(steps)
    assert page.run("return document.activeElement.parentElement.getAttribute('aria-sort')") == "ascending"
    button.send_keys("\ue007")
    assert [int(cell.replace(",", "")) for cell in column(page, index)] == sorted(steps, reverse=True)


def test_the_table_of_runs_filters_by_state_and_text(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path)
    assert page.output("runs-count") == "96 of 96 runs"
    page.set("runs-state", "diverged")
    assert page.output("runs-count") == "24 of 96 runs"
    assert set(column(page, 0)) == {"diverged"}
    page.set("runs-search", "nan 1024")
    assert page.output("runs-count") == "3 of 96 runs"


def test_a_page_of_thousands_of_runs_opens_with_some_and_shows_all(driver: Any, tmp_path: Path) -> None:
    base = examples.run_rows()
    rows = tuple(dataclasses.replace(row, run_id=f"c{i:02d}{row.run_id}") for i in range(40) for row in base)
    page = opened(driver, tmp_path, examples.report_data(runs=rows))
    assert page.output("runs-count") == "3,840 of 3,840 runs"
    assert len(column(page, 0)) == 500
    page.press("runs-all", "\ue007")
    assert len(column(page, 0)) == 3840
