"""One row per run: batch size, steps (or examples, tokens, epochs) to target, and how the run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gasweep.analysis.sources.cells import (
    NUMBER,
    WHOLE,
    BadCell,
    Ending,
    ending,
    is_missing,
    number,
    positive,
)
from gasweep.analysis.sources.columns import Columns, find_columns
from gasweep.analysis.sources.options import SourceOptions, Units
from gasweep.analysis.sources.records import read_records
from gasweep.analysis.trials import StudyRun, listed
from gasweep.errors import SourceError


def read_steps_table(path: Path, options: SourceOptions) -> tuple[list[StudyRun], list[str]]:
    """The runs of the file, and notes on rows that say nothing about steps to target.

    Raises: SourceError naming file, line and reason of the first bad row, and how many more there are.
    """
    names, records = read_records(path, options)
    if {"run_id", "optimizer_steps", "parameter_sha256"} <= set(names) and "progress" not in options.columns:
        raise SourceError(
            f"{path}: the runs that `gasweep export` writes say where each run ended, not where it reached a "
            "target; fit the sweep's directory, or evaluations.csv with --metric and --target"
        )
    columns = find_columns(path, names, options)
    units = Units.of(options, columns.progress_unit)
    runs: list[tuple[int, StudyRun]] = []
    unfinished: list[str] = []
    problems: list[str] = []
    for line, row in records:
        where = f"{path.name} line {line}"
        try:
            run = _run(row, columns, units, options, where)
        except BadCell as problem:
            problems.append(f"{path} line {line}: {problem}")
            continue
        if run is None:
            unfinished.append(str(line))
        else:
            runs.append((line, run))
    if problems and _looks_like_curves(columns, records):
        raise SourceError(
            f"{path}: many rows per run: these look like curves, not steps to target; say what counts as "
            "reached with metric (--metric COLUMN --target VALUE)"
        )
    if problems:
        more = f" ({len(problems) - 1} more bad rows)" if len(problems) > 1 else ""
        raise SourceError(problems[0] + more)
    notes = _note(path, unfinished, "the run did not finish; it says nothing and is left out")
    kept, repeated = _without_duplicates(path, runs)
    return kept, notes + _note(path, repeated, "repeats an earlier row; counted once")


def _looks_like_curves(columns: Columns, records: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
    """Whether what names a run names three rows or more on average, as evaluations of one run would be."""
    if columns.seed is None and columns.run is None:
        return False
    names = (columns.batch_size, columns.learning_rate, columns.seed, columns.run, columns.target)
    runs = {tuple(str(row.get(name)) for name in names if name) for _, row in records}
    return 3 * len(runs) <= len(records)


def _note(path: Path, lines: Sequence[str], what: str) -> list[str]:
    """One note for all lines of one kind: a file of 100,000 of them is still read."""
    if not lines:
        return []
    head = "line" if len(lines) == 1 else f"{len(lines)} rows, lines"
    return [f"{path.name} {head} {listed(lines)}: {what}"]


def _run(
    row: Mapping[str, Any], columns: Columns, units: Units, options: SourceOptions, where: str
) -> StudyRun | None:
    batch = units.batch(positive(row.get(columns.batch_size), columns.batch_size))
    status = _ending(row, columns)
    if status is Ending.NO_INFORMATION:
        return None
    common: dict[str, Any] = {
        "batch_size": batch,
        "learning_rate": learning_rate(row, columns),
        "seed": label(row.get(columns.seed)) if columns.seed else None,
        "target": text(row.get(columns.target)) if columns.target else None,
        "source": where,
    }
    raw = row.get(columns.progress)
    if status in (Ending.DIVERGED, Ending.NOT_REACHED):
        last = _last_step(raw, columns, units, options, batch, needed=status is Ending.NOT_REACHED)
        return StudyRun(**common, state=str(status), last_step=last)
    if is_missing(raw):
        raise BadCell(
            f"{columns.progress}: empty; a run that did not reach the target needs reached=false "
            "and the progress at which it was stopped"
        )
    try:
        progress = positive(raw, columns.progress)
    except BadCell as problem:
        hint = (
            "; for a run that did not reach the target set reached=false" if "finite" in str(problem) else ""
        )
        raise BadCell(f"{problem}{hint}") from None
    steps, low, high = _crossing(row, columns, units, options, batch, progress)
    return StudyRun(**common, steps=steps, low=low, high=high)


def _crossing(
    row: Mapping[str, Any],
    columns: Columns,
    units: Units,
    options: SourceOptions,
    batch: float,
    progress: float,
) -> tuple[float | None, float | None, float | None]:
    """Steps and the evaluation interval around them, all in optimizer steps."""
    low, high = _optional(row, columns.low, allow_zero=True), _optional(row, columns.high)
    if low is not None or high is not None:
        if low is None or high is None or not low <= progress <= high:
            raise BadCell(f"{columns.progress}: {progress:g} must lie in the interval from {low} to {high}")
        return units.steps(progress, batch), units.steps(low, batch), units.steps(high, batch)
    if options.evaluation_spacing is None:
        return units.steps(progress, batch), None, None
    earliest = max(progress - options.evaluation_spacing, 0.0)
    return None, units.steps(earliest, batch), units.steps(progress, batch)


def _last_step(
    raw: object, columns: Columns, units: Units, options: SourceOptions, batch: float, *, needed: bool
) -> float | None:
    """The last optimizer step of a run that did not reach the target."""
    try:
        progress = options.last_progress if is_missing(raw) else positive(raw, columns.progress)
    except BadCell:
        progress = options.last_progress
        if progress is None and needed:
            raise
    if progress is None:
        if needed:
            raise BadCell(
                f"{columns.progress}: empty for a run that was not reached; give the progress at which it "
                "was stopped, or last_progress for all such runs"
            )
        return None
    return units.steps(progress, batch)


def _ending(row: Mapping[str, Any], columns: Columns) -> Ending:
    """From `state` and `reached`; a state that only says "ended" leaves it to `reached` or the steps."""
    found = Ending.UNSTATED
    for column in (columns.state, columns.reached):
        if column is not None and not is_missing(row.get(column)):
            said = ending(row[column], column)
            if {found, said} == {Ending.REACHED, Ending.NOT_REACHED}:
                raise BadCell(f"{column}: {row[column]!r} contradicts {columns.state}")
            found = said if found in (Ending.UNSTATED, Ending.REACHED) else found
    return found


def _optional(row: Mapping[str, Any], column: str | None, *, allow_zero: bool = False) -> float | None:
    if column is None or is_missing(row.get(column)):
        return None
    value = number(row[column], column)
    return value if allow_zero and value == 0 else positive(row[column], column)


def learning_rate(row: Mapping[str, Any], columns: Columns) -> float | None:
    """The rate of the row; a file that has the column has it in every row. Raises: BadCell."""
    return (
        None
        if columns.learning_rate is None
        else positive(row.get(columns.learning_rate), columns.learning_rate)
    )


def text(raw: object) -> str | None:
    return None if is_missing(raw) else str(raw).strip()


def label(raw: object) -> int | str | None:
    """A seed: an integer where it is one, however spelt (7, "7", 7.0) and however long; else its name."""
    name = text(raw)
    if name is None:
        return None
    if WHOLE.fullmatch(name):
        return int(name)
    if NUMBER.fullmatch(name) and float(name).is_integer() and abs(float(name)) < 2**53:
        return int(float(name))
    return name


def _without_duplicates(path: Path, runs: Sequence[tuple[int, StudyRun]]) -> tuple[list[StudyRun], list[str]]:
    """Runs of one seed are one run: a repeated row counts once, a contradicting one is an error.

    Returns: the runs, and the lines of those that repeat another.
    """
    seen: dict[tuple[object, ...], tuple[int, StudyRun]] = {}
    kept: list[StudyRun] = []
    repeated: list[str] = []
    for line, run in runs:
        key = (run.batch_size, run.learning_rate, run.seed, run.target)
        if run.seed is None or key not in seen:
            seen[key] = (line, run)
            kept.append(run)
            continue
        first_line, first = seen[key]
        if _result(run) != _result(first):
            raise SourceError(
                f"{path} line {line}: the same batch size, learning rate and seed as line {first_line}, "
                "with another result; remove one, or give them different seeds"
            )
        repeated.append(str(line))
    return kept, repeated


def _result(run: StudyRun) -> tuple[object, ...]:
    return run.steps, run.low, run.high, run.last_step, run.state
