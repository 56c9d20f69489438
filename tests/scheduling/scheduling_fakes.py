"""Trainers that behave as a run's `task` section says, in place of the real one."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from gasweep.config.run_spec import RunSpec
from gasweep.errors import RefusedError
from gasweep.results.records import Environment, EvalRecord, RunResult, StepRecord
from gasweep.results.states import RunState
from gasweep.training.process import Interrupted, ProcessContext

ENTRY = "scheduling_fakes:train"


def step_record(step: int, *, batch: int = 4) -> StepRecord:
    return StepRecord(
        optimizer_step=step, contributions=step * batch, loss=1.0 / step, learning_rate=0.1, seconds=0.001
    )


def make_result(spec: RunSpec, *, steps: int = 5, **extra: Any) -> RunResult:
    """The result that a run of `spec` always has."""
    evaluation = EvalRecord(
        optimizer_step=steps,
        contributions=steps * spec.effective_batch_size,
        metrics={"eval_loss": 1.0 / max(steps, 1)},
    )
    return RunResult(
        run_id=spec.run_id,
        state=RunState.REACHED,
        reason=None,
        optimizer_steps=steps,
        attempted_optimizer_steps=steps,
        contributions=steps * spec.effective_batch_size,
        distinct_examples=steps * spec.effective_batch_size,
        evaluations=[evaluation],
        parameter_sha256=hashlib.sha256(f"{spec.run_id} {steps}".encode()).hexdigest(),
        throughput=None,
        environment=Environment(hostname=socket.gethostname(), device="cpu", num_threads=1, versions={}),
        wall_s=0.0,
        layout={"world_size": spec.layout.world_size},
        extra=extra,
    )


def train(
    spec: RunSpec,
    *,
    process: ProcessContext,
    sink: Any,
    run_directory: Path,
    should_stop: Any,
) -> RunResult | None:
    """Take `steps` steps of `seconds`; misbehave at step `at` on rank `rank` as `behaviour` says.

    `attempts`: misbehave only in the first so many attempts. `torch`: use collectives.
    """
    task = spec.config.task
    steps, seconds, at = task.get("steps", 5), task.get("seconds", 0.0), task.get("at", 2)
    print(f"hello from rank {process.rank}")
    wicked = process.rank == task.get("rank", 0) and _is_early(spec, run_directory, process)
    total = 0.0
    for step in range(1, steps + 1):
        if should_stop():
            raise Interrupted(f"run {spec.run_id} was asked to stop at optimizer step {step - 1}")
        if wicked and step == at:
            _misbehave(task["behaviour"], should_stop)
        if process.world_size > 1:
            total = _agree(float(task.get("value", 1)) * (process.rank + 1))
        time.sleep(seconds)
        sink(steps=[step_record(step, batch=spec.effective_batch_size)], evaluations=[])
    return make_result(spec, steps=steps, pid=os.getpid(), total=total, **_threads(task))


def _is_early(spec: RunSpec, run_directory: Path, process: ProcessContext) -> bool:
    limit = spec.config.task.get("attempts")
    if limit is None:
        return True
    marks = run_directory / f"attempts.rank{process.rank}"
    with marks.open("a") as file:
        file.write("x")
    return len(marks.read_text()) <= limit


def _misbehave(behaviour: str, should_stop: Any) -> None:
    if behaviour == "raise":
        raise ValueError("the task is broken\nwith a second line")
    if behaviour == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if behaviour == "refuse":
        raise RefusedError("determinism=bitwise cannot be kept here; use fast")
    if behaviour == "exit":
        os._exit(9)
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if behaviour == "hang":
        while True:
            time.sleep(0.05)
    if behaviour == "spin":
        while not should_stop():
            time.sleep(0.01)
    if behaviour == "pollute":
        _pollute()
    if behaviour == "leave":
        raise SystemExit(3)


def _pollute() -> None:
    import random

    import numpy as np
    import torch

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    os.environ["POLLUTED"] = "1"
    os.chdir("/")


def _agree(value: float) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor.item())


def _threads(task: dict[str, Any]) -> dict[str, Any]:
    if not task.get("report_threads"):
        return {}
    import torch

    return {
        "threads": torch.get_num_threads(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "nice": os.nice(0),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
    }
