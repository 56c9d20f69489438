"""One row per evaluation: which run, how far it was, and the metric."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gasweep.analysis.sources.cells import BadCell, Ending, ending, is_missing, metric, number, positive
from gasweep.analysis.sources.columns import Columns, find_columns
from gasweep.analysis.sources.options import SourceOptions, Units
from gasweep.analysis.sources.records import read_records
from gasweep.analysis.sources.steps_table import label, learning_rate, text
from gasweep.analysis.trials import StudyRun, listed
from gasweep.errors import SourceError, nearest

Key = tuple[object, ...]
Point = tuple[float, float | None]
MOST_RESUMES = 0.2
"""Share of a run's rows at which its steps may go back and still be in order."""


def read_curves(path: Path, options: SourceOptions) -> tuple[list[StudyRun], list[str]]:
    """The runs of the file with their curves, and notes on what was left out.

    A run is told by the `run` column if there is one, else by batch size, learning rate and seed. Rows
    without the metric are skipped (a log holds other rows too). Where the steps of a run go back, it was
    resumed from there: what an earlier attempt logged from that step on no longer counts. A run whose rows
    are in no order at all is sorted; of two rows at one step the later one counts.
    Raises: SourceError naming file, line and reason.
    """
    names, records = read_records(path, options)
    if options.metric is None or options.metric not in names:
        raise SourceError(
            f"{path}: metric: no column '{options.metric}'; {nearest(str(options.metric), names)}"
        )
    columns = find_columns(path, names, options)
    units = Units.of(options, columns.progress_unit)
    runs: dict[Key, StudyRun] = {}
    curves: dict[Key, list[Point]] = {}
    states: dict[Key, Ending] = {}
    for line, row in records:
        try:
            run, key = _identity(row, columns, units)
            if not runs.setdefault(key, run).batch_size == run.batch_size:
                raise BadCell(f"{columns.batch_size}: {run.batch_size:g} differs within run {key[0]}")
            if columns.state is not None and not is_missing(row.get(columns.state)):
                states[key] = ending(row[columns.state], columns.state)
            if not is_missing(row.get(options.metric)):
                step = units.steps(_progress(row, columns), run.batch_size)
                curves.setdefault(key, []).append((step, metric(row[options.metric], options.metric)))
        except BadCell as problem:
            raise SourceError(f"{path} line {line}: {problem}") from None
    empty = [_name(runs[key]) for key in runs if key not in curves]
    notes = [f"{path.name}: {listed(empty)}: no {options.metric}; left out"] if empty else []
    notes += _resumed(path, {key: curve for key, curve in curves.items() if _was_resumed(curve)}, runs)
    return [_finish(runs[key], curve, states.get(key)) for key, curve in curves.items()], notes


def _identity(row: Mapping[str, Any], columns: Columns, units: Units) -> tuple[StudyRun, Key]:
    batch = units.batch(positive(row.get(columns.batch_size), columns.batch_size))
    rate = learning_rate(row, columns)
    seed = label(row.get(columns.seed)) if columns.seed else None
    name = text(row.get(columns.run)) if columns.run else None
    run = StudyRun(batch_size=batch, learning_rate=rate, seed=name if seed is None else seed)
    return run, (batch, rate, seed) if name is None else (name,)


def _progress(row: Mapping[str, Any], columns: Columns) -> float:
    value = number(row.get(columns.progress), columns.progress)
    if value < 0:
        raise BadCell(f"{columns.progress}: {value:g} must not be negative")
    return value


def _was_resumed(curve: Sequence[Point]) -> bool:
    """Whether the steps mostly rise and sometimes go back, which rows in no order do not."""
    back = sum(after[0] <= before[0] for before, after in itertools.pairwise(curve))
    return 0 < back <= MOST_RESUMES * (len(curve) - 1)


def _standing(curve: Sequence[Point]) -> list[Point]:
    """The points that later attempts did not take back, by step."""
    if not _was_resumed(curve):
        return sorted(dict(curve).items())
    standing: list[Point] = []
    for point in curve:
        while standing and standing[-1][0] >= point[0]:
            standing.pop()
        standing.append(point)
    return standing


def _resumed(path: Path, curves: Mapping[Key, Sequence[Point]], runs: Mapping[Key, StudyRun]) -> list[str]:
    if not curves:
        return []
    lost = sum(len(curve) - len(_standing(curve)) for curve in curves.values())
    names = listed([_name(runs[key]) for key in curves])
    return [
        f"{path.name}: {names}: the steps go back, as after a resume; {lost} evaluations from there on, of "
        "the attempts before, are left out (map seed=COLUMN or run=COLUMN if these are several runs)"
    ]


def _finish(run: StudyRun, curve: Sequence[Point], state: Ending | None) -> StudyRun:
    points = _standing(curve)
    is_diverged = state is Ending.DIVERGED or points[-1][1] is None
    return StudyRun(
        batch_size=run.batch_size,
        learning_rate=run.learning_rate,
        seed=run.seed,
        points=points,
        state="diverged" if is_diverged else "censored",
        source=_name(run),
    )


def _name(run: StudyRun) -> str:
    rate = "" if run.learning_rate is None else f", learning rate {run.learning_rate:g}"
    seed = "" if run.seed is None else f", seed {run.seed}"
    return f"run at batch {run.batch_size:g}{rate}{seed}"
