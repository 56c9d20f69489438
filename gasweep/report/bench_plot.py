"""PNG and SVG plot of what a bench measured. Importing this imports no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasweep.report import numbers
from gasweep.report.figures import COLOURS, plain_text, saved_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE_NAME = "bench.png"
MAX_ROWS = 60
LEAST_ROWS = 3
"""The least height of the axes, in rows, so that the two marks of a lone row stay together."""
MAX_LABEL = 48
LOG_FROM = 10.0
"""Values further apart than this factor are drawn on a log axis, others on one that starts at 0."""
REACH = 2.0
"""How far intervals may widen an axis beyond the means, as a factor: one wild interval hides no other row."""
LEAST_SAVED = -1.0
"""How far intervals may widen the axis of shares saved downwards: a step twice as long."""
GREY = "#666666"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layout's place on the shared axis. group: counts the runs of rows that differ in G alone."""

    y: int
    group: int
    label: str
    point: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """offset: from the middle of a row, in rows, so that the two marks of a row never cover each other."""

    colour: str
    marker: str
    offset: float
    label: str


OWN = Mark(colour=COLOURS[0], marker="o", offset=-0.17, label="no_sync")
TWIN = Mark(colour=COLOURS[1], marker="D", offset=0.17, label="sync on every micro-step")
BYTES_SAVED = Mark(colour=COLOURS[2], marker="s", offset=-0.17, label="bytes saved")
SECONDS_SAVED = Mark(colour=COLOURS[6], marker="o", offset=0.17, label="seconds saved")


