"""Train one run: the entry that workers, torchrun and `python -m gasweep.training` share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import RunResult, Throughput
from gasweep.results.states import RunState
from gasweep.training.bitwise.environment import kernels_of
from gasweep.training.build import Trainer, build_trainer
from gasweep.training.checkpoint import CheckpointStore
from gasweep.training.convergence import ConvergenceRun
from gasweep.training.coupling import coupling_modules
from gasweep.training.environment import current_environment
from gasweep.training.fingerprint import parameter_sha256
from gasweep.training.optimizer import IMPLEMENTATION
from gasweep.training.peak_memory import PeakMemory
from gasweep.training.probe import Probe
from gasweep.training.process import ProcessContext, Sink, StopRequested
from gasweep.training.progress import RunProgress
from gasweep.training.throughput import flops_report, measured_throughput

WARMUP_STEPS = 3  # left out of a convergence run's throughput


def train_run(
    spec: RunSpec,
    *,
    process: ProcessContext,
    sink: Sink,
    run_directory: Path | None,
    should_stop: StopRequested,
) -> RunResult | None:
    """Train `spec` to its end, or measure it if it is a probe; the result on rank 0, None elsewhere.

    Every rank of the run calls it, with the default process group initialised where there are several.
    A convergence run continues from its last whole checkpoint under `run_directory`; None: it neither reads
    nor writes any. `should_stop` is asked on rank 0 after each optimizer step.

    Raises Interrupted, on every rank and after a checkpoint, when stopped; UserError subclasses for what the
    user can mend.
    """
    with kernels_of(spec, device=torch.device(process.device)):
        return _train(spec, process=process, sink=sink, run_directory=run_directory, should_stop=should_stop)


def _train(
    spec: RunSpec,
    *,
    process: ProcessContext,
    sink: Sink,
    run_directory: Path | None,
    should_stop: StopRequested,
) -> RunResult | None:
    trainer = build_trainer(spec, process=process)
    try:
        memory = PeakMemory(trainer.parts.device)
        if spec.kind == "probe":
            return _probe(trainer, sink=sink, should_stop=should_stop, memory=memory)
        store = None if run_directory is None else CheckpointStore(run_directory, trainer)
        return _converge(trainer, store=store, sink=sink, should_stop=should_stop, memory=memory)
    finally:
        trainer.parts.strategy.close()


def _converge(
    trainer: Trainer,
    *,
    store: CheckpointStore | None,
    sink: Sink,
    should_stop: StopRequested,
    memory: PeakMemory,
) -> RunResult | None:
    progress = (store.load() if store is not None else None) or RunProgress()
    run = ConvergenceRun(trainer, progress=progress, store=store, sink=sink, should_stop=should_stop)
    state, reason = run.run()
    trainer.parts.strategy.sync_buffers()
    result = _result(
        trainer,
        progress=progress,
        state=state,
        reason=reason,
        sha256=parameter_sha256(trainer.parts.strategy.full_state()),
        throughput=measured_throughput(
            run.step_seconds[WARMUP_STEPS:], trainer=trainer, stepper=run.stepper, memory=memory
        ),
    )
    if store is not None and state is not RunState.CENSORED:
        store.remove()
    return result if trainer.parts.process.rank == 0 else None


def _probe(
    trainer: Trainer, *, sink: Sink, should_stop: StopRequested, memory: PeakMemory
) -> RunResult | None:
    progress = RunProgress()
    probe = Probe(trainer, progress=progress, sink=sink, should_stop=should_stop)
    probe.run()
    result = _result(
        trainer,
        progress=progress,
        state=RunState.REACHED,
        reason=None,
        sha256=None,
        throughput=measured_throughput(
            probe.step_seconds,
            trainer=trainer,
            stepper=probe.stepper,
            memory=memory,
            seconds_split=probe.seconds_split,
        ),
    )
    return result if trainer.parts.process.rank == 0 else None


def _result(
    trainer: Trainer,
    *,
    progress: RunProgress,
    state: RunState,
    reason: str | None,
    sha256: str | None,
    throughput: Throughput | None,
) -> RunResult:
    parts = trainer.parts
    environment = current_environment(parts.device)
    return RunResult(
        run_id=parts.spec.run_id,
        state=state,
        reason=reason,
        optimizer_steps=progress.applied,
        attempted_optimizer_steps=progress.attempted,
        contributions=progress.contributions,
        distinct_examples=parts.stream.num_distinct(0, progress.contributions),
        evaluations=progress.evaluations,
        parameter_sha256=sha256,
        throughput=throughput,
        environment=environment,
        wall_s=progress.wall_s,
        layout=dataclasses.asdict(parts.spec.layout),
        extra={
            "strategy": parts.strategy.name,
            "optimizer_implementation": IMPLEMENTATION,
            "skipped_overflow": progress.skipped_overflow,
            "skipped_no_items": progress.skipped_no_items,
            "coupling_modules": coupling_modules(parts.module),
            **trainer.accumulator.report(),
            **flops_report(trainer, throughput, device_name=environment.device),
        },
    )
