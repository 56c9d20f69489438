"""The report's sections as HTML: what can be read without scripts, and the places that scripts fill."""

from __future__ import annotations

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.pareto import pareto_front
from gasweep.report import numbers
from gasweep.report.controls import Targets, curve_legend, knee, section
from gasweep.report.cost_tables import FRONT_HEADER, front_row
from gasweep.report.costs import target_costs
from gasweep.report.data import Collapse, ReportData
from gasweep.report.markup import Markup, escape, join, stacked, table, tag
from gasweep.report.study_view import TargetView
from gasweep.report.tables import STEPS_HEADER, steps_row
from gasweep.report.targets import MAX_TARGETS, every_target

MAX_FRONT_ROWS = 20
FACTS = (
    ("min_steps", "S_min", "optimizer steps of an infinitely large batch"),
    ("min_examples", "E_min", "examples of an infinitely small batch"),
    (
        "critical_batch_size_20pct",
        "B at 20 % overhead",
        "steps are 1.2 × perfect scaling",
    ),
    ("noise_scale", "Noise scale", "tr Σ / |G|², from gradients alone"),
    ("noise_scale_ratio", "Noise scale / B_crit", "two quantities: neither stands for the other"),
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
    options = [tag("option", target.title, value=i) for i, target in enumerate(targets)]
    return tag("label", "Target", tag("select", *options, id="target"), class_="picker")


def answer(data: ReportData, targets: Targets) -> Markup:
    left_out = len(every_target(data)) - len(targets)
    cut = [f"Only the first {MAX_TARGETS} targets are shown; {left_out} are left out."] if left_out else []
    lines = [tag("li", note) for note in (*data.notes, *cut)]
    notes = tag("ul", *lines, class_="flags") if lines else ""
    panels = [panel(_answer_panel(target.title, target.view), i) for i, target in enumerate(targets)]
    empty = "" if targets else tag("p", "No target was evaluated in this sweep.")
    overview = _all_targets(targets) if len(targets) > 1 else ""
    return section("answer", "Critical batch size", empty, *panels, overview, notes)


def curves(targets: Targets) -> Markup:
    if not targets:
        return Markup("")
    charts = [tag("figure", tag("div", id=f"{kind}-chart", class_="chart")) for kind in ("steps", "examples")]
    tables = [
        panel(table(STEPS_HEADER, map(steps_row, target.view.observations), wide_columns=(6,)), i)
        for i, target in enumerate(targets)
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
    filters = tag(
        "div",
        tag("label", "Search", tag("input", type="search", id="runs-search")),
        tag("label", "State", tag("select", tag("option", "all", value=""), id="runs-state")),
        tag("output", id="runs-count", class_="soft", for_="runs-search runs-state"),
        class_="filters",
    )
    made = tag("table", tag("thead", tag("tr")), tag("tbody"), id="runs-table")
    box = tag("div", made, class_="scroll tall", tabindex="0", role="region", aria_label="table of runs")
    every = tag("button", "Show all rows", type="button", id="runs-all", class_="chip", hidden=True)
    return section("runs", "Runs", filters, box, tag("div", every, class_="chips"))


def setup(data: ReportData) -> Markup:
    names = list(dict.fromkeys(name for environment in data.environments for name in environment))
    shown = data.environments[:MOST_MACHINES]
    machines = [[environment.get(name, "") for name in names] for environment in shown]
    rest = len(data.environments) - len(shown)
    columns = tuple(range(len(names)))
    return section(
        "setup",
        "Setup",
        tag("h3", "Where it ran"),
        table(names, machines, text_columns=columns) if machines else tag("p", "Not recorded."),
        tag("p", f"And {rest:,} more; gasweep export names the host of every run.") if rest else "",
        tag("h3", "Resolved config", class_="gap"),
        tag("pre", data.config_yaml, tabindex="0") if data.config_yaml else tag("p", "Not recorded."),
    )


MOST_MACHINES = 40
"""Of a sweep over thousands of short-lived hosts: the page must stay small enough to send."""


def panel(content: Markup, index: int) -> Markup:
    return tag("div", content, data_target=index)


def _answer_panel(title: str, view: TargetView) -> Markup:
    critical = view.critical_batch_size
    note = "" if critical.value is None else "examples per optimizer step; "
    headline = tag(
        "div",
        tag("span", title, class_="label"),
        tag("span", numbers.headline(critical), class_="value"),
        tag("span", note, numbers.interval(critical), class_="label"),
        class_="headline",
    )
    facts = [
        _fact(label, getattr(view, name), _text(view, name, text), said=critical.reason)
        for name, label, text in FACTS
        if view.has_noise_scale or not name.startswith("noise_scale")
    ]
    flags = tag("ul", *(tag("li", flag) for flag in view.flags), class_="flags") if view.flags else ""
    return join([tag("div", headline, tag("dl", *facts, class_="facts"), class_="answer"), flags])


def _text(view: TargetView, name: str, text: str) -> str:
    return f"{text}; {view.noise_source}" if name == "noise_scale" and view.noise_source else text


def _fact(label: str, value: Estimate, text: str, *, said: str | None) -> Markup:
    """`said`: the reason that stands beside B_crit already."""
    repeats = value.value is None and value.reason == said
    return tag(
        "div",
        tag("dt", label),
        tag("dd", numbers.headline(value), class_="value"),
        tag("dd", "" if repeats else numbers.interval(value), class_="interval"),
        tag("dd", text, class_="label"),
    )


def _all_targets(targets: Targets) -> Markup:
    """Every target side by side: the critical batch size grows as the loss falls."""
    head = ("target", "B_crit", "S_min", "E_min")
    rows = [[target.title, *stacked(map(numbers.estimate, _three(target.view)))] for target in targets]
    return join(
        [tag("h3", "All targets, with 95 % intervals", class_="gap"), table(head, rows, text_columns=(0,))]
    )


def _three(view: TargetView) -> tuple[Estimate, Estimate, Estimate]:
    return view.critical_batch_size, view.min_steps, view.min_examples


def fronts(targets: Targets, *, worker: str) -> list[Markup]:
    """The Pareto front of each target, fastest first; empty where nothing could be joined."""
    head = [name.replace("worker", worker) for name in FRONT_HEADER]
    tables = []
    for target in targets:
        front = pareto_front(target_costs(target.view, target.section.layouts))
        rows = [stacked(front_row(cost)) for cost in front[:MAX_FRONT_ROWS]]
        made = table(head, rows, text_columns=(0, 7)) if rows else ""
        left_out = len(front) - MAX_FRONT_ROWS
        cut = tag("p", f"{left_out} slower points of the front are not listed.") if left_out > 0 else ""
        tables.append(join([made, cut]))
    return [panel(made, index) for index, made in enumerate(tables)]
