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
            _check_same_run(runs.setdefault(key, run), run, key, columns)
            if columns.state is not None and not is_missing(row.get(columns.state)):
                states[key] = ending(row[columns.state], columns.state)
            if not is_missing(row.get(options.metric)):
                step = units.steps(_progress(row, columns), run.batch_size)
                curves.setdefault(key, []).append((step, metric(row[options.metric], options.metric)))
        except BadCell as problem:
            raise SourceError(f"{path} line {line}: {problem}") from None
    for key, curve in curves.items():
        if runs[key].seed is None:
            _check_one_run(path, _name(runs[key]), curve, options.metric)
    empty = [_name(runs[key]) for key in runs if key not in curves]
    notes = [f"{path.name}: {listed(empty)}: no {options.metric}; left out"] if empty else []
    notes += _repeated(path, curves, runs)
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


def _check_same_run(first: StudyRun, run: StudyRun, key: Key, columns: Columns) -> None:
    """Raises: BadCell where rows of one run name disagree about what the run was."""
    if first.batch_size != run.batch_size:
        raise BadCell(f"{columns.batch_size}: {run.batch_size:g} differs within run {key[0]}")
    if first.learning_rate != run.learning_rate:
        raise BadCell(
            f"{columns.learning_rate}: {run.learning_rate:g} differs from {first.learning_rate:g} within run "
            f"{key[0]}; map learning_rate to a column that says the run's peak rate, the same in every row"
        )


def _check_one_run(path: Path, name: str, curve: Sequence[Point], metric_name: str) -> None:
    """Raises: SourceError where rows without a seed or run name to say that they are one run are several's.

    Rising steps that start again from the first; or steps in no order with two values. Taken as one run they
    would hide the spread of the seeds.
    """
    hint = "map seed=COLUMN or run=COLUMN to tell the runs apart"
    if _was_resumed(curve):
        if any(step <= curve[0][0] for step, _ in curve[1:]):
            raise SourceError(f"{path}: {name}: starts again at step {curve[0][0]:g}; {hint}")
        return
    last = dict(curve)
    for step, value in curve:
        if last[step] != value:
            raise SourceError(f"{path}: {name}: two values of {metric_name} at step {step:g}; {hint}")


def _repeated(path: Path, curves: Mapping[Key, Sequence[Point]], runs: Mapping[Key, StudyRun]) -> list[str]:
    """A note on rows of a run in no order that another row of the same step replaces."""
    found = [
        key for key, curve in curves.items() if not _was_resumed(curve) and len(dict(curve)) < len(curve)
    ]
    if not found:
        return []
    names = listed([_name(runs[key]) for key in found])
    return [f"{path.name}: {names}: several rows of one step; the last of them counts"]


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
