"""The report's sections as HTML: what can be read without scripts, and the places that scripts fill."""

from __future__ import annotations

from gasweep.report import numbers
from gasweep.report.controls import Targets, curve_legend, knee, section
from gasweep.report.data import Collapse, ReportData
from gasweep.report.markup import Markup, escape, join, table, tag
from gasweep.report.payload import MAX_RUN_ROWS
from gasweep.report.study_view import TargetView
from gasweep.report.tables import STEPS_HEADER, steps_row

FACTS = (
    ("min_steps", "S_min", "optimizer steps of an infinitely large batch"),
    ("min_examples", "E_min", "examples of an infinitely small batch"),
    (
        "critical_batch_size_20pct",
        "B at 20 % overhead",
        "steps are 1.2 × perfect scaling from the smallest batch",
    ),
    ("noise_scale", "Noise scale", "tr Σ / |G|², from gradients alone"),
)


def subtitle(data: ReportData) -> Markup:
    devices = dict.fromkeys(env["device"] for env in data.environments if "device" in env)
    parts = [data.task, ", ".join(devices), data.created_at]
    return escape(" · ".join(filter(None, parts)))


def collapse(found: Collapse | None) -> Markup:
    if found is None:
        return Markup("")
    infeasible = f" {found.num_infeasible} grid points are infeasible here." if found.num_infeasible else ""
    runs = f"{found.num_runs:,} convergence runs and {found.num_probes:,} throughput probes"
    return tag(
        "p",
        f"{found.num_points:,} grid points (b, N, G, learning rate, seed) answered by {runs}.{infeasible}",
    )


def picker(targets: Targets) -> Markup:
    """The choice of target that every section follows; nothing to choose where there is one."""
    if len(targets) < 2:
        return Markup("")
    options = [tag("option", title, value=i) for i, (title, _) in enumerate(targets)]
    return tag("label", "Target", tag("select", *options, id="target"), class_="picker")


def answer(data: ReportData, targets: Targets) -> Markup:
    notes = tag("ul", *(tag("li", note) for note in data.notes), class_="flags") if data.notes else ""
    panels = [_panel(_answer_panel(title, view), i) for i, (title, view) in enumerate(targets)]
    empty = "" if targets else tag("p", "No target was evaluated in this sweep.")
    return section("answer", "Critical batch size", empty, *panels, notes)


def curves(targets: Targets) -> Markup:
    if not targets:
        return Markup("")
    charts = [tag("figure", tag("div", id=f"{kind}-chart", class_="chart")) for kind in ("steps", "examples")]
    tables = [
        _panel(table(STEPS_HEADER, map(steps_row, view.observations), text_columns=(6,)), i)
        for i, (_, view) in enumerate(targets)
    ]
    return section(
        "curves",
        "Steps and examples to target",
        tag(
            "p",
            "Small batches cost steps, large ones cost examples; at the critical batch size both double.",
        ),
        tag("div", *charts, class_="pair"),
        curve_legend(targets),
        knee(),
        tag("h3", "Measured, at the best learning rate of each batch size", class_="gap"),
        *tables,
    )


def rates() -> Markup:
    body = tag(
        "div",
        tag("figure", tag("div", id="rates-chart", class_="chart")),
        tag("ul", id="rates-legend", class_="legend"),
        id="rates-body",
    )
    return section(
        "rates",
        "Learning rates",
        tag(
            "p",
            "One rate is chosen for each batch size, over all seeds (ringed). Open triangle: a lower bound, "
            "since some seed missed the target. Cross on the upper edge: some seed diverged.",
        ),
        body,
        tag("p", "No learning rates were recorded for this target.", id="rates-missing", hidden=True),
    )


def runs(data: ReportData) -> Markup:
    if not data.runs:
        return section("runs", "Runs", tag("p", "No run was recorded."))
    left_out = len(data.runs) - MAX_RUN_ROWS
    cut = (
        f"The first {MAX_RUN_ROWS:,} of {len(data.runs):,} runs; gasweep export has all."
        if left_out > 0
        else ""
    )
    filters = tag(
        "div",
        tag("label", "Search", tag("input", type="search", id="runs-search")),
        tag("label", "State", tag("select", tag("option", "all", value=""), id="runs-state")),
        tag("output", id="runs-count", class_="soft", for_="runs-search runs-state"),
        class_="filters",
    )
    made = tag("table", tag("thead", tag("tr")), tag("tbody"), id="runs-table")
    box = tag("div", made, class_="scroll tall", tabindex="0", role="region", aria_label="table of runs")
    return section("runs", "Runs", tag("p", cut, class_="soft") if cut else "", filters, box)


def setup(data: ReportData) -> Markup:
    names = list(dict.fromkeys(name for environment in data.environments for name in environment))
    machines = [[environment.get(name, "") for name in names] for environment in data.environments]
    columns = tuple(range(len(names)))
    return section(
        "setup",
        "Setup",
        tag("h3", "Where it ran"),
        table(names, machines, text_columns=columns) if machines else tag("p", "Not recorded."),
        tag("h3", "Resolved config", class_="gap"),
        tag("pre", data.config_yaml, tabindex="0") if data.config_yaml else tag("p", "Not recorded."),
    )


def _panel(content: Markup, index: int) -> Markup:
    return tag("div", content, data_target=index)


def _answer_panel(title: str, view: TargetView) -> Markup:
    headline = tag(
        "div",
        tag("span", title, class_="label"),
        tag("span", _headline(view), class_="value"),
        tag("span", _headline_note(view), class_="label"),
        class_="headline",
    )
    facts = [
        tag(
            "div",
            tag("dt", label),
            tag("dd", numbers.estimate(getattr(view, name)), class_="value"),
            tag("dd", text, class_="label"),
        )
        for name, label, text in FACTS
        if name != "noise_scale" or view.noise_scale.value is not None or view.noise_scale.low is not None
    ]
    flags = tag("ul", *(tag("li", flag) for flag in view.flags), class_="flags") if view.flags else ""
    return join([tag("div", headline, tag("dl", *facts, class_="facts"), class_="answer"), flags])


def _headline(view: TargetView) -> str:
    critical = view.critical_batch_size
    if critical.value is not None:
        return numbers.number(critical.value)
    if critical.low is not None and critical.high is None:
        return f"≥ {numbers.number(critical.low)}"
    if critical.high is not None and critical.low is None:
        return f"≤ {numbers.number(critical.high)}"
    return "not known"


def _headline_note(view: TargetView) -> str:
    critical = view.critical_batch_size
    if critical.value is None:
        return critical.reason or ""
    low, high = ("?" if side is None else numbers.number(side) for side in (critical.low, critical.high))
    return f"examples per optimizer step; 95 % interval {low} to {high}"
