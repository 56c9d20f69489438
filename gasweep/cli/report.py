"""Write the report of a sweep: one self-contained HTML file, and PNGs beside it. Works while it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gasweep.cli.output import print_json, print_lines
from gasweep.cli.prepare import require_sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the directory of a sweep")
    parser.add_argument("--out", metavar="FILE", help="default: DIR/report.html")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    from gasweep.cli.answer import answer_of
    from gasweep.cli.bench import draw_bench_points
    from gasweep.report.from_sweep import read_report
    from gasweep.report.html import write_report

    directory = require_sweep(arguments.directory)
    data = read_report(directory)
    path = write_report(data, Path(arguments.out or directory / "report.html"))
    costs = draw_bench_points(data.layout_costs, directory)
    plots = answer_of(directory).plots + ([] if costs is None else [costs])
    if arguments.json:
        print_json({"report": str(path), "plots": [str(plot) for plot in plots]})
    else:
        print_lines([str(path), *map(str, plots)])
    return 0
