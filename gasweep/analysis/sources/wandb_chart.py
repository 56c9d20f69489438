"""A chart exported from W&B: one row per step, one column per run ("NAME - METRIC").

A run's batch size, learning rate and seed are read off its name by `run_pattern`. W&B's own "Step" counts
logging calls: what the first column counts is for the user to declare.
"""

from __future__ import annotations

import re
from pathlib import Path

from gasweep.analysis.sources.cells import BadCell, is_missing, metric, number, positive
from gasweep.analysis.sources.options import SourceOptions, Units
from gasweep.analysis.sources.records import read_records
from gasweep.analysis.sources.steps_table import label
from gasweep.analysis.trials import StudyRun, listed
from gasweep.errors import SourceError

GROUPS = ("batch_size", "learning_rate", "seed")


def read_wandb_chart(path: Path, options: SourceOptions) -> tuple[list[StudyRun], list[str]]:
    """The runs of the chart with their curves, and notes on columns left out.

    Raises: SourceError when the pattern or the unit is not declared, or names no run, or for a bad cell.
    """
    pattern = _pattern(options)
    if options.progress_unit is None:
        raise SourceError(
            f"{path}: progress_unit: declare what the first column counts; W&B's Step may be any"
        )
    names, records = read_records(path, options)
    units = Units.of(options, options.progress_unit)
    axis = options.columns.get("progress", names[0])
    if axis not in names:
        raise SourceError(f"{path}: columns: no column '{axis}' for progress")
    runs: list[StudyRun] = []
    unmatched: list[str] = []
    for column in names:
        name, _, shown = column.rpartition(" - ")
        if not name or shown.endswith(("__MIN", "__MAX")) or options.metric not in (None, shown):
            continue
        match = pattern.search(name)
        if match is None:
            unmatched.append(f"'{name}'")
            continue
        try:
            run = _identity(match, units)
        except BadCell as problem:
            raise SourceError(f"{path}: run '{name}': {problem}") from None
        points: dict[float, float | None] = {}
        for line, row in records:
            if is_missing(row.get(column)):
                continue
            try:
                step = units.steps(number(row.get(axis), axis), run.batch_size)
                points[step] = metric(row[column], column)
            except BadCell as problem:
                raise SourceError(f"{path} line {line}: {problem}") from None
        if points:
            runs.append(_with_points(run, sorted(points.items()), name))
    if not runs:
        raise SourceError(f"{path}: run_pattern: matches no run among the columns {names[1:4]}")
    notes = [f"{path.name}: run {listed(unmatched)}: no match of run_pattern; left out"] if unmatched else []
    return runs, notes


def _pattern(options: SourceOptions) -> re.Pattern[str]:
    try:
        pattern = re.compile(options.run_pattern or "")
    except re.error as error:
        raise SourceError(f"run_pattern: not a regular expression: {error}") from None
    if "batch_size" not in pattern.groupindex:
        raise SourceError(
            "run_pattern: needs a group named batch_size that reads it off a run's name, "
            r"e.g. 'B(?P<batch_size>\d+)-lr(?P<learning_rate>[\d.e-]+)-s(?P<seed>\d+)'"
        )
    unknown = set(pattern.groupindex) - set(GROUPS)
    if unknown:
        raise SourceError(f"run_pattern: group '{sorted(unknown)[0]}' is not one of {', '.join(GROUPS)}")
    return pattern


def _identity(match: re.Match[str], units: Units) -> StudyRun:
    found = match.groupdict()
    rate = found.get("learning_rate")
    return StudyRun(
        batch_size=units.batch(positive(found["batch_size"], "batch_size")),
        learning_rate=None if rate is None else positive(rate, "learning_rate"),
        seed=label(found.get("seed")),
    )


def _with_points(run: StudyRun, points: list[tuple[float, float | None]], name: str) -> StudyRun:
    return StudyRun(
        batch_size=run.batch_size,
        learning_rate=run.learning_rate,
        seed=run.seed if run.seed is not None else name,
        points=points,
        state="diverged" if points[-1][1] is None else "censored",
        source=f"run {name}",
    )
