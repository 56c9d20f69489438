"""One self-contained HTML file: every style, script and number is inside; nothing else may load."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from string import Template

from gasweep.report import controls, sections
from gasweep.report.data import ReportData
from gasweep.report.layout_costs import layout_costs
from gasweep.report.markup import escape, json_script
from gasweep.report.noise import noise, noise_link
from gasweep.report.payload import build_payload
from gasweep.report.targets import shown_targets

MAX_BYTES = 1_450_000
"""Of the whole file; the table of runs is cut to it."""
STYLES = ("report.css", "bar.css", "tables.css", "controls.css", "chart.css")
SCRIPTS = (
    "base.js",
    "chart.js",
    "curves.js",
    "knee.js",
    "rates.js",
    "noise.js",
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
    """The report as HTML text, within `MAX_BYTES`; the same data gives the same text."""
    parts = _parts(data)
    template = _asset("page.html")
    room = MAX_BYTES - sum(len(text.encode()) for text in (template, *parts.values()))
    payload = json_script(build_payload(data, room_bytes=room))
    return Template(template).substitute(parts, payload=payload)


def _parts(data: ReportData) -> dict[str, str]:
    """Everything on the page but the numbers for the scripts."""
    targets = shown_targets(data)
    style = "\n".join(map(_asset, STYLES))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "})();"
    return {
        "policy": _policy(style=style, script=script),
        "title": escape(data.name),
        "style": style,
        "script": script,
        "subtitle": sections.subtitle(data),
        "collapse": sections.collapse(data.collapse),
        "picker": sections.picker(targets),
        "answer": sections.answer(data, targets),
        "curves": sections.curves(targets),
        "rates": sections.rates() if targets else "",
        "noise": noise(targets),
        "noise_link": noise_link(targets),
        "compose": controls.compose(),
        "cost": controls.cost(data.worker, sections.fronts(targets, worker=data.worker)) if targets else "",
        "layouts": layout_costs(data.layout_costs),
        "runs": sections.runs(data),
        "setup": sections.setup(data),
    }


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
