"""What an optimizer step costs in each layout, side by side: seconds, bytes, what `no_sync` saves, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gasweep.analysis.estimate import Estimate
from gasweep.report import numbers
from gasweep.report.controls import section
from gasweep.report.markup import Markup, join, stacked, table, tag

MAX_ROWS = 200
HEADER = (
    "b×N×G",
    "B",
    "per step",
    "examples/s",
    "wire/step",
    "bytes saved",
    "time saved",
    "exposed comm.",
    "peak memory",
    "strategy",
)


def layout_costs(points: Sequence[Mapping[str, Any]]) -> Markup:
    """A section for the points of `gasweep bench --json`; empty where no layout was probed."""
    if not points:
        return Markup("")
    left_out = len(points) - MAX_ROWS
    rows = [stacked(layout_row(point)) for point in points[:MAX_ROWS]]
    return section(
        "layouts",
        "What an optimizer step costs",
        tag(
            "p",
            "Per step: mean seconds of an optimizer step, with the 95 % interval of a run, as in the front. "
            "Wire: bytes that one rank sends. Saved: against a sync on every micro-step; the time only where "
            "a bench measured that too. Exposed: communication that nothing overlaps (a mean over further "
            "steps).",
        ),
        join(
            [
                table(HEADER, rows, text_columns=(0, 9)),
                tag("p", f"{left_out} more layouts are not listed.") if left_out > 0 else "",
            ]
        ),
    )


def layout_row(point: Mapping[str, Any]) -> list[str]:
    """The cells under `HEADER`."""
    exposed = point["seconds_split"].get("exposed_communication")
    return [
        f"{point['micro_batch_size']}×{point['world_size']}×{point['accumulation_steps']}",
        numbers.count(point["effective_batch_size"]),
        _bounded(point, "seconds_per_optimizer_step", numbers.duration),
        numbers.number(point["examples_per_s"]),
        numbers.size(point["bytes_per_optimizer_step"]),
        numbers.percent(point["bytes_saved_fraction"]),
        _bounded(point, "seconds_saved_fraction", numbers.percent),
        "-" if exposed is None else f"{exposed * 1e3:.3g} ms",
        numbers.memory(point["peak_memory_bytes"]),
        " ".join([str(point["strategy"]), *(f"{path}={value}" for path, value in point["axes"].items())]),
    ]


def _bounded(point: Mapping[str, Any], name: str, text: Callable[[float], str]) -> str:
    """A value with its interval; a dash where it was not measured."""
    value, low, high = (point[key] for key in (name, f"{name}_low", f"{name}_high"))
    return "-" if value is None else numbers.estimate(Estimate(value=value, low=low, high=high), text)
