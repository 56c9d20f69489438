"""From what the user names, a config or a sweep directory, to a checked config, its plan, its directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gasweep.config.load import load_sweep_config
from gasweep.config.plan import SweepPlan, plan_sweep
from gasweep.config.schema import SweepConfig
from gasweep.errors import SweepDirectoryError
from gasweep.results.directory import JOURNAL_FILE, SWEEP_FILE
from gasweep.tasks.normalize import normalize_task
from gasweep.tasks.resolve import resolve_task
from gasweep.training.targets import target_rules

DEFAULT_FOLDER = "sweeps"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep about to be planned or run."""

    config: SweepConfig
    plan: SweepPlan
    directory: Path


def prepare(source: str, overrides: Sequence[str] = (), *, directory: str | None = None) -> Prepared:
    """Load and check everything that can be checked without a cluster or data.

    source: a config file, or the directory of a sweep (its stored config).
    directory: default `sweep.directory`, else sweeps/<name>; a sweep directory is its own.

    Raises ConfigError, BatchError or TaskError in one line, SweepDirectoryError for a directory that holds
    no sweep.
    """
    path = Path(source)
    if path.is_dir():
        stored = path / SWEEP_FILE
        if not stored.is_file():
            raise SweepDirectoryError(
                f"directory={path} holds no sweep ({SWEEP_FILE} is missing); give a config file or a sweep's "
                f"directory"
            )
        config = load_sweep_config(stored, overrides)
        target = Path(directory) if directory else path
    else:
        config = load_sweep_config(path, overrides)
        target = Path(directory or config.sweep.directory or Path(DEFAULT_FOLDER) / config.name)
    task = resolve_task(config.task)
    target_rules(config.target, metrics=task.metrics())
    return Prepared(config=config, plan=plan_sweep(config, normalize_task=normalize_task), directory=target)


def require_sweep(source: str) -> Path:
    """The directory of an existing sweep; raises SweepDirectoryError for anything else."""
    path = Path(source)
    if not (path / JOURNAL_FILE).is_file():
        raise SweepDirectoryError(
            f"directory={path} holds no sweep ({JOURNAL_FILE} is missing); give the directory that "
            f"`gasweep run` named"
        )
    return path
