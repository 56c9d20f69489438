"""The tracker that a config asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import SweepConfig, WandbConfig
from gasweep.results.reader import JournalReader
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.tracking.background import BackgroundTracker
from gasweep.tracking.base import NoTracker, Tracker
from gasweep.tracking.mirror import MirrorTracker
from gasweep.tracking.mirrored import mirrored_runs


def create_tracker(config: SweepConfig, directory: Path) -> Tracker:
    """The tracker of the sweep in `directory`; it never raises and never blocks. Its journal must exist by
    the tracker's first call.

    `tracking.wandb: null` or mode `disabled` (or WANDB_MODE=disabled): tracks nothing.
    """
    wandb = config.tracking.wandb
    if wandb is None or effective_mode(wandb) == "disabled":
        return NoTracker()
    return BackgroundTracker(lambda warn: wandb_tracker(config, directory, warn=warn))


def catch_up(tracker: Tracker, directory: Path) -> int:
    """Mirror the runs that ended without their tracker: their driver was killed, or there was none.

    Returns how many. Runs that W&B has already been given to their end are left alone.
    """
    done = mirrored_runs(directory)
    with JournalReader.open(directory) as reader:
        missing = [run for run in reader.runs() if run.finished and run.run_id not in done]
        for run in missing:
            tracker.start_run(RunSpec.from_dict(run.spec))
            tracker.finish_run(run.run_id, reader.result(run.run_id), state=run.state.value)
    return len(missing)


def wandb_tracker(config: SweepConfig, directory: Path, *, warn: Callable[[str], object]) -> Tracker:
    """W&B on the calling thread. Raises MissingDependencyError when wandb is not installed."""
    from gasweep.tracking.wandb_tracker import WandbClient

    wandb = config.tracking.wandb or WandbConfig()
    with JournalReader.open(directory) as reader:
        sweep_id = reader.sweep_id
    client = WandbClient(
        WandbConfig(entity=wandb.entity, project=wandb.project, tags=wandb.tags, mode=effective_mode(wandb)),
        directory=directory,
        sweep_name=config.name,
        sweep_id=sweep_id,
        warn=warn,
    )

    def history(run_id: str) -> tuple[list[StepRecord], list[EvalRecord]]:
        with JournalReader.open(directory) as reader:
            if not reader.knows(run_id):
                return [], []
            return reader.steps(run_id), reader.evaluations(run_id)

    return MirrorTracker(
        client,
        history=history,
        every_optimizer_steps=config.tracking.every_optimizer_steps,
        warn=warn,
    )


def effective_mode(config: WandbConfig) -> str:
    """`config.mode`, or what WANDB_MODE says when that is less public (offline, disabled)."""
    order = ("online", "offline", "disabled")
    environment = os.environ.get("WANDB_MODE", "online")
    asked = environment if environment in order else "online"
    return max(config.mode, asked, key=order.index)
