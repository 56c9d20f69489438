"""Records kept beside a run's checkpoints until the journal has them.

A checkpoint may be newer than what the driver had heard when it, or the worker, was killed. The attempt that
continues from it does not repeat the steps in between, so their records would be missing from the run's
curve. The worker therefore appends each batch to a file before it hands it on; whoever ends the attempt in
the journal reads it first.

Survives the death of any process. A node that loses power may lose the last seconds: nothing is synced here.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TextIO

from gasweep.results.journal import Journal
from gasweep.results.records import EvalRecord, StepRecord


class Spool:
    """One attempt's file; a sink that is given everything before anyone else."""

    def __init__(self, run_directory: Path, attempt: int) -> None:
        run_directory.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = spool_path(run_directory, attempt).open("w", encoding="utf-8")

    def put(self, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        line = {
            "steps": [dataclasses.asdict(record) for record in steps],
            "evaluations": [dataclasses.asdict(record) for record in evaluations],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def spool_path(run_directory: Path, attempt: int) -> Path:
    return run_directory / f"records.{attempt}.jsonl"


def recover_records(journal: Journal, run_directory: Path, run_id: str, attempt: int) -> None:
    """Give the journal what an attempt measured, told before or not; the same records again change nothing.

    Call `remove_spool` once that is durable.
    """
    steps, evaluations = read_spool(spool_path(run_directory, attempt))
    journal.append(run_id, attempt, steps=steps, evaluations=evaluations)


def remove_spool(run_directory: Path, attempt: int) -> None:
    spool_path(run_directory, attempt).unlink(missing_ok=True)


def read_spool(path: Path) -> tuple[list[StepRecord], list[EvalRecord]]:
    """What a spool holds; a torn last line, of a process killed while it wrote, is left out."""
    steps: list[StepRecord] = []
    evaluations: list[EvalRecord] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return steps, evaluations
    for line in lines:
        try:
            batch = json.loads(line)
            steps += [StepRecord(**record) for record in batch["steps"]]
            evaluations += [EvalRecord(**record) for record in batch["evaluations"]]
        except (ValueError, TypeError, KeyError):
            break
    return steps, evaluations
