"""Show the runs of a sweep and how far they are, from its journal alone: any terminal, any machine that sees
the directory, while the sweep runs or after."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gasweep.cli.eta import Eta
from gasweep.cli.output import console, print_json, print_lines
from gasweep.cli.prepare import require_sweep
from gasweep.cli.view import SweepView, view_of_journal
from gasweep.results.lock import holder
from gasweep.results.reader import JournalReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the directory of a sweep")
    parser.add_argument("--watch", action="store_true", help="redraw until the sweep's driver has ended")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between redraws")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    directory = require_sweep(arguments.directory)
    if arguments.json:
        sweep = read_view(directory)
        eta = Eta(sweep)
        runs = [run.to_dict(eta_s=eta.run_s(run)) for run in sweep.runs.values()]
        print_json({"runs": runs, "counts": sweep.counts})
    elif arguments.watch:
        _watch(directory, max(arguments.interval, 0.1))
    else:
        _show(read_view(directory), whole=True)
    return 0


def read_view(directory: Path) -> SweepView:
    """The sweep as it stands, and whether anyone drives it."""
    owner = holder(directory)
    with JournalReader.open(directory) as reader:
        versions = reader.config_versions()
        name = versions[-1].config["name"] if versions else directory.name
        sweep = view_of_journal(reader, name=name)
    sweep.is_driven = owner is not None
    running = [run for run in sweep.runs.values() if run.state.value == "running"]
    if owner is not None:
        sweep.driver = f"driven by {owner}"
        sweep.num_workers = sum(run.world_size for run in running) or None
    else:
        sweep.driver = f"no driver: `gasweep run {directory}` goes on" if _has_open(sweep) else None
    return sweep


def _has_open(sweep: SweepView) -> bool:
    return sweep.num_done < len(sweep.runs)


def _show(sweep: SweepView, *, whole: bool) -> None:
    from gasweep.cli.render import sweep_view

    out = console()
    height = len(sweep.runs) + 10 if whole else out.size.height
    with out.capture() as captured:
        out.print(sweep_view(sweep, width=out.size.width, height=height))
    print_lines([line.rstrip() for line in captured.get().splitlines()])


def _watch(directory: Path, interval_s: float) -> None:
    from rich.live import Live

    from gasweep.cli.render import sweep_view

    if not sys.stdout.isatty():
        while True:
            _show(read_view(directory), whole=False)
            if holder(directory) is None:
                return
            time.sleep(interval_s)
    out = console()
    with Live(console=out, auto_refresh=False) as live:
        while True:
            sweep = read_view(directory)
            view = sweep_view(sweep, width=out.size.width, height=out.size.height)
            live.update(view, refresh=True)
            if holder(directory) is None:
                return
            time.sleep(interval_s)
