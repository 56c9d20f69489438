"""What a file's numbers mean, as declared by the user: units, column names, what to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gasweep.errors import SourceError, nearest

KINDS = ("auto", "table", "curves", "mlperf", "wandb")
BATCH_UNITS = ("examples", "tokens")
PROGRESS_UNITS = ("steps", "examples", "tokens", "epochs")
USED_BY = {
    "columns": ("table", "curves", "wandb"),
    "where": ("table", "curves", "wandb"),
    "delimiter": ("table", "curves", "wandb"),
    "metric": ("curves", "wandb"),
    "evaluation_spacing": ("table", "mlperf"),
    "last_progress": ("table",),
    "run_pattern": ("wandb",),
}
"""Kinds of file that each option means something in; those not listed mean something in all."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How to read a file. Nothing here is guessed from the numbers.

    kind: "table" (one row per run), "curves" (one row per evaluation), "mlperf" (reference convergence
        points, JSON), "wandb" (chart export, one column per run); "auto": .json is mlperf,
        anything else curves when `metric` is given, else a table.
    batch_unit: what batch sizes count. With "tokens" and `tokens_per_example` they are turned into examples,
        without it every answer is in tokens.
    progress_unit: what the progress column counts; None: what its own name says (steps, examples, ...).
    examples_per_epoch, tokens_per_example: the factors that the declared units need.
    columns: our name -> the file's name, e.g. {"batch_size": "bsz"}; our names: batch_size, progress,
        learning_rate, seed, reached, state, target, low, high, run.
    where: column -> text; only rows that hold exactly this are read.
    metric: column of the metric in curves.
    evaluation_spacing: progress between two evaluations, in the progress unit, for tables that give the
        evaluation at which the target was met: the crossing then lies in (value - spacing, value].
    last_progress: where runs without the target were stopped, in the progress unit, if the file does not say.
    run_pattern: regular expression with groups batch_size, and optionally learning_rate, seed, that reads
        them off a run's name in a W&B chart export.
    delimiter: of CSV; None: tab for .tsv, else a comma.
    """

    kind: str = "auto"
    batch_unit: str = "examples"
    progress_unit: str | None = None
    examples_per_epoch: float | None = None
    tokens_per_example: float | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    evaluation_spacing: float | None = None
    last_progress: float | None = None
    run_pattern: str | None = None
    delimiter: str | None = None

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, KINDS)
        _check_choice("batch_unit", self.batch_unit, BATCH_UNITS)
        if self.progress_unit is not None:
            _check_choice("progress_unit", self.progress_unit, PROGRESS_UNITS)
        for name in ("examples_per_epoch", "tokens_per_example", "evaluation_spacing", "last_progress"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise SourceError(f"{name}: {value} must be a positive number")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\r\n"'):
            raise SourceError(f"delimiter: {self.delimiter!r} must be one character, no quote or line end")

    def check_use(self, kind: str) -> None:
        """Raises: SourceError for an option that a file of `kind` has no use for."""
        for name, kinds in USED_BY.items():
            if getattr(self, name) and kind not in kinds:
                raise SourceError(
                    f"{name}: has no use in a file of kind '{kind}', only in {' or '.join(kinds)}; leave it "
                    "out, or declare the kind"
                )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SourceError(f"{name}: '{value}' is unknown; {nearest(value, choices)}")


@dataclass(frozen=True, kw_only=True)
class Units:
    """Turns a file's batch sizes and progress into contributions (or tokens) and optimizer steps."""

    batch_unit: str
    progress_unit: str
    examples_per_epoch: float | None
    tokens_per_example: float | None

    @classmethod
    def of(cls, options: SourceOptions, progress_unit: str) -> Units:
        """Raises: SourceError when a factor that the units need is missing."""
        units = cls(
            batch_unit=options.batch_unit,
            progress_unit=progress_unit,
            examples_per_epoch=options.examples_per_epoch,
            tokens_per_example=options.tokens_per_example,
        )
        if progress_unit == "epochs" and units.examples_per_epoch is None:
            raise SourceError("examples_per_epoch: needed, because progress is counted in epochs")
        crosses = {"examples": "tokens", "epochs": "tokens", "tokens": "examples"}
        if crosses.get(progress_unit) == units.batch_unit and units.tokens_per_example is None:
            raise SourceError(
                f"tokens_per_example: needed, because progress is counted in {progress_unit} "
                f"and batch sizes in {units.batch_unit}"
            )
        return units

    def batch(self, value: float) -> float:
        """The batch size all answers are in: examples, or tokens where nothing says how many make one."""
        if self.batch_unit == "tokens" and self.tokens_per_example is not None:
            return value / self.tokens_per_example
        return value

    def steps(self, progress: float, batch: float) -> float:
        """Optimizer steps after `progress`, at a batch size as `batch` returned it."""
        if self.progress_unit == "steps":
            return progress
        if self.progress_unit == "epochs":
            return progress * (self.examples_per_epoch or 0.0) / batch
        if self.progress_unit == "tokens" and self.tokens_per_example is not None:
            return progress / self.tokens_per_example / batch
        return progress / batch
