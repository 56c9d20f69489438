"""PNG and SVG plots of what `gasweep fit` found. Importing this imports no matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gasweep.analysis.estimate import Estimate
from gasweep.report import numbers
from gasweep.report.figures import COLOURS, plain_text, saved_figure
from gasweep.report.study_view import ObservationView, RateView, TargetView, read_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AROUND = 1.8
"""How far the batch axis reaches beyond the measured batch sizes, as a factor."""
MIN_Y_FACTOR = 2.0
"""The least range of a steps axis, so that nothing flat looks steep."""
MARKERS = ("o", "s", "D", "v", "P", "X", "h")


def plot_critical_batch_size(study: dict[str, Any], path: Path, *, unit: str = "examples") -> Path:
    """Both curves of McCandlish et al. 2018 (optimizer steps and examples against B), with what was measured.

    study: the JSON object of `gasweep fit`. Every target is drawn, in its own colour and marker.
    unit: what batch sizes count, "examples" or "tokens".
    path: where the PNG goes; an SVG of the same name is written beside it. Returns the PNG's path.

    Measured points carry their seeds; a run that did not reach the target is an open triangle at the last
    step seen; a point whose learning rate is at the edge of its grid, or that the fit left out, is open.
    Drawn whatever could be resolved: without a fitted law there are points alone, without points a note.
    """
    with saved_figure(path, width=11.0, height=5.2) as figure:
        draw_critical_batch_size(figure, study, unit=unit)
    return path


def draw_critical_batch_size(figure: Figure, study: dict[str, Any], *, unit: str = "examples") -> None:
    """The same on a matplotlib figure of one's own."""
    targets = read_study(study)
    steps_axis, examples_axis = figure.subplots(1, 2)
    for axis, in_examples in ((steps_axis, False), (examples_axis, True)):
        for index, view in enumerate(targets):
            _draw_target(axis, view, index, in_examples=in_examples)
        _finish_axis(axis, targets, f"{unit if in_examples else 'optimizer steps'} to target", unit=unit)
    _legend(figure, targets)


def plot_learning_rates(study: dict[str, Any], path: Path) -> Path:
    """Steps to target against learning rate, one curve per effective batch size, one row per target."""
    with saved_figure(path, width=8.0, height=1.2 + 3.8 * max(len(study["targets"]), 1)) as figure:
        draw_learning_rates(figure, study)
    return path


def draw_learning_rates(figure: Figure, study: dict[str, Any]) -> None:
    """The same on a matplotlib figure of one's own."""
    targets = read_study(study)
    axes = figure.subplots(max(len(targets), 1), 1, squeeze=False)[:, 0]
    for axis, view in zip(axes, targets, strict=False):
        _draw_learning_rates(axis, view)


def _draw_target(axis: Any, view: TargetView, index: int, *, in_examples: bool) -> None:
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    _draw_law(axis, view, colour, in_examples=in_examples)
    _draw_critical(axis, view, colour)
    for observation in view.observations:
        _draw_observation(axis, observation, colour, marker, in_examples=in_examples)


def _draw_law(axis: Any, view: TargetView, colour: str, *, in_examples: bool) -> None:
    batches = [observation.effective_batch_size for observation in view.observations]
    if view.law is None or not batches:
        return
    low, high = view.law.range
    grid = np.geomspace(max(min(batches) / AROUND, low), min(max(batches) * AROUND, high), 160)[1:-1]
    law = [view.law.examples(b) if in_examples else view.law.steps(b) for b in grid]
    drawn = [(b, e.value) for b, e in zip(grid, law, strict=True) if e.value]
    axis.plot(*_columns(drawn), color=colour, linewidth=1.6, zorder=3)
    inside = [(b, e.low, e.high) for b, e in zip(grid, law, strict=True) if e.low and e.high]
    if inside:
        axis.fill_between(*zip(*inside, strict=True), color=colour, alpha=0.16, linewidth=0, zorder=1)


def _draw_critical(axis: Any, view: TargetView, colour: str) -> None:
    """B_crit and its interval; a bound alone is dotted with an arrow, at the axis' end if it lies beyond."""
    critical = view.critical_batch_size
    if critical.low is not None and critical.high is not None:
        axis.axvspan(critical.low, critical.high, color=colour, alpha=0.07, linewidth=0, zorder=0)
    if critical.value is not None:
        axis.axvline(critical.value, color=colour, linestyle=(0, (5, 3)), linewidth=1.1, zorder=2)
        return
    if (critical.low is None) == (critical.high is None) or not view.observations:
        return
    bound = critical.low or critical.high or 1.0
    batches = [o.effective_batch_size for o in view.observations]
    place = min(max(bound, min(batches) / AROUND), max(batches) * AROUND)
    axis.axvline(place, color=colour, linestyle=":", linewidth=1.4, zorder=2)
    text = (
        f"$B_{{crit}}$ ≥ {numbers.number(bound)} →"
        if critical.low is not None
        else f"← $B_{{crit}}$ ≤ {numbers.number(bound)}"
    )
    left = place > (min(batches) * max(batches)) ** 0.5
    offset = (-4, 4) if left else (4, 4)
    axis.annotate(
        text,
        (place, 0),
        xycoords=("data", "axes fraction"),
        xytext=offset,
        textcoords="offset points",
        color=colour,
        ha="right" if left else "left",
    )


