"""Check the `.wandb` files of a sweep against its journal: `python -m gasweep.tracking.readback DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from gasweep.results.directory import WANDB_FOLDER
from gasweep.results.reader import JournalReader
from gasweep.results.stored import StoredRun
from gasweep.tracking.wandb_tracker import WandbFile, read_wandb_file

_CONFIG = (
    "kind",
    "effective_batch_size",
    "micro_batch_size",
    "world_size",
    "accumulation_steps",
    "learning_rate",
    "seed",
)


@dataclass(kw_only=True)
class ReadBack:
    """What the files hold; `problems` has a line for everything that is not as it should be."""

    num_runs: int = 0
    num_rows: int = 0
    num_evaluations: int = 0
    has_summary: bool = False
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        summary = "with" if self.has_summary else "without"
        found = (
            f"{self.num_runs} runs with {self.num_rows} rows and {self.num_evaluations} evaluations, "
            f"{summary} the summary run"
        )
        return "\n".join([*self.problems, f"{found}: {len(self.problems)} problems"])


def read_back(directory: Path) -> ReadBack:
    """Every finished run of the journal must be one W&B run: right group, job type and config, the journal's
    optimizer steps in order and once each over all its files, its evaluations, and an end.

    Assumes: `tracking.every_optimizer_steps` is 1, and no run was retried from an earlier step.
    """
    found = ReadBack()
    by_id: dict[str, list[WandbFile]] = {}
    for path in sorted((directory / WANDB_FOLDER).glob("*run-*/*.wandb")):
        file = read_wandb_file(path)
        # A driver killed while it opened a run leaves a file without even the run's id.
        if file.run_id:
            by_id.setdefault(file.run_id, []).append(file)
    with JournalReader.open(directory) as reader:
        sweep_id = reader.sweep_id
        groups = {file.group.rpartition("-")[2] for files in by_id.values() for file in files}
        if groups - {sweep_id}:
            found.problems.append(f"groups {sorted(groups)}: expected them to end in {sweep_id}")
        found.has_summary = bool(by_id.pop(f"{sweep_id}-summary", None))
        for run in reader.runs():
            files = by_id.pop(f"{sweep_id}-{run.run_id}", [])
            if run.finished:
                found.num_runs += 1
                found.problems += [
                    f"run {run.run_id}: {text}" for text in _compare(reader, run, files, found)
                ]
    found.problems += [f"{remote_id} is no run of the journal" for remote_id in by_id]
    return found


def main(arguments: Sequence[str]) -> int:
    """Print what was found; 1 when something is wrong."""
    found = read_back(Path(arguments[0]))
    sys.stdout.write(f"{found}\n")
    return 1 if found.problems else 0


def _compare(reader: JournalReader, run: StoredRun, files: Sequence[WandbFile], found: ReadBack) -> list[str]:
    if not files:
        return ["no file"]
    problems = []
    rows = [row for file in files for row in file.history]
    steps = [row["optimizer_step"] for row in rows]
    evaluated = [row["optimizer_step"] for row in rows if any(key.startswith("eval") for key in row)]
    found.num_rows += len(rows)
    found.num_evaluations += len(evaluated)
    if any(later <= earlier for earlier, later in pairwise(steps)):
        problems.append("optimizer steps repeat or go backwards")
    expected = sorted(
        {record.optimizer_step for record in reader.steps(run.run_id)}
        | {record.optimizer_step for record in reader.evaluations(run.run_id)}
    )
    if sorted(set(steps)) != expected:
        problems.append(f"{len(set(steps))} optimizer steps, the journal has {len(expected)}")
    if evaluated != [record.optimizer_step for record in reader.evaluations(run.run_id)]:
        problems.append("its evaluations are not the journal's")
    if files[-1].job_type != run.kind:
        problems.append(f"job type {files[-1].job_type!r} is not {run.kind!r}")
    wrong = [name for name in _CONFIG if files[-1].config.get(name) != getattr(run, name)]
    if wrong:
        problems.append(f"config differs in {', '.join(wrong)}")
    ended = [file for file in files if file.exit_code is not None]
    if not ended or ended[-1].summary.get("state") != run.state.value:
        problems.append(f"its last state is not {run.state.value!r}")
    return problems


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
