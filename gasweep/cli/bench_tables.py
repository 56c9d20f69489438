"""The tables of `gasweep bench`, as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gasweep.report.numbers import memory, percent, size
from gasweep.report.tables import text_table
from gasweep.results.bench import BenchPoint, ModelCheck, check_model

COST_HEADER = (
    "b x N x G",
    "B",
    "ms/step [95 %]",
    "median (5–95 %)",
    "examples/s",
    "wire/step",
    "bytes saved",
    "time saved [95 %]",
    "peak memory",
    "strategy",
)
SPLIT_PARTS = ("data", "compute", "optimizer", "exposed_communication")
SPLIT_HEADER = (
    "b x N x G",
    *("data", "compute", "optimizer", "exposed comm.", "sum", "ms/step"),
    *("MFU", "tokens/s", "strategy"),
)
SENT_HEADER = ("b x N x G", "collective", "dtype", "group", "calls", "sent", "traffic", "strategy")
SENT_NOTE = (
    "sent: by one rank, in a bandwidth-optimal algorithm. group data: the N data-parallel ranks; control: "
    "counts, losses and norms"
)
COST_NOTE = (
    "ms/step: the mean, with the interval of a run; median (5–95 %): of single steps. time saved: of means, "
    "its interval from the scatter of both sides' steps ([?, ?]: too few steps for one)."
)
SPLIT_NOTE = (
    "parts: means over a few further steps, clocked part by part; they add up to such a step (sum), to be "
    "compared with ms/step, which the timed steps gave"
)


def bench_lines(points: Sequence[BenchPoint]) -> list[str]:
    """What steps cost, where their time goes, and how well the step-time model does."""
    found = [point.to_dict() for point in points]
    lines = ["no_sync against a sync on every micro-step, per optimizer step"]
    lines += [*text_table(COST_HEADER, [cost_row(one) for one in found]), f"  {COST_NOTE}", ""]
    if any(one["communication"] for one in found):
        lines += ["what one rank sends in an optimizer step"]
        sent = [row for one in found for row in sent_rows(one)]
        lines += [*text_table(SENT_HEADER, sent), f"  {SENT_NOTE}", ""]
    lines += ["where the milliseconds of an optimizer step go"]
    lines += [*text_table(SPLIT_HEADER, [split_row(one) for one in found]), f"  {SPLIT_NOTE}", ""]
    for axes, check in model_checks(points):
        lines.append(_model_line(check, "".join(f" {path}={value}" for path, value in axes.items())))
    return lines


def model_checks(points: Sequence[BenchPoint]) -> list[tuple[dict[str, Any], ModelCheck]]:
    """One step-time model per setting of the extra axes."""
    groups: dict[str, list[BenchPoint]] = {}
    for point in points:
        groups.setdefault(str(point.run.axes), []).append(point)
    return [(members[0].run.axes, check_model(members)[1]) for members in groups.values()]


def cost_row(own: dict[str, Any]) -> list[str]:
    """The cells under `COST_HEADER`, of a point as in `bench --json`."""
    mean, single = "seconds_per_optimizer_step", "seconds_per_optimizer_step_"
    low, high = (_milliseconds(own[f"{single}{side}pct"]) for side in (5, 95))
    return [
        _layout(own),
        f"{own['effective_batch_size']:,}",
        _bounded(own, mean, _milliseconds),
        f"{_milliseconds(own[f'{single}median'])} ({low}–{high})",
        f"{own['examples_per_s']:,.0f}",
        size(own["bytes_per_optimizer_step"]),
        percent(own["bytes_saved_fraction"]),
        _bounded(own, "seconds_saved_fraction", percent),
        memory(own["peak_memory_bytes"]),
        _setting(own),
    ]


def sent_rows(own: dict[str, Any]) -> list[list[str]]:
    """The cells under `SENT_HEADER`, one row per kind of collective."""
    return [
        [
            _layout(own),
            sent["collective"],
            sent["dtype"],
            f"{sent['group']} ({sent['num_ranks']})",
            f"{sent['calls']:,}",
            size(sent["num_bytes"]),
            "control" if sent["control"] else "model",
            _setting(own),
        ]
        for sent in own["communication"]
    ]


def split_row(own: dict[str, Any]) -> list[str]:
    """The cells under `SPLIT_HEADER`; parts as `measure_split` tells them."""
    parts, tokens = own["seconds_split"], own["tokens_per_s"]
    return [
        _layout(own),
        *(_milliseconds(parts.get(name)) for name in SPLIT_PARTS),
        _milliseconds(sum(parts.values()) if parts else None),
        _milliseconds(own["seconds_per_optimizer_step"]),
        percent(own["mfu"]),
        "-" if tokens is None else f"{tokens:,.0f}",
        _setting(own),
    ]


def _layout(own: dict[str, Any]) -> str:
    return f"{own['micro_batch_size']}x{own['world_size']}x{own['accumulation_steps']}"


def _setting(own: dict[str, Any]) -> str:
    return " ".join([str(own["strategy"]), *(f"{path}={value}" for path, value in own["axes"].items())])


def _bounded(own: dict[str, Any], name: str, text: Callable[[float | None], str]) -> str:
    if own[name] is None:
        return text(None)
    low, high = ("?" if own[side] is None else text(own[side]) for side in (f"{name}_low", f"{name}_high"))
    return f"{text(own[name])} [{low}, {high}]"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _model_line(check: ModelCheck, name: str) -> str:
    found = check.to_dict()
    if not found["num_held_out"]:
        return f"step-time model{name}: too few layouts to check one (it needs five)"
    return (
        f"step-time model{name}: each layout predicted from the others, median error "
        f"{found['median_error']:.1%}, largest {found['max_error']:.1%}; "
        f"{found['num_inside_interval']} of {found['num_held_out']} inside their 95 % interval"
    )
