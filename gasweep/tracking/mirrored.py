"""Which runs a tracking service has been given to their end: a line each in a file of the sweep."""

from __future__ import annotations

from pathlib import Path

from gasweep.results.directory import WANDB_FOLDER

_FILE = "mirrored_runs.txt"


def mirrored_runs(directory: Path) -> set[str]:
    """Run ids; empty when nothing was mirrored yet."""
    try:
        return set((directory / WANDB_FOLDER / _FILE).read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return set()


def add_mirrored_run(directory: Path, run_id: str) -> None:
    """Remember a run. A line lost in a crash costs a second, empty file of that run, nothing else."""
    path = directory / WANDB_FOLDER / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{run_id}\n")
