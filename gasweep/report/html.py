"""One self-contained HTML file: every style, script and number is inside; nothing else may load."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from string import Template

from gasweep.report import controls, sections
from gasweep.report.data import ReportData
from gasweep.report.markup import Markup, escape, json_script
from gasweep.report.payload import build_payload, step_time_table, target_title
from gasweep.report.study_view import read_study

STYLES = ("report.css", "bar.css", "tables.css", "controls.css", "chart.css")
SCRIPTS = (
    "base.js",
    "chart.js",
    "curves.js",
    "knee.js",
    "rates.js",
    "compose.js",
    "stage.js",
    "cost.js",
    "runs.js",
    "main.js",
)


def write_report(data: ReportData, path: Path) -> Path:
    """Write the report to `path`, through a temporary name so that a reader never sees half; return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(render_report(data), encoding="utf-8")
    return partial.replace(path)


def render_report(data: ReportData) -> str:
    """The report as HTML text; the same data gives the same text."""
    targets: controls.Targets = [
        (target_title(view, section.label), view)
        for section in data.studies
        for view in read_study(section.study)
    ]
    style = "\n".join(map(_asset, STYLES))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "})();"
    return Template(_asset("page.html")).substitute(
        policy=_policy(style=style, script=script),
        title=escape(data.name),
        style=style,
        script=script,
        payload=json_script(build_payload(data)),
        subtitle=sections.subtitle(data),
        collapse=sections.collapse(data.collapse),
        picker=sections.picker(targets),
        answer=sections.answer(data, targets),
        curves=sections.curves(targets),
        rates=sections.rates() if targets else "",
        compose=controls.compose(),
        cost=controls.cost(data, _fronts(data, targets)) if targets else "",
        runs=sections.runs(data),
        setup=sections.setup(data),
    )


def _fronts(data: ReportData, targets: controls.Targets) -> list[Markup]:
    step_times = step_time_table(data)
    return [
        sections.panel(sections.front_table(view, data.layouts, step_times, worker=data.worker), index)
        for index, (_, view) in enumerate(targets)
    ]


def _policy(*, style: str, script: str) -> str:
    """Only this very style and this very script; no network, no frames, no forms, no base URL."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("gasweep.report").joinpath("assets", name).read_text(encoding="utf-8")