def plot_bench(points: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """What an optimizer step costs in each layout: bytes, milliseconds, and the share that `no_sync` saves.

    points: the JSON points of `gasweep bench` (`BenchPoint.to_dict`).
    path: where the PNG goes; an SVG of the same name is written beside it. Returns the PNG's path.

    A row per layout; one rank sends nothing and has "0 B" in place of a mark. An interval that leaves its
    axis ends in an arrow; a mean without an interval is an open mark.
    """
    rows = bench_rows(points)
    width = 11.5 + 0.085 * max((len(row.label) for row in rows), default=0)
    with saved_figure(path, width=width, height=max(2.0 + 0.27 * len(rows), 3.2)) as figure:
        draw_bench(figure, points)
    return path


def draw_bench(figure: Figure, points: Sequence[Mapping[str, Any]]) -> None:
    """The same on a matplotlib figure of one's own."""
    rows = bench_rows(points)
    byte_axis, time_axis, saved_axis = figure.subplots(1, 3, sharey=True)
    _draw_bytes(byte_axis, rows)
    _draw_seconds(time_axis, rows)
    _draw_saved(saved_axis, rows)
    for axis in (byte_axis, time_axis, saved_axis):
        _finish_axis(axis, rows)
    byte_axis.set_yticks([row.y for row in rows], [row.label for row in rows])
    byte_axis.set_ylabel("layout b×N×G")
    byte_axis.set_ylim(max(len(rows), LEAST_ROWS) - 0.5, -0.5)
    if rows:
        _legend(figure)
    title = "What an optimizer step costs" if rows else "No layout was measured"
    left_out = f"\nthe first {len(rows)} of {len(points)} layouts" if len(points) > len(rows) else ""
    figure.suptitle(title + left_out, fontsize=11)


def bench_rows(points: Sequence[Mapping[str, Any]]) -> list[Row]:
    """At most `MAX_ROWS`, ordered by setting (as first met), b, N, G.

    Labels name the strategy and those axes that differ between points.
    """
    settings = _settings(points)
    order = list(dict.fromkeys(settings))

    def place(index: int) -> tuple[int, int, int]:
        point = points[index]
        return order.index(settings[index]), point["micro_batch_size"], point["world_size"]

    ordered = sorted(range(len(points)), key=lambda i: (*place(i), points[i]["accumulation_steps"]))[
        :MAX_ROWS
    ]
    groups = list(dict.fromkeys(map(place, ordered)))
    return [
        Row(y=y, group=groups.index(place(i)), label=_label(points[i], settings[i]), point=points[i])
        for y, i in enumerate(ordered)
    ]


def _settings(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells each point from others of its layout, in words; empty where that is nothing."""
    every = [_strategy(point) | point["axes"] for point in points]
    texts: dict[str, set[str]] = {}
    for one in every:
        for name, value in one.items():
            texts.setdefault(name, set()).add(str(value))
    names = [name for name in texts if len(texts[name]) > 1]
    lasts = [name.rpartition(".")[2] for name in names]
    short = {n: last if lasts.count(last) == 1 else n for n, last in zip(names, lasts, strict=True)}
    return [" ".join(_words(short[name], one[name]) for name in names if name in one) for one in every]


def _strategy(point: Mapping[str, Any]) -> dict[str, Any]:
    """One rank has none to speak of, whatever the others use."""
    return {"strategy": point["strategy"]} if point["world_size"] > 1 else {}


def _words(name: str, value: Any) -> str:
    return str(value) if name == "strategy" else f"{name}={value}"


def _label(point: Mapping[str, Any], setting: str) -> str:
    layout = f"{point['micro_batch_size']}×{point['world_size']}×{point['accumulation_steps']}"
    if len(setting) > MAX_LABEL:
        setting = f"{setting[: MAX_LABEL - 1]}…"
    return plain_text(f"{setting}  {layout}" if setting else layout)


def _draw_bytes(axis: Any, rows: Sequence[Row]) -> None:
    keys = {OWN: "bytes_per_optimizer_step", TWIN: "bytes_per_optimizer_step_unsaved"}
    _quantity_axis(axis, _values(rows, keys.values()), ())
    for mark, key in keys.items():
        _draw_marks(axis, [row for row in rows if row.point[key]], key, mark)
    for row in rows:
        if row.point["bytes_per_optimizer_step"] == 0:
            where = {"transform": axis.get_yaxis_transform(), "ha": "left", "va": "center"}
            axis.text(0.012, row.y, "0 B", color=GREY, fontsize=8, **where)
    axis.set_xlabel("sent by one rank per optimizer step")
    axis.xaxis.set_major_formatter(lambda value, _: numbers.size(value))


def _draw_seconds(axis: Any, rows: Sequence[Row]) -> None:
    key, twin = "seconds_per_optimizer_step", "seconds_per_optimizer_step_unsaved"
    bounds = _values(rows, (f"{key}_low", f"{key}_high"))
    _quantity_axis(axis, _values(rows, (key, twin)), bounds)
    _draw_marks(axis, rows, twin, TWIN)
    _draw_bounded(axis, rows, key, OWN)
    axis.set_xlabel("milliseconds per optimizer step (mean)")
    axis.xaxis.set_major_formatter(lambda value, _: numbers.number(value * 1e3))


def _draw_saved(axis: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    key, of_bytes = "seconds_saved_fraction", "bytes_saved_fraction"
    shares = _values(rows, (key, of_bytes))
    lowest = max(min(_values(rows, (f"{key}_low",)), default=0.0), LEAST_SAVED)
    axis.set_xlim(min([-0.05, lowest - 0.05, *(share - 0.05 for share in shares)]), 1.0)
    axis.axvline(0.0, color=GREY, linewidth=0.9, zorder=1)
    if rows and not shares:
        axis.text(0.5, 0.5, "no sync to skip", transform=axis.transAxes, ha="center", color=GREY)
    _draw_marks(axis, rows, of_bytes, BYTES_SAVED)
    _draw_bounded(axis, rows, key, SECONDS_SAVED)
    axis.set_xlabel("saved of a sync on every micro-step")
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0, symbol=" %"))


def _values(rows: Sequence[Row], keys: Iterable[str]) -> list[float]:
    found = [row.point[key] for key in keys for row in rows]
    return [value for value in found if value is not None and math.isfinite(value)]


def _quantity_axis(axis: Any, values: Sequence[float], bounds: Sequence[float]) -> None:
    """From 0, or on a log scale that spans what is above 0; without such values an axis without ticks."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    positive = [value for value in values if value > 0]
    if not positive:
        axis.set(xlim=(0.0, 1.0), xticks=[])
        return
    lower, upper = min(positive), max(positive)
    low = max(min([lower, *bounds]), lower / REACH)
    high = min(max([upper, *bounds]), upper * REACH)
    if high <= LOG_FROM * low:
        axis.set_xlim(0.0, high * 1.08)
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        return
    axis.set_xscale("log")
    axis.set_xlim(low / 1.35, high * 1.35)
    subs = (1.0, 2.0, 5.0) if high < 30 * low else (1.0, 3.0) if high < 1000 * low else (1.0,)
    axis.xaxis.set_major_locator(LogLocator(subs=subs))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _draw_marks(axis: Any, rows: Sequence[Row], key: str, mark: Mark, *, is_open: bool = False) -> None:
    """Means alone; rows that lack one stay empty."""
    known = [(row.point[key], row.y + mark.offset) for row in rows if row.point[key] is not None]
    if known:
        xs, ys = zip(*known, strict=True)
        axis.plot(xs, ys, **_style(mark, is_open=is_open), label=mark.label, zorder=4)


def _style(mark: Mark, *, is_open: bool) -> dict[str, Any]:
    face = "white" if is_open else mark.colour
    edge = {"markeredgecolor": mark.colour, "markeredgewidth": 1.2}
    return {"linestyle": "", "marker": mark.marker, "markersize": 4.5, "markerfacecolor": face, **edge}


def _draw_bounded(axis: Any, rows: Sequence[Row], key: str, mark: Mark) -> None:
    """Means with their 95 % intervals (`key`_low, `key`_high), on an axis whose limits are set."""
    for is_open in (False, True):
        _draw_marks(
            axis, [row for row in rows if _lacks_bound(row, key) is is_open], key, mark, is_open=is_open
        )
    for row in rows:
        if row.point[key] is not None:
            _draw_interval(axis, row, key, mark)


def _lacks_bound(row: Row, key: str) -> bool:
    return None in (row.point[f"{key}_low"], row.point[f"{key}_high"])


def _draw_interval(axis: Any, row: Row, key: str, mark: Mark) -> None:
    """The side that is known where one is missing; arrows where it goes beyond the axis."""
    left, right = axis.get_xlim()
    value, y = row.point[key], row.y + mark.offset
    low, high = (row.point[f"{key}_{side}"] for side in ("low", "high"))
    low, high = (value if low is None else low), (value if high is None else high)
    if low < high:
        axis.hlines(y, max(low, left), min(high, right), color=mark.colour, linewidth=1.3, zorder=3)
    for beyond, edge, arrow in ((low < left, left, "<"), (high > right, right, ">")):
        if beyond:
            axis.plot(edge, y, arrow, color=mark.colour, markersize=5, clip_on=False, zorder=4)


def _finish_axis(axis: Any, rows: Sequence[Row]) -> None:
    """Every other (b, N) has a shade."""
    for row in rows:
        if row.group % 2:
            axis.axhspan(row.y - 0.5, row.y + 0.5, color="#f1f1f1", linewidth=0, zorder=0)
    axis.grid(visible=True, which="major", axis="x", color="#dddddd", linewidth=0.6)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _legend(figure: Figure) -> None:
    """Handles drawn off-axis: only the marks that occur are explained."""
    from matplotlib.lines import Line2D

    lines = [line for axis in figure.axes for line in axis.lines]
    labels = {line.get_label() for line in lines}
    marks = [mark for mark in (OWN, TWIN, BYTES_SAVED, SECONDS_SAVED) if mark.label in labels]
    handles = [Line2D([], [], **_style(mark, is_open=False), label=mark.label) for mark in marks]
    if any(axis.collections for axis in figure.axes):
        beyond = " (arrow: beyond the axis)" if any(line.get_marker() in ("<", ">") for line in lines) else ""
        handles.append(Line2D([], [], color=GREY, linewidth=1.3, label=f"95 % interval{beyond}"))
    if any(line.get_markerfacecolor() == "white" for line in lines):
        bare = Mark(colour=GREY, marker="o", offset=0.0, label="too few steps for an interval")
        handles.append(Line2D([], [], **_style(bare, is_open=True), label=bare.label))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