def _draw_observation(
    axis: Any, observation: ObservationView, colour: str, marker: str, *, in_examples: bool
) -> None:
    batch, steps = observation.effective_batch_size, observation.steps
    unit = batch if in_examples else 1.0
    for seed in observation.seeds:
        if seed.steps is not None:
            dot = "x" if seed.outlier else "."
            axis.plot(batch, seed.steps * unit, dot, color=colour, alpha=0.4, markersize=4, zorder=3)
    if steps.value is None:
        if observation.at_least is not None:
            axis.plot(batch, observation.at_least * unit, "^", **_open(colour), markersize=8, zorder=5)
        return
    if observation.spread is not None:
        axis.vlines(batch, *(s * unit for s in observation.spread), color=colour, linewidth=1.1, zorder=4)
    style = _open(colour) if observation.flagged else {"color": colour}
    axis.plot(batch, steps.value * unit, marker, **style, markersize=6, zorder=5)


def _open(colour: str) -> dict[str, Any]:
    return {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.4}


def _finish_axis(axis: Any, targets: list[TargetView], ylabel: str, *, unit: str) -> None:
    axis.set_xscale("log", base=2)
    batches = [o.effective_batch_size for view in targets for o in view.observations]
    if batches:
        axis.set_xlim(min(batches) / AROUND, max(batches) * AROUND)
    axis.xaxis.set_major_formatter("{x:.0f}")
    _log_steps(axis)
    axis.set_xlabel(f"effective batch size B ({unit} per optimizer step)")
    axis.set_ylabel(ylabel)
    axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if not any(view.observations for view in targets):
        axis.text(0.5, 0.5, "no observation yet", transform=axis.transAxes, ha="center", color="#666666")


def _has_positive_data(axis: Any) -> bool:
    """Whether anything drawn has a place on a log y axis; a sweep may have no positive step to show."""
    return bool(axis.dataLim.minposy < math.inf and axis.dataLim.y1 > 0)


def _log_steps(axis: Any) -> None:
    """A log y axis in plain numbers, labelled more densely where it spans less than a decade."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    if not _has_positive_data(axis):
        axis.set_ylim(1.0, 10.0)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high < MIN_Y_FACTOR * low:
        centre = (low * high) ** 0.5
        low, high = centre / MIN_Y_FACTOR**0.5, centre * MIN_Y_FACTOR**0.5
        axis.set_ylim(low, high)
    subs = (1.0, 2.0, 5.0) if high > 6 * low else tuple(map(float, range(1, 10)))
    axis.yaxis.set_major_locator(LogLocator(subs=subs))
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _critical_text(critical: Estimate) -> str:
    joint = " = " if critical.value is not None else ": " if critical.low == critical.high else " "
    return plain_text(f"{joint}{numbers.estimate(critical)}")


def _legend(figure: Figure, targets: list[TargetView]) -> None:
    """Handles drawn off-axis: only the marks that occur are explained."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for index, view in enumerate(targets):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        label = f"{plain_text(view.target)}:  $B_{{crit}}${_critical_text(view.critical_batch_size)}"
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5, label=label))
    seen = [o for view in targets for o in view.observations]
    grey = "#555555"
    if any(view.law is not None for view in targets):
        handles.append(Patch(color=grey, alpha=0.2, linewidth=0, label="95 % band of the fitted law"))
    if any(o.steps.value is not None and o.flagged for o in seen):
        handles.append(
            Line2D(
                [],
                [],
                linestyle="",
                marker="o",
                **_open(grey),
                label="flagged: rate at the grid's edge, or not in the fit",
            )
        )
    if any(o.steps.value is None for o in seen):
        handles.append(
            Line2D([], [], linestyle="", marker="^", **_open(grey), label="target not reached: at least this")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    title = "Steps and examples to target" if targets else "No target was evaluated"
    figure.suptitle(title, fontsize=11)


def _draw_learning_rates(axis: Any, view: TargetView) -> None:
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.0, 0.85, max(len(view.observations), 1)))
    for shade, observation in zip(shades, view.observations, strict=False):
        label = f"B = {observation.effective_batch_size:g}"
        reached = [
            (r.learning_rate, r.steps.value) for r in observation.rates if r.learning_rate and r.steps.value
        ]
        axis.plot(*_columns(reached), "-", color=shade, linewidth=1.2, label=label)
        for rate in observation.rates:
            _draw_rate(axis, rate, observation, shade)
    axis.set(xscale="log", xlabel="learning rate", ylabel="optimizer steps to target")
    _log_steps(axis)
    _rate_ticks(axis, view)
    axis.set_title(plain_text(view.target), fontsize=10)
    axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    if view.observations:
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)


def _rate_ticks(axis: Any, view: TargetView) -> None:
    from matplotlib.ticker import NullLocator

    axis.xaxis.set_major_formatter("{x:g}")
    rates = sorted({r.learning_rate for o in view.observations for r in o.rates if r.learning_rate})
    if 0 < len(rates) <= 12:
        axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axis.xaxis.set_minor_locator(NullLocator())


def _draw_rate(axis: Any, rate: RateView, observation: ObservationView, colour: Any) -> None:
    """A filled dot where every seed reached the target, an open triangle where one did not.

    A rate at which a seed diverged is a cross on the upper edge of the plot.
    """
    if rate.learning_rate is None:
        return
    if rate.num_diverged:
        axis.plot(rate.learning_rate, 0.97, "x", color=colour, transform=axis.get_xaxis_transform())
    elif rate.steps.value is None:
        if rate.steps.low is not None:
            axis.plot(rate.learning_rate, rate.steps.low, "^", **_open(colour), markersize=6)
    else:
        axis.plot(rate.learning_rate, rate.steps.value, "o", color=colour, markersize=4)
        if rate.learning_rate == observation.learning_rate:
            ring = _open(colour) | {"markerfacecolor": "none"}
            axis.plot(rate.learning_rate, rate.steps.value, "o", **ring, markersize=9)


def _columns(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]
