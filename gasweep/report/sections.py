"""The report's sections as HTML: what can be read without scripts, and the places that scripts fill."""

from __future__ import annotations

from gasweep.analysis.cost import SECONDS_PER_HOUR
from gasweep.analysis.cost_interpolation import StepTimeTable
from gasweep.analysis.cost_law import scale
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.pareto import pareto_front
from gasweep.report import numbers
from gasweep.report.controls import Targets, curve_legend, knee, section
from gasweep.report.data import Collapse, Layout, ReportData
from gasweep.report.markup import Markup, escape, join, table, tag
from gasweep.report.payload import MAX_RUN_ROWS, target_costs
from gasweep.report.study_view import TargetView
from gasweep.report.tables import STEPS_HEADER, steps_row

FACTS = (
    ("min_steps", "S_min", "optimizer steps of an infinitely large batch"),
    ("min_examples", "E_min", "examples of an infinitely small batch"),
    (
        "critical_batch_size_20pct",
        "B at 20 % overhead",
        "steps are 1.2 × perfect scaling",
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
    panels = [panel(_answer_panel(title, view), i) for i, (title, view) in enumerate(targets)]
    empty = "" if targets else tag("p", "No target was evaluated in this sweep.")
    overview = _all_targets(targets) if len(targets) > 1 else ""
    return section("answer", "Critical batch size", empty, *panels, overview, notes)


def curves(targets: Targets) -> Markup:
    if not targets:
        return Markup("")
    charts = [tag("figure", tag("div", id=f"{kind}-chart", class_="chart")) for kind in ("steps", "examples")]
    tables = [
        panel(table(STEPS_HEADER, map(steps_row, view.observations), text_columns=(6,)), i)
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
        _fact(label, getattr(view, name), text)
        for name, label, text in FACTS
        if name != "noise_scale" or getattr(view, name).reason != "not measured"
    ]
    flags = tag("ul", *(tag("li", flag) for flag in view.flags), class_="flags") if view.flags else ""
    return join([tag("div", headline, tag("dl", *facts, class_="facts"), class_="answer"), flags])


def _fact(label: str, value: Estimate, text: str) -> Markup:
    return tag(
        "div",
        tag("dt", label),
        tag("dd", numbers.headline(value), class_="value"),
        tag("dd", numbers.interval(value), class_="interval"),
        tag("dd", text, class_="label"),
    )


def _all_targets(targets: Targets) -> Markup:
    """Every target side by side: the critical batch size grows as the loss falls."""
    head = ("target", "B_crit", "S_min", "E_min")
    rows = [
        [title, *(numbers.estimate(e) for e in (view.critical_batch_size, view.min_steps, view.min_examples))]
        for title, view in targets
    ]
    return join(
        [tag("h3", "All targets, with 95 % intervals", class_="gap"), table(head, rows, text_columns=(0,))]
    )


def front_table(
    view: TargetView, layouts: tuple[Layout, ...], step_times: StepTimeTable, *, worker: str
) -> Markup:
    """The Pareto front of one target, fastest first; empty where nothing could be joined."""
    head = (
        "b × N × G",
        "B",
        "optimizer steps",
        "per step",
        "wall-clock",
        f"{worker} time",
        "examples",
    )
    rows = [
        [
            f"{c.point.micro_batch_size} × {c.point.world_size} × {c.point.accumulation_steps}",
            numbers.number(c.point.effective_batch_size),
            numbers.estimate(c.optimizer_steps),
            numbers.estimate(c.seconds_per_optimizer_step, numbers.duration),
            numbers.estimate(c.wall_clock_s, numbers.duration),
            numbers.estimate(scale(c.gpu_hours, SECONDS_PER_HOUR), numbers.duration),
            numbers.estimate(c.examples),
        ]
        for c in pareto_front(target_costs(view, layouts, step_times))
    ]
    return table(head, rows, text_columns=(0,)) if rows else Markup("")
