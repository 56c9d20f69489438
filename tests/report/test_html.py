"""The report file: complete in itself, small, and deaf to what runs are called."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gasweep.analysis.cost import GridPoint
from gasweep.analysis.pareto import pareto_front
from gasweep.report.costs import target_costs
from gasweep.report.data import Layout, ReportData
from gasweep.report.html import render_report, write_report
from gasweep.report.numbers import number
from gasweep.report.payload import build_payload, short
from gasweep.report.study_view import read_study
from tests.report import examples

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--"
LIMIT_BYTES = 1_500_000


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self._open: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        self._open = name
        if name in self.inside:
            self.inside[name].append("")

    def handle_data(self, data: str) -> None:
        if self._open in self.inside:
            self.inside[self._open][-1] += data

    def handle_endtag(self, name: str) -> None:
        self._open = None

    def count(self, name: str) -> int:
        return sum(element == name for element, _ in self.elements)


def payload_of(page: Page) -> Any:
    return json.loads(page.inside["script"][0])


def test_the_file_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    path = write_report(examples.report_data(), tmp_path / "deep" / "report.html")
    text = path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    page = Page(text)
    for name, attributes in page.elements:
        assert name not in {"link", "iframe", "object", "embed", "img", "base", "form"}
        assert not {"src", "action", "style"} & set(attributes)
        assert not [key for key in attributes if key.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    without_namespace = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn|@import|url\(", without_namespace)


def test_the_policy_allows_exactly_this_style_and_script() -> None:
    page = Page(render_report(examples.report_data()))
    policy = next(
        a["content"] for name, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for text in (page.inside["style"][0], page.inside["script"][1]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_hostile_names_everywhere_are_inert() -> None:
    clean = Page(render_report(examples.report_data(notes=("note",))))
    study = examples.two_target_study()
    for target in study["targets"]:
        target["target"] = HOSTILE
        target["flags"] = [HOSTILE]
        for observation in target["observations"]:
            observation["reason"] = observation["learning_rate_label"] = HOSTILE
    rows = [dataclasses.replace(r, run_id=HOSTILE, reason=HOSTILE, axes=HOSTILE) for r in examples.run_rows()]
    data = examples.report_data(
        name=HOSTILE,
        task=HOSTILE,
        notes=(HOSTILE,),
        config_yaml=HOSTILE,
        environments=({"device": HOSTILE, HOSTILE: HOSTILE},),
        studies=(examples.section(study, label=HOSTILE),),
        runs=tuple(rows),
    )
    page = Page(render_report(data))
    assert page.count("script") == clean.count("script") == 2
    assert page.count("img") == 0
    assert payload_of(page)["targets"][0]["name"] == f"{HOSTILE} · {HOSTILE}"
    assert payload_of(page)["runs"]["rows"][0][-1] == HOSTILE


def test_a_dollar_in_a_name_is_not_a_placeholder() -> None:
    assert "$payload ${style}" in render_report(examples.report_data(name="$payload ${style}"))


def test_the_same_data_gives_the_same_file() -> None:
    assert render_report(examples.report_data()) == render_report(examples.report_data())


def many_layouts(count: int) -> tuple[Layout, ...]:
    base = examples.planted_layouts()
    return tuple(
        dataclasses.replace(
            base[i % len(base)],
            point=dataclasses.replace(base[i % len(base)].point, accumulation_steps=1 + i // len(base)),
        )
        for i in range(count)
    )


def test_a_large_sweep_stays_under_the_limit_and_says_what_is_left_out(tmp_path: Path) -> None:
    base = examples.run_rows()
    rows = tuple(
        dataclasses.replace(row, run_id=f"c{i:03d}{row.run_id}", reason="x" * 80)
        for i in range(140)
        for row in base
    )
    sections = (examples.section(examples.two_target_study(), layouts=many_layouts(3000)),)
    path = write_report(examples.report_data(runs=rows, studies=sections), tmp_path / "report.html")
    assert 1_300_000 < len(path.read_bytes()) < LIMIT_BYTES
    payload = payload_of(Page(path.read_text()))
    shown = len(payload["runs"]["rows"])
    assert shown > 5000
    assert payload["left_out"] == {"layouts": 1000, "runs": len(rows) - shown}


def test_many_targets_share_the_room(tmp_path: Path) -> None:
    study = examples.two_target_study()
    sections = tuple(
        examples.section(study, layouts=many_layouts(500), label=f"task.width={i}") for i in range(20)
    )
    rows = tuple(dataclasses.replace(row, reason="y" * 10_000) for row in examples.run_rows())
    text = render_report(examples.report_data(runs=rows, studies=sections))
    assert len(text.encode()) < LIMIT_BYTES
    payload = payload_of(Page(text))
    assert len(payload["targets"]) == 24
    assert "Only the first 24 targets are shown; 16 are left out." in text
    assert len(payload["runs"]["rows"]) == len(rows)
    assert max(len(row[-2]) for row in payload["runs"]["rows"]) == 240


def test_without_scripts_the_answers_and_the_steps_are_there() -> None:
    text = render_report(examples.report_data())
    study = examples.two_target_study()
    value = study["targets"][0]["critical_batch_size"]["value"]
    assert number(value) in text
    assert "216 grid points" in text
    assert "<noscript>" in text


@pytest.mark.parametrize(
    "study",
    [
        examples.censored_study,
        examples.single_batch_study,
        examples.one_sided_study,
        examples.edge_study,
    ],
)
def test_unresolved_studies_are_reported_with_their_reason(study: Any) -> None:
    found = study()
    text = render_report(examples.report_data(studies=(examples.section(found),)))
    critical = found["targets"][0]["critical_batch_size"]
    assert critical["value"] is not None or critical["reason"] in text


def empty_report() -> ReportData:
    return examples.report_data(studies=(), runs=(), collapse=None, config_yaml="", environments=())


def test_an_empty_sweep_is_a_report_too() -> None:
    text = render_report(empty_report())
    assert "No target was evaluated in this sweep." in text
    assert "No run was recorded." in text
    assert payload_of(Page(text))["targets"] == []


def test_layouts_are_shown_without_any_target() -> None:
    data = examples.report_data(studies=(examples.section({"targets": []}),))
    payload = payload_of(Page(render_report(data)))
    assert payload["targets"] == []
    assert len(payload["sections"][0]["layouts"]) == 18


def only_section(**fields: Any) -> ReportData:
    return examples.report_data(studies=(examples.section(examples.study_dict(), **fields),))


def test_payload_law_holds_steps_and_wall_clock_of_each_family() -> None:
    payload = build_payload(only_section())
    sample = next(point for point in payload["targets"][0]["law"] if point["B"] == 64)
    family = payload["sections"][0]["families"].index((32, 2))
    layout = next(
        x
        for x in examples.planted_layouts()
        if x.point
        == GridPoint(micro_batch_size=32, world_size=2, accumulation_steps=1, effective_batch_size=64)
    )
    assert layout.step_time is not None
    seconds = layout.step_time.seconds.value
    assert seconds is not None
    assert sample["seconds"][family][0] == pytest.approx(sample["steps"][0] * seconds, rel=1e-4)


def test_payload_front_is_the_analysis_front() -> None:
    data = only_section()
    section = data.studies[0]
    costs = build_payload(data)["targets"][0]["costs"]
    front = pareto_front(target_costs(read_study(section.study)[0], section.layouts))
    shown = {section.layouts[i].point for i, cost in enumerate(costs) if cost[0] == "front"}
    assert shown == {cost.point for cost in front}
    assert len(shown) > 1


def test_without_a_law_the_measured_steps_are_priced() -> None:
    study = examples.single_batch_study()
    view = read_study(study)[0]
    costs = {c.point: c for c in target_costs(view, examples.planted_layouts())}
    known = [c for c in costs.values() if c.resolved]
    assert {c.point.effective_batch_size for c in known} == {8}
    unknown = next(c for c in costs.values() if c.point.effective_batch_size == 16)
    assert unknown.reason == "no run at B = 16"


def test_layouts_without_a_measurement_are_unresolved() -> None:
    bare = tuple(Layout(point=layout.point) for layout in examples.planted_layouts())
    payload = build_payload(only_section(layouts=bare))
    assert {cost[0] for cost in payload["targets"][0]["costs"]} == {"unresolved"}
    assert payload["sections"][0]["memory"] == []
    assert payload["sections"][0]["families"] == []


def test_memory_is_gathered_by_micro_batch_size_over_all_layouts() -> None:
    point = GridPoint(micro_batch_size=8, world_size=1, accumulation_steps=1, effective_batch_size=8)
    other = dataclasses.replace(point, world_size=2, effective_batch_size=16)
    layouts = (Layout(point=point, peak_memory_bytes=100), Layout(point=other, peak_memory_bytes=110))
    assert build_payload(only_section(layouts=layouts))["sections"][0]["memory"] == [[8, 100, 110]]


@pytest.mark.parametrize(("value", "text"), [(None, None), (3.0, 3), (1 / 3, 0.33333), (123456.7, 123460)])
def test_payload_numbers_are_short(value: float | None, text: float | None) -> None:
    assert short(value) == text
