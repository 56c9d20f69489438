"""Which column of a file holds what: as the user says, else by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gasweep.analysis.sources.options import PROGRESS_UNITS, SourceOptions
from gasweep.errors import SourceError, nearest

ALIASES: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size", "effective_batch_size", "global_batch_size", "batch", "bs"),
    "learning_rate": ("learning_rate", "lr"),
    "seed": ("seed",),
    "reached": ("reached",),
    "state": ("state", "status"),
    "target": ("target",),
    "low": ("low",),
    "high": ("high",),
    "run": ("run", "run_id"),
}
PROGRESS_ALIASES: dict[str, tuple[str, ...]] = {
    "steps": ("steps", "optimizer_steps", "optimizer_step", "steps_to_target", "step"),
    "examples": ("examples", "samples", "examples_to_target", "contributions"),
    "tokens": ("tokens", "tokens_to_target"),
    "epochs": ("epochs", "epoch", "epochs_to_target"),
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The file's column for each of our names (None: the file has none), and the unit of progress."""

    batch_size: str
    progress: str
    progress_unit: str
    learning_rate: str | None
    seed: str | None
    reached: str | None
    state: str | None
    target: str | None
    low: str | None
    high: str | None
    run: str | None


def find_columns(path: Path, names: Sequence[str], options: SourceOptions) -> Columns:
    """Raises: SourceError for a mapped column that is missing, an ambiguous or a needed one not found."""
    for ours, theirs in options.columns.items():
        if ours not in (*ALIASES, "progress"):
            raise SourceError(
                f"columns: '{ours}' is not a name of ours; {nearest(ours, [*ALIASES, 'progress'])}"
            )
        if theirs not in names:
            raise SourceError(f"{path}: columns: no column '{theirs}'; {nearest(theirs, names)}")
    found = {ours: _find(path, ours, ALIASES[ours], names, options) for ours in ALIASES}
    batch = found.pop("batch_size")
    if batch is None:
        raise SourceError(f"{path}: no column for batch_size among {list(names)}; map it: batch_size=COLUMN")
    progress, unit = _progress(path, names, options)
    return Columns(batch_size=batch, progress=progress, progress_unit=unit, **found)


def _find(
    path: Path, ours: str, aliases: Sequence[str], names: Sequence[str], options: SourceOptions
) -> str | None:
    if ours in options.columns:
        return options.columns[ours]
    taken = set(options.columns.values())
    matches = [name for name in names if name.strip().lower() in aliases and name not in taken]
    if len(matches) > 1:
        raise SourceError(
            f"{path}: both '{matches[0]}' and '{matches[1]}' could be {ours}; map it: {ours}=COLUMN"
        )
    return matches[0] if matches else None


def _progress(path: Path, names: Sequence[str], options: SourceOptions) -> tuple[str, str]:
    """The column that says how far a run went, and the unit it counts in."""
    if "progress" in options.columns:
        column = options.columns["progress"]
        unit = options.progress_unit or _unit_of(column)
        if unit is None:
            raise SourceError(
                f"{path}: progress_unit: column '{column}' may count {', '.join(PROGRESS_UNITS)}; "
                "declare which"
            )
        return column, unit
    units = (options.progress_unit,) if options.progress_unit else PROGRESS_UNITS
    matches = [
        (name, unit) for unit in units for name in names if name.strip().lower() in PROGRESS_ALIASES[unit]
    ]
    if not matches:
        raise SourceError(
            f"{path}: no column for {', '.join(units)} among {list(names)}; map it: progress=COLUMN, "
            "and declare progress_unit"
        )
    if len(matches) > 1:
        raise SourceError(
            f"{path}: both '{matches[0][0]}' and '{matches[1][0]}' could be progress; map it: progress=COLUMN"
        )
    return matches[0]


def _unit_of(column: str) -> str | None:
    name = column.strip().lower()
    return next((unit for unit, aliases in PROGRESS_ALIASES.items() if name in aliases), None)
