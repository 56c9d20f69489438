"""`python -m gasweep.training CONFIG [key=value ...]`: train one point without Ray, W&B or a journal.

Under torchrun the started processes are the ranks. Of a grid with several points the first with as many ranks
as there are processes is trained, and said; overrides narrow the grid to another.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.rendezvous import rendezvous

from gasweep.config.load import load_sweep_config
from gasweep.config.plan import GridPoint, plan_sweep
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError, GasweepError
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.tasks.normalize import normalize_task
from gasweep.training.process import Interrupted, ProcessContext
from gasweep.training.reuse import join_group
from gasweep.training.run import train_run

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_intermixed_args(arguments)
    process = _process()
    try:
        config = load_sweep_config(options.config, options.overrides)
        spec, told = first_point(config, world_size=process.world_size)
        if process.rank == 0:
            _say(told)
        torch.set_num_threads(config.cluster.threads_per_worker)
        with _group(process, timeout_s=config.cluster.attempt_timeout_s), _stop_on_signal() as stop:
            result = train_run(
                spec,
                process=process,
                sink=_print_progress,
                run_directory=options.run_directory,
                should_stop=lambda: bool(stop),
            )
    except Interrupted as error:
        _say(str(error))
        return EXIT_INTERRUPTED
    except GasweepError as error:
        if options.debug:
            raise
        _say(f"error: {error}")
        return error.exit_code
    if result is not None:
        sys.stdout.write(json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    return 0


def first_point(config: SweepConfig, *, world_size: int) -> tuple[RunSpec, str]:
    """The first grid point on `world_size` ranks as a run, and a line that says which of how many it is.

    Raises ConfigError when the grid has none.
    """
    plan = plan_sweep(config, normalize_task=normalize_task)
    fitting = [point for point in plan.points if point.layout.world_size == world_size]
    if not fitting:
        sizes = sorted({point.layout.world_size for point in plan.points})
        raise ConfigError(
            f"grid.world_size={sizes} has no point for the {world_size} process(es) that were started; use "
            f"torchrun --nproc-per-node {sizes[0]}, or grid.world_size=[{world_size}]"
        )
    point = fitting[0]
    spec = next(run for run in plan.runs if run.run_id == point.run_id)
    spec = dataclasses.replace(spec, layout=point.layout)
    return spec, _told(point, num_points=len(plan.points))


def _told(point: GridPoint, *, num_points: int) -> str:
    layout = point.layout
    text = (
        f"b x N x G = {layout}: effective batch size {point.effective_batch_size}, "
        f"learning rate {point.learning_rate:g}, seed {point.seed}"
    )
    if num_points == 1:
        return text
    return f"{text} (the first of {num_points} grid points that fits; narrow the grid for another)"


def _print_progress(*, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
    for record in evaluations:
        metrics = "  ".join(f"{name} {value:.5g}" for name, value in record.metrics.items())
        _say(f"optimizer step {record.optimizer_step:>7}  {metrics}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _process() -> ProcessContext:
    """This process as torchrun describes it in the environment; alone without it."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    return ProcessContext(rank=rank, world_size=world_size, device=device)


@contextlib.contextmanager
def _group(process: ProcessContext, *, timeout_s: float) -> Iterator[None]:
    if process.world_size == 1:
        yield
        return
    store, rank, world_size = next(iter(rendezvous("env://")))
    with join_group(
        rank=rank, world_size=world_size, store=store, device=process.device, timeout_s=timeout_s
    ):
        yield


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """A list that a first SIGINT or SIGTERM makes true; a second one ends the process at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gasweep.training", description=__doc__)
    parser.add_argument("config", metavar="CONFIG", help="a sweep's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. grid.learning_rate=0.1")
    parser.add_argument(
        "--run-directory",
        type=Path,
        default=None,
        metavar="DIR",
        help="write checkpoints here, and continue from the last one",
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback for an error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
