"""Measure what an optimizer step costs in every layout (b, N, G) of the grid: seconds, bytes on the wire,
peak memory; and, where `no_sync` skips something, the same with a sync on every micro-step. Takes seconds per
layout and can be resumed; nothing is trained to a target."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gasweep.cli.bench_tables import bench_lines, model_checks
from gasweep.cli.display import open_display
from gasweep.cli.left_out import LeftOut, left_out, left_out_lines
from gasweep.cli.output import print_json, print_lines
from gasweep.cli.prepare import prepare
from gasweep.errors import ConfigError
from gasweep.results.bench import BenchPoint, bench_points
from gasweep.results.directory import JOURNAL_FILE
from gasweep.results.reader import JournalReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG|DIR", help="a YAML file, or the directory of a sweep")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. strategy=fsdp")
    parser.add_argument("--dir", metavar="DIR", help="where the bench is kept; default: sweeps/<name>-bench")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, progress on stderr")


def main(arguments: argparse.Namespace) -> int:
    prepared = prepare(arguments.config, arguments.overrides)
    if not prepared.config.sweep.throughput_probes:
        raise ConfigError("sweep.throughput_probes=false leaves a bench nothing to measure; set it to true")
    directory = Path(arguments.dir or _own_directory(arguments.config, prepared.config.name))

    from gasweep.scheduling.sweep import run_sweep

    file = sys.stderr if arguments.json else None
    display = open_display(f"{prepared.config.name} bench", on_start=lambda: None, file=file)
    try:
        outcome = run_sweep(prepared.plan.for_bench(), directory=directory, observer=display)
    finally:
        display.close()
    with JournalReader.open(directory) as reader:
        points, missing = bench_points(reader), left_out(reader, prepared.plan.rejected)
    if arguments.json:
        print_json({"exit_code": outcome.exit_code, **_as_json(points, missing, directory)})
    else:
        _print(points, missing, directory)
    return outcome.exit_code


def _own_directory(source: str, name: str) -> str:
    """A bench's own directory goes on where it is."""
    if (Path(source) / JOURNAL_FILE).is_file():
        with JournalReader.open(Path(source)) as reader:
            kinds = {run.kind for run in reader.runs()}
        if kinds == {"probe"}:
            return source
    return f"sweeps/{name}-bench"


def _as_json(points: Sequence[BenchPoint], missing: Sequence[LeftOut], directory: Path) -> dict[str, Any]:
    found = [point.to_dict() for point in points]
    plot = draw_bench_points(found, directory)
    return {
        "points": found,
        "model": [check.to_dict() | {"axes": axes} for axes, check in model_checks(points)],
        "left_out": [group.to_dict() for group in missing],
        "plot": None if plot is None else str(plot),
        "directory": str(directory),
    }


def _print(points: Sequence[BenchPoint], missing: Sequence[LeftOut], directory: Path) -> None:
    """The tables first: a plot that cannot be written takes none of them away."""
    print_lines(["", *bench_lines(points), ""])
    plot = draw_bench_points([point.to_dict() for point in points], directory)
    drawn = [] if plot is None else [f"plot in {plot}"]
    print_lines([*left_out_lines(missing), *drawn, f"stored in {directory}"])


def draw_bench_points(points: Sequence[Mapping[str, Any]], directory: Path) -> Path | None:
    """The plot below `directory` of points as in `bench --json`; None, and no file, without any."""
    if not points:
        return None
    from gasweep.report.bench_plot import FILE_NAME, plot_bench

    return plot_bench(points, directory / FILE_NAME)
