"""Write a sweep's runs, evaluations and optimizer steps as CSV or Parquet tables, or mirror the sweep into
W&B. Works while the sweep runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from gasweep.cli.output import print_json, print_lines
from gasweep.cli.prepare import require_sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the directory of a sweep")
    parser.add_argument("--format", choices=("csv", "parquet", "wandb"), default="csv")
    parser.add_argument("--out", metavar="FOLDER", help="default: DIR/export; not used by wandb")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    directory = require_sweep(arguments.directory)
    if arguments.format == "wandb":
        return _mirror(directory, as_json=arguments.json)
    from gasweep.results.export import export_tables
    from gasweep.results.reader import JournalReader

    folder = Path(arguments.out) if arguments.out else directory / "export"
    with JournalReader.open(directory) as reader:
        paths = export_tables(reader, folder, format=arguments.format)
    if arguments.json:
        print_json({"files": [str(path) for path in paths]})
    else:
        print_lines([str(path) for path in paths])
    return 0


def _mirror(directory: Path, *, as_json: bool) -> int:
    import warnings

    from gasweep.cli.answer import answer_of
    from gasweep.config.load import load_sweep_config
    from gasweep.results.directory import SWEEP_FILE
    from gasweep.tracking.create import catch_up, wandb_tracker

    config = load_sweep_config(directory / SWEEP_FILE)
    tracker = wandb_tracker(config, directory, warn=warnings.warn)
    num_runs = catch_up(tracker, directory)
    answer = answer_of(directory)
    tracker.summarize(answer.summary(), table=answer.table(), images=answer.plots)
    tracker.close()
    if as_json:
        print_json({"num_runs": num_runs, "directory": str(directory / "wandb")})
    else:
        print_lines([f"{num_runs} runs and the summary mirrored below {directory / 'wandb'}"])
    return 0
