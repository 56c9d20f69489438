"""Drive a sweep from the command line: plan, tracker and display around the driver, then the answer."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gasweep.cli.answer import Answer, answer_of
from gasweep.cli.display import Display, open_display
from gasweep.cli.left_out import left_out, left_out_lines
from gasweep.cli.output import print_json, print_lines
from gasweep.cli.prepare import Prepared, prepare
from gasweep.report.tables import collapse_lines
from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState
from gasweep.tracking.create import catch_up, create_tracker

if TYPE_CHECKING:
    from gasweep.scheduling.sweep import SweepOutcome
    from gasweep.tracking.base import Tracker

INTERRUPTED = 130


def run_and_answer(arguments: argparse.Namespace) -> int:
    """The `run` command; returns its exit code."""
    prepared = prepare(arguments.config, arguments.overrides, directory=arguments.dir)
    plan = prepared.plan
    progress = sys.stderr if arguments.json else None
    collapse = collapse_lines(
        num_points=len(plan.points), num_runs=len(plan.runs), num_probes=len(plan.probes)
    )
    left_out = [f"left out: {item.point}: {item.reason}" for item in plan.rejected]
    print_lines([*collapse, *plan.notes, *left_out], file=progress)
    tracker = create_tracker(prepared.config, prepared.directory)
    display = open_display(
        prepared.config.name, on_start=lambda: catch_up(tracker, prepared.directory), file=progress
    )
    try:
        outcome = _drive(prepared, tracker, display, retry_failed=arguments.retry_failed)
        answer = answer_of(prepared.directory)
        if outcome.exit_code != INTERRUPTED and display.has_seen_an_end:
            tracker.summarize(answer.summary(), table=answer.table(), images=answer.plots)
    finally:
        tracker.close()
    if arguments.json:
        print_json(_as_json(prepared, outcome, answer))
    else:
        _print(prepared, outcome, answer, collapse=collapse)
    return outcome.exit_code


def _drive(prepared: Prepared, tracker: Tracker, display: Display, *, retry_failed: bool) -> SweepOutcome:
    from gasweep.scheduling.sweep import run_sweep

    try:
        return run_sweep(
            prepared.plan,
            directory=prepared.directory,
            tracker=tracker,
            observer=display,
            retry_failed=retry_failed,
        )
    finally:
        display.close()


def _print(prepared: Prepared, outcome: SweepOutcome, answer: Answer, *, collapse: list[str]) -> None:
    with JournalReader.open(prepared.directory) as reader:
        missing = left_out_lines(left_out(reader, prepared.plan.rejected))
    lines = ["", *collapse, *tally_lines(outcome), *missing, "", *answer.lines()]
    if outcome.exit_code == INTERRUPTED:
        lines += ["", f"stopped; `gasweep run {prepared.directory}` goes on from here"]
    elif outcome.counts[RunState.FAILED.value]:
        lines += ["", f"`gasweep run {prepared.directory} --retry-failed` tries the failed runs again"]
    print_lines(lines)


def tally_lines(outcome: SweepOutcome) -> list[str]:
    """How many runs, and how many probes, ended how."""
    lines = []
    for name, specs in (("runs", outcome.plan.runs), ("probes", outcome.plan.probes)):
        counts = outcome.counts_of(spec.run_id for spec in specs)
        if name == "probes":  # which have no target
            counts = {"measured": counts.pop(RunState.REACHED.value), **counts}
        parts = [f"{number} {state}" for state, number in counts.items() if number]
        if parts:
            lines.append(f"{name}: {', '.join(parts)}")
    return lines


def _as_json(prepared: Prepared, outcome: SweepOutcome, answer: Answer) -> dict[str, object]:
    plan = prepared.plan
    return {
        "exit_code": outcome.exit_code,
        "num_points": len(plan.points),
        "num_runs": len(plan.runs),
        "num_probes": len(plan.probes),
        "counts": outcome.counts,
        **answer.to_dict(),
    }
