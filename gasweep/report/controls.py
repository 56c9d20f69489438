"""The report's interactive sections as HTML: native inputs with labels, which the scripts read and write."""

from __future__ import annotations

from collections.abc import Sequence

from gasweep.report.markup import Markup, join, tag
from gasweep.report.targets import ShownTarget

Targets = Sequence[ShownTarget]

MARKS = {
    "circle": "M8 7a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
    "square": "M8.5 2.5h9v9h-9Z",
    "diamond": "M13 .5l6.5 6.5-6.5 6.5-6.5-6.5Z",
    "triangle": "M13 1l6.5 11h-13Z",
    "line": "M1 7h24",
    "band": "M1 2h24v10h-24Z",
}
SERIES_MARKS = ("circle", "square", "diamond")


def section(name: str, title: str, *children: object) -> Markup:
    return tag("section", tag("h2", title), join(children), id=name)


def knee() -> Markup:
    """The slider over batch sizes; hidden by the scripts where nothing was fitted."""
    readout = [
        _reading("knee-steps", "optimizer steps"),
        _reading("knee-examples", "examples"),
        _reading("knee-time", "wall-clock"),
        _reading("knee-cost", "cost"),
    ]
    batch = tag(
        "div",
        tag("label", "B: effective batch size", for_="knee-batch"),
        tag("output", id="knee-b", for_="knee-batch"),
        tag("input", type="range", id="knee-batch", min="0", max="0", step="1", value="0"),
        class_="slider",
    )
    family = tag("label", "Time on", tag("select", id="knee-family"), class_="inline")
    body = tag(
        "div",
        tag("h3", "The knee: slide B along the fitted law"),
        tag("div", batch, family, class_="sliders"),
        tag("div", *readout, class_="readout"),
        id="knee",
    )
    missing = "There is no fitted law to slide along: the answer above says why."
    return join([body, tag("p", missing, id="knee-missing", class_="soft", hidden=True)])


def curve_legend(targets: Targets) -> Markup:
    """Every target's colour and mark, and what the other marks mean."""
    items = [
        _key(target.title, f"s{i % 7}", SERIES_MARKS[i % 3], filled=True, line=True)
        for i, target in enumerate(targets)
    ]
    seen = [observation for target in targets for observation in target.view.observations]
    items.append(_key("95 % band of the law (chosen target)", "muted", "band", filled=True))
    if any(o.flagged and o.steps.value is not None for o in seen):
        items.append(_key("flagged: see the note in the table", "muted", "circle"))
    if any(o.steps.value is None for o in seen):
        items.append(_key("target not reached: a lower bound", "muted", "triangle"))
    return tag("ul", *items, class_="legend")


def compose() -> Markup:
    sliders = [
        slider("compose-b", "b: micro-batch size, examples per pass"),
        slider("compose-n", "N: world size, data-parallel ranks"),
        slider("compose-g", "G: accumulation steps, passes per rank"),
    ]
    return section(
        "compose",
        "Compose the effective batch",
        tag(
            "p",
            "One optimizer step, taken apart. Steps to target depend on B alone, seconds on b, N and G.",
        ),
        tag("output", id="compose-equation", class_="equation", for_="compose-b compose-n compose-g"),
        tag("p", id="compose-meaning", class_="soft"),
        tag("div", *sliders, class_="sliders"),
        tag("div", tag("canvas", role="img"), id="stage", class_="stage"),
        tag("p", id="stage-text", class_="soft small", aria_hidden="true"),
        tag("p", id="same-batch-label", class_="small"),
        tag("div", id="same-batch", class_="chips"),
        memory(),
    )


def cost(worker: str, fronts: Sequence[Markup]) -> Markup:
    """`fronts`: the Pareto front of each target as a table."""
    body = tag(
        "div",
        tag("figure", tag("div", id="cost-chart", class_="chart")),
        _cost_legend(worker),
        tag(
            "div",
            _limit("deadline", "Cheapest within a deadline", "Deadline"),
            _limit("budget", "Fastest within a budget", "Budget", worker=worker),
            class_="pair gap",
        ),
        tag("h3", "The front", class_="gap"),
        *fronts,
        tag("p", id="cost-cut", class_="soft small", hidden=True),
        id="cost-body",
    )
    return section(
        "cost",
        "Time and cost to target",
        tag(
            "p",
            "Optimizer steps by the fitted law, times the measured seconds per step of each (b, N, G). "
            "Training only: evaluation and start-up are not counted.",
        ),
        body,
        tag(
            "p",
            "Needs steps to target and seconds per optimizer step; this target lacks one of them.",
            id="cost-missing",
            hidden=True,
        ),
    )


def slider(name: str, label: str) -> Markup:
    """A range over round values, and beside it a number input for any whole value."""
    return tag(
        "div",
        tag("label", label, for_=name),
        tag(
            "input", type="number", id=f"{name}-exact", min="1", step="1", aria_label=f"{label}, exact value"
        ),
        tag("input", type="range", id=name, min="0", step="1"),
        class_="slider",
    )


def memory() -> Markup:
    return tag(
        "div",
        tag("h3", "Memory of one rank"),
        tag("div", id="memory-track", class_="track"),
        tag("output", id="memory-text", class_="small", for_="compose-b"),
        tag(
            "p",
            "Peak memory follows b: passes come one after the other and each rank holds its own. "
            "(FSDP without a sync per pass also keeps unsharded gradients, whatever G is.)",
            class_="soft small",
        ),
        class_="memory",
    )


UNITS = (("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400))


def _limit(name: str, title: str, label: str, *, worker: str = "") -> Markup:
    """A number and its unit, and the best grid layout within it."""
    prefix = f"{worker}-" if worker else ""
    options = [tag("option", f"{prefix}{unit}", value=size) for unit, size in UNITS]
    inputs = tag(
        "div",
        tag("label", label, tag("input", type="number", id=name, min="0", step="any")),
        tag("select", *options, id=f"{name}-unit", aria_label=f"unit of the {name}"),
        class_="filters",
    )
    return tag(
        "div", tag("h3", title), inputs, tag("output", id=f"{name}-answer", for_=f"{name} {name}-unit")
    )


def _cost_legend(worker: str) -> Markup:
    items = [
        _key(f"on the Pareto front of wall-clock, {worker} time and examples", "s0", "circle", filled=True),
        _key("not told apart from the front", "s0", "circle"),
        _key("dominated", "muted", "square", filled=True),
    ]
    return tag("ul", *items, class_="legend")


def _reading(name: str, label: str) -> Markup:
    return tag(
        "div",
        tag("span", label, class_="label"),
        tag("output", id=name, for_="knee-batch knee-family"),
        tag("span", id=f"{name}-note", class_="label"),
    )


def _key(label: str, series: str, mark: str, *, filled: bool = False, line: bool = False) -> Markup:
    """A legend entry: the mark as the charts draw it."""
    shapes = [tag("path", d=MARKS["line"], class_=f"line {series}")] if line else []
    shapes.append(tag("path", d=MARKS[mark], class_=f"mark {series}" if filled else f"mark open {series}"))
    if mark == "band":
        shapes = [tag("path", d=MARKS[mark], class_=f"band {series}")]
    return tag("li", tag("svg", *shapes, viewBox="0 0 26 14", aria_hidden="true"), label)
