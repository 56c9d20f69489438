"""Estimate the critical batch size, the least steps and the least examples, with 95 % intervals.

From a sweep's directory (while it runs, too), or from anyone's data: CSV or JSONL with one row per run (batch
size, steps or examples or epochs to target, and optionally learning rate, seed, reached), or of whole curves
(--metric, --target), an MLPerf reference-points JSON, or a W&B chart export (--kind wandb).
Units are declared, never guessed; the first row that cannot be used is named with file, line and reason, and
how many more there are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasweep.cli.cost import costs_of
from gasweep.cli.output import print_json, print_lines
from gasweep.errors import SourceError

if TYPE_CHECKING:
    from gasweep.analysis.sources import SourceOptions
    from gasweep.analysis.steps_to_target import TargetRule
    from gasweep.cli.answer import Answer

NAMES = "batch_size, progress, learning_rate, seed, reached, state, target, low, high, run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="the directory of a sweep, or a file")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--plot", metavar="PNG", help="draw both curves there")
    parser.add_argument(
        "--base-batch-size",
        type=float,
        metavar="B",
        help="where the 20 %% batch size counts perfect scaling from; default: the smallest batch",
    )
    cost = parser.add_argument_group("cost (of a sweep whose layouts were timed)")
    cost.add_argument("--cost", action="store_true", help="the layouts that no other beats, with intervals")
    cost.add_argument("--deadline", type=float, metavar="S", help="the cheapest layout within S seconds")
    cost.add_argument("--budget-gpu-hours", type=float, metavar="H", help="the fastest within H worker hours")
    target = parser.add_argument_group("target (of curves; a sweep's own otherwise)")
    target.add_argument("--metric", help="the metric's column or name, e.g. eval_loss")
    target.add_argument("--target", type=float, action="append", metavar="VALUE", help="may be repeated")
    target.add_argument("--mode", choices=("min", "max"), default="min", help="which way is better")
    target.add_argument(
        "--rule", choices=("first_crossing", "smoothed", "stays_below"), default="first_crossing"
    )
    target.add_argument(
        "--window-fraction", type=float, default=0.0, metavar="F", help="of the steps taken, for the rule"
    )
    file = parser.add_argument_group("how to read a file")
    file.add_argument("--kind", choices=("auto", "table", "curves", "mlperf", "wandb"), default="auto")
    file.add_argument("--batch-unit", choices=("examples", "tokens"), default="examples")
    file.add_argument("--progress-unit", choices=("steps", "examples", "tokens", "epochs"))
    file.add_argument("--examples-per-epoch", type=float, metavar="N")
    file.add_argument("--tokens-per-example", type=float, metavar="N")
    file.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help=f"which column holds what; ours: {NAMES}",
    )
    file.add_argument(
        "--where", action="append", default=[], metavar="COLUMN=TEXT", help="read only rows that hold this"
    )
    file.add_argument(
        "--evaluation-spacing",
        type=float,
        metavar="X",
        help="progress between two evaluations, where a table gives the one at which the target was met",
    )
    file.add_argument(
        "--last-progress", type=float, metavar="X", help="where runs that did not reach it were stopped"
    )
    file.add_argument("--run-pattern", metavar="REGEX", help="reads (?P<batch_size>...) off a run's name")
    file.add_argument("--delimiter", metavar="C", help="of a CSV; default: a tab for .tsv, else a comma")


def main(arguments: argparse.Namespace) -> int:
    base = arguments.base_batch_size
    if base is not None and not 0 <= base < float("inf"):
        raise SourceError(f"--base-batch-size={base} must be a finite number >= 0")
    path = Path(arguments.source)
    _check_target(arguments)
    answer = _of_sweep(path, arguments) if path.is_dir() else _of_file(path, arguments)
    plots: list[str] = []
    if arguments.plot:
        from gasweep.cli.answer import draw_to

        plots = [str(plot) for plot in draw_to(answer.studies, Path(arguments.plot), unit=answer.unit)]
    wanted = arguments.cost or arguments.deadline is not None or arguments.budget_gpu_hours is not None
    if wanted and not path.is_dir():
        raise SourceError(f"{path} is a file: what a layout costs is known for a sweep's directory alone")
    costs = costs_of(path, answer, arguments.deadline, arguments.budget_gpu_hours) if wanted else None
    if arguments.json:
        extra = {"plots": plots} if plots else {}
        print_json(answer.fit_dict() | extra | ({} if costs is None else {"costs": costs.to_dicts()}))
    else:
        print_lines([*answer.estimates(), *plots, *([] if costs is None else costs.lines())])
    return 0


def _check_target(arguments: argparse.Namespace) -> None:
    """How a target is to be met, without one, would change nothing and be taken to have."""
    if arguments.target:
        return
    for name, default in (("mode", "min"), ("rule", "first_crossing"), ("window_fraction", 0.0)):
        if getattr(arguments, name) != default:
            option = "--" + name.replace("_", "-")
            raise SourceError(f"{option} {getattr(arguments, name)}: say of what with --target VALUE")
    if arguments.metric and Path(arguments.source).is_dir():
        raise SourceError(f"--metric {arguments.metric}: say what counts as reached with --target VALUE")


def _of_sweep(directory: Path, arguments: argparse.Namespace) -> Answer:
    from gasweep.cli.answer import answer_of
    from gasweep.cli.prepare import require_sweep

    return answer_of(
        require_sweep(str(directory)),
        plot=False,
        targets=_rules(arguments, metric=arguments.metric or "eval_loss") or None,
        base_batch_size=arguments.base_batch_size,
    )


def _of_file(path: Path, arguments: argparse.Namespace) -> Answer:
    from gasweep.analysis.sources import read_source
    from gasweep.analysis.study import fit_study
    from gasweep.cli.answer import Answer, LabelledStudy

    source = read_source(path, _options(arguments))
    rules = _rules(arguments, metric=arguments.metric or "value")
    if source.has_curves and not rules:
        raise SourceError(f"{path} holds curves: say what counts as reached with --target VALUE")
    if rules and not source.has_curves:
        raise SourceError(
            f"{path} holds steps to target, not curves: --target has no use here; give --metric COLUMN to "
            f"read curves"
        )
    print_lines([f"gasweep: note: {note}" for note in source.notes], file=sys.stderr)
    study = fit_study(source.runs, rules, base_batch_size=arguments.base_batch_size).to_dict()
    return Answer(
        directory=path, studies=[LabelledStudy(label="", study=study)], spreads=[], unit=source.unit
    )


def _rules(arguments: argparse.Namespace, *, metric: str) -> list[TargetRule]:
    from gasweep.analysis.steps_to_target import TargetRule

    return [
        TargetRule(
            metric=metric,
            value=value,
            mode=arguments.mode,
            rule=arguments.rule,
            window_fraction=arguments.window_fraction,
        )
        for value in arguments.target or ()
    ]


def _options(arguments: argparse.Namespace) -> SourceOptions:
    from gasweep.analysis.sources import SourceOptions

    return SourceOptions(
        kind=arguments.kind,
        batch_unit=arguments.batch_unit,
        progress_unit=arguments.progress_unit,
        examples_per_epoch=arguments.examples_per_epoch,
        tokens_per_example=arguments.tokens_per_example,
        columns=_pairs("--column", arguments.column),
        where=_pairs("--where", arguments.where),
        metric=arguments.metric,
        evaluation_spacing=arguments.evaluation_spacing,
        last_progress=arguments.last_progress,
        run_pattern=arguments.run_pattern,
        delimiter=arguments.delimiter,
    )


def _pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SourceError(f"{option} {text!r} must have the form NAME=VALUE")
        pairs[key] = value
    return pairs
