"""Say what a config would run, and run nothing: the effective batch size of every grid point, the
convergence runs they collapse to, the combinations that are no run."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from gasweep.cli.output import print_json, print_lines, print_table
from gasweep.cli.prepare import Prepared, prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG|DIR", help="a YAML file, or the directory of a sweep")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. grid.learning_rate=[1e-1,3e-1]"
    )
    parser.add_argument(
        "--check-model", action="store_true", help="also build the model and warn of what couples examples"
    )
    parser.add_argument(
        "--memory", action="store_true", help="also count what a rank will hold in each layout"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    prepared = prepare(arguments.config, arguments.overrides)
    warnings = []
    if arguments.check_model:
        from gasweep.training.verify.model_check import model_warnings

        warnings = model_warnings(prepared.config)
    memory: list[dict[str, Any]] | None = None
    if arguments.memory:
        from gasweep.cli.plan_memory import predict_layouts

        memory = predict_layouts(prepared.plan)
    if arguments.json:
        answer = prepared.plan.to_dict()
        more = {} if memory is None else {"memory": memory}
        print_json({**answer, "notes": [*answer["notes"], *warnings], **more})
        return 0
    _print(prepared)
    print_lines(warnings)
    if memory is not None:
        _print_memory(memory)
    return 0


def _print_memory(memory: list[dict[str, Any]]) -> None:
    from gasweep.cli.plan_memory import HEADER, memory_notes, memory_table

    print_lines([""])
    print_table(HEADER, memory_table(memory))
    print_lines(memory_notes(memory))


def _print(prepared: Prepared) -> None:
    from gasweep.report.tables import collapse_lines

    plan = prepared.plan
    print_lines(
        [
            f"sweep {prepared.config.name}, mode {prepared.config.sweep.mode}, into {prepared.directory}",
            *collapse_lines(
                num_points=len(plan.points), num_runs=len(plan.runs), num_probes=len(plan.probes)
            ),
            "",
        ]
    )
    print_table(*_by_batch(prepared))
    notes = [f"left out: {item.point}: {item.reason}" for item in plan.rejected]
    notes += [*plan.notes, *_budget(prepared)]
    if notes:
        print_lines(["", *notes])


def _by_batch(prepared: Prepared) -> tuple[list[str], list[list[str]]]:
    plan = prepared.plan
    layouts: dict[int, list[str]] = {}
    for point in plan.points:
        names = layouts.setdefault(point.effective_batch_size, [])
        if str(point.layout) not in names:
            names.append(str(point.layout))
    num_points = Counter(point.effective_batch_size for point in plan.points)
    num_runs = Counter(run.effective_batch_size for run in plan.runs)
    header = ["B", "grid points", "runs", "learning rates", "layouts (b x N x G)"]
    rows = []
    for batch in sorted(layouts):
        rates = sorted({run.learning_rate for run in plan.runs if run.effective_batch_size == batch})
        rows.append(
            [
                f"{batch:,}",
                str(num_points[batch]),
                str(num_runs[batch]),
                " ".join(f"{rate:g}" for rate in rates),
                " ".join(layouts[batch]),
            ]
        )
    return header, rows


def _budget(prepared: Prepared) -> list[str]:
    """At most this much: runs end when they reach the target."""
    budget, plan = prepared.config.budget, prepared.plan
    caps = []
    for run in plan.runs:
        limits = [
            budget.max_examples,
            None
            if budget.max_optimizer_steps is None
            else budget.max_optimizer_steps * run.effective_batch_size,
        ]
        known = [limit for limit in limits if limit is not None]
        if not known:
            return ["no budget: every run goes on until it reaches the target"]
        caps.append(min(known))
    return [f"budget: at most {sum(caps):,} examples over all runs (each ends when it reaches the target)"]
