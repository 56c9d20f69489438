"""The report in a real browser: sliders move the numbers, only b moves the memory, nothing is loaded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gasweep.analysis.pareto import Choice, cheapest_within, fastest_within
from gasweep.report.costs import target_costs
from gasweep.report.data import Layout, ReportData
from gasweep.report.html import write_report
from gasweep.report.study_view import read_study
from tests.report import examples
from tests.report.browser import browser, require_browser, set_view

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require_browser()
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


class Page:
    """A report opened from its file."""

    def __init__(self, driver: Any, path: Path, *, width: int = 1400) -> None:
        self.driver = driver
        set_view(driver, width=width)
        driver.get_log("performance")
        driver.get_log("browser")
        driver.get(path.as_uri())
        self.settle()

    def settle(self) -> None:
        """Wait until sizes were observed and drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, name: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).textContent", name))

    def output(self, name: str) -> str:
        return str(self.run("return document.getElementById(arguments[0]).value", name))

    def set(self, name: str, value: object, *, event: str = "input") -> None:
        """What a user's input does: the value, then its event."""
        self.run(
            "const it = document.getElementById(arguments[0]); it.value = arguments[1];"
            "it.dispatchEvent(new Event(arguments[2], { bubbles: true }))",
            name,
            str(value),
            event,
        )
        self.settle()

    def choose(self, axis: str, value: int) -> None:
        self.set(f"compose-{axis}-exact", value, event="change")

    def press(self, name: str, *keys: str) -> None:
        self.driver.find_element("id", name).send_keys(*keys)
        self.settle()

    def memory(self) -> str:
        return str(self.run("return document.getElementById('memory-fill').style.width"))

    def overflow(self) -> int:
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def console(self) -> list[Any]:
        return list(self.driver.get_log("browser"))

    def requests(self) -> list[str]:
        """Everything the page asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]


def opened(driver: Any, folder: Path, data: ReportData | None = None, *, width: int = 1400) -> Page:
    path = write_report(examples.report_data() if data is None else data, folder / "report.html")
    return Page(driver, path, width=width)


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


def test_a_huge_batch_is_drawn_in_groups_and_at_once(driver: Any, tmp_path: Path) -> None:
    page = opened(driver, tmp_path, width=400)
    page.choose("b", 4096)
    page.choose("n", 1024)
    milliseconds = page.run(
        "const it = document.getElementById('compose-g-exact'); it.value = '1024';"
        "const start = performance.now(); it.dispatchEvent(new Event('change'));"
        "return performance.now() - start"
    )
    assert milliseconds < 300
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


def column(page: Page, index: int) -> list[str]:
    return list(
        page.run(
            "return [...document.querySelectorAll('#runs-table tbody tr')]"
            ".map((row) => row.cells[arguments[0]].textContent)",
            index,
        )
    )


def head(page: Page, name: str) -> int:
    names = page.run(
        "return [...document.querySelectorAll('#runs-table th')].map((cell) => cell.textContent)"
    )
    return int(names.index(name))


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


def test_thousands_of_runs_open_quickly_and_all_can_be_shown(driver: Any, tmp_path: Path) -> None:
    base = examples.run_rows()
    rows = tuple(dataclasses.replace(row, run_id=f"c{i:02d}{row.run_id}") for i in range(40) for row in base)
    page = opened(driver, tmp_path, examples.report_data(runs=rows))
    milliseconds = page.run("return performance.timing.domComplete - performance.timing.responseEnd")
    assert milliseconds < 3000
    assert page.output("runs-count") == "3,840 of 3,840 runs"
    assert len(column(page, 0)) == 500
    page.press("runs-all", "\ue007")
    assert len(column(page, 0)) == 3840


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
