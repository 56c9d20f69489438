"""The layout of a sweep directory, named in one place."""

from __future__ import annotations

from pathlib import Path

from gasweep.errors import SweepDirectoryError

JOURNAL_FILE = "journal.sqlite"
LOCK_FILE = "driver.lock"
SWEEP_FILE = "sweep.yaml"
RUNS_FOLDER = "runs"
WANDB_FOLDER = "wandb"
RESULT_FILE = "result.json"


def run_directory(directory: Path, run_id: str) -> Path:
    """Where a run's logs, checkpoints and result lie."""
    return directory / RUNS_FOLDER / run_id


def require_sweep_or_empty(directory: Path) -> None:
    """Raises SweepDirectoryError when `directory` is a file or holds files that are no sweep's.

    A mistyped --dir must not scatter a sweep over someone's home directory.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise SweepDirectoryError(f"directory={directory} is a file; give a directory with --dir")
    names = {entry.name for entry in directory.iterdir()}
    if names and not names & {JOURNAL_FILE, LOCK_FILE, SWEEP_FILE, RUNS_FOLDER}:
        raise SweepDirectoryError(
            f"directory={directory} holds files that are no sweep's (e.g. {min(names)}); "
            f"give a new or empty directory with --dir"
        )
