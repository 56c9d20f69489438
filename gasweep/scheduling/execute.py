"""One rank's part of one attempt, in this process: calls the trainer, says how it ended. No ray, no torch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from gasweep.config.run_spec import RunSpec
from gasweep.errors import TaskError
from gasweep.results.directory import RESULT_FILE
from gasweep.results.files import write_result
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.scheduling.backend import Cause
from gasweep.scheduling.failures import failed_outcome
from gasweep.scheduling.mailbox import Mailbox
from gasweep.scheduling.order import WorkOrder
from gasweep.scheduling.outcome import Outcome
from gasweep.scheduling.spool import Spool
from gasweep.training.process import Interrupted, ProcessContext, Sink

GroupFactory = Callable[[], AbstractContextManager[object]]


def execute(
    order: WorkOrder,
    *,
    device: str,
    mailbox: Mailbox,
    should_stop: Callable[[], bool],
    group: GroupFactory = nullcontext,
) -> Outcome:
    """Train; never raises.

    group: entered around the run; joins the process group where there are several ranks. Rank 0 writes
        result.json after it has been left, so that a result on the disk means that every rank was done.
    """
    result: RunResult | None = None
    try:
        with group():
            result = _train(order, device=device, mailbox=mailbox, should_stop=should_stop)
        if order.rank == 0:
            if result is None:
                raise TaskError(f"{order.entry} returned no result on rank 0")
            write_result(Path(order.run_directory) / RESULT_FILE, result)
    except Interrupted as error:
        return Outcome(cause=Cause.INTERRUPTED, message=str(error))
    except BaseException as error:
        return failed_outcome(error)
    return Outcome(result=result if order.rank == 0 else None)


def _train(
    order: WorkOrder, *, device: str, mailbox: Mailbox, should_stop: Callable[[], bool]
) -> RunResult | None:
    def asked() -> bool:
        mailbox.beat()
        return should_stop()

    spec = RunSpec.from_dict(order.spec)
    with _sink(order, spec, mailbox) as sink:
        result: RunResult | None = resolve(order.entry)(
            spec,
            process=ProcessContext(rank=order.rank, world_size=order.world_size, device=device),
            sink=sink,
            run_directory=Path(order.run_directory),
            should_stop=asked,
        )
    return result


@contextmanager
def _sink(order: WorkOrder, spec: RunSpec, mailbox: Mailbox) -> Iterator[Sink]:
    """Where a rank's measurements go: rank 0's to the driver, and first to the disk where the run has
    checkpoints (a probe has none)."""

    def discard(*, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        mailbox.beat()

    if order.rank != 0:
        yield discard
    elif spec.kind == "probe":
        yield mailbox.put
    else:
        with closing(Spool(Path(order.run_directory), order.attempt)) as spool:

            def keep_and_tell(*, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
                spool.put(steps=steps, evaluations=evaluations)
                mailbox.put(steps=steps, evaluations=evaluations)

            yield keep_and_tell


def header(order: WorkOrder, *, where: str) -> str:
    """The first line of an attempt in its log."""
    layout = RunSpec.from_dict(order.spec).layout
    return (
        f"--- run {order.run_id} attempt {order.attempt} rank {order.rank} of {order.world_size} "
        f"(b x N x G = {layout}) on {where}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}"
    )


def resolve(entry: str) -> Callable[..., Any]:
    """The function at "module:function"."""
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
