"""Measure what an optimizer step costs in every layout (b, N, G) of the grid: seconds, bytes on the wire,
peak memory; and, where `no_sync` skips something, the same with a sync on every micro-step. Takes seconds per
layout and can be resumed; nothing is trained to a target."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasweep.cli.display import open_display
from gasweep.cli.output import print_json, print_lines, print_table
from gasweep.cli.prepare import prepare
from gasweep.errors import ConfigError
from gasweep.report.numbers import percent, size
from gasweep.results.bench import BenchPoint, bench_points, check_model
from gasweep.results.reader import JournalReader

if TYPE_CHECKING:
    from gasweep.results.bench import ModelCheck

SPLIT_PARTS = ("data", "compute", "optimizer", "exposed_communication")
SPLIT_HEADER = ["b x N x G", "data", "compute", "optimizer", "exposed comm.", "MFU", "tokens/s"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG|DIR", help="a YAML file, or the directory of a sweep")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. strategy=fsdp")
    parser.add_argument("--dir", metavar="DIR", help="where the bench is kept; default: sweeps/<name>-bench")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")


def main(arguments: argparse.Namespace) -> int:
    prepared = prepare(arguments.config, arguments.overrides)
    if not prepared.config.sweep.throughput_probes:
        raise ConfigError("sweep.throughput_probes=false leaves a bench nothing to measure; set it to true")
    directory = Path(arguments.dir or f"sweeps/{prepared.config.name}-bench")

    from gasweep.scheduling.sweep import run_sweep

    file = sys.stderr if arguments.json else None
    display = open_display(f"{prepared.config.name} bench", on_start=lambda: None, file=file)
    try:
        outcome = run_sweep(prepared.plan.for_bench(), directory=directory, observer=display)
    finally:
        display.close()
    with JournalReader.open(directory) as reader:
        points = bench_points(reader)
    if arguments.json:
        print_json(
            {
                "exit_code": outcome.exit_code,
                "points": [point.to_dict() for point in points],
                "model": [check.to_dict() | {"axes": axes} for axes, check in _checks(points)],
                "directory": str(directory),
            }
        )
    else:
        _print(points, directory)
    return outcome.exit_code


def _checks(points: Sequence[BenchPoint]) -> list[tuple[dict[str, Any], ModelCheck]]:
    """One step-time model per setting of the extra axes."""
    groups: dict[str, list[BenchPoint]] = {}
    for point in points:
        groups.setdefault(str(point.run.axes), []).append(point)
    return [(members[0].run.axes, check_model(members)[1]) for members in groups.values()]


def _print(points: Sequence[BenchPoint], directory: Path) -> None:
    header = ["b x N x G", "B", "ms/step", "5–95 %", "examples/s", "wire/step", "bytes saved", "time saved"]
    print_lines(["", "no_sync against a sync on every micro-step, per optimizer step"])
    print_table([*header, "peak memory", "strategy"], [_row(point) for point in points])
    print_lines(["", "where the milliseconds of an optimizer step go"])
    print_table([*SPLIT_HEADER, "strategy"], [_split_row(point) for point in points])
    print_lines([""])
    for axes, check in _checks(points):
        name = "".join(f" {path}={value}" for path, value in axes.items())
        print_lines([_model_line(check, name)])
    print_lines([f"stored in {directory}"])


def _row(point: BenchPoint) -> list[str]:
    own = point.to_dict()
    layout = "x".join(str(n) for n in point.run.spec["layout"].values())
    low, high = own["seconds_per_optimizer_step_low"], own["seconds_per_optimizer_step_high"]
    return [
        layout,
        f"{own['effective_batch_size']:,}",
        _milliseconds(own["seconds_per_optimizer_step"]),
        f"{_milliseconds(low)}–{_milliseconds(high)}",
        f"{own['examples_per_s']:,.0f}",
        size(own["bytes_per_optimizer_step"]),
        percent(own["bytes_saved_fraction"]),
        percent(own["seconds_saved_fraction"]),
        size(own["peak_memory_bytes"]),
        _setting(own),
    ]


def _split_row(point: BenchPoint) -> list[str]:
    """Parts as `measure_split` tells them; exposed: communication that nothing overlaps."""
    own = point.to_dict()
    parts = own["seconds_split"]
    tokens = own["tokens_per_s"]
    return [
        "x".join(str(n) for n in point.run.spec["layout"].values()),
        *(_milliseconds(parts.get(name)) for name in SPLIT_PARTS),
        percent(own["mfu"]),
        "-" if tokens is None else f"{tokens:,.0f}",
        _setting(own),
    ]


def _setting(own: dict[str, Any]) -> str:
    return " ".join([str(own["strategy"]), *(f"{path}={value}" for path, value in own["axes"].items())])


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
