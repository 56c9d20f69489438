"""Small valid records and an open journal, for tests of whatever reads them."""

from __future__ import annotations

from pathlib import Path

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.results.journal import Journal
from gasweep.results.records import (
    CommunicationRecord,
    Environment,
    EvalRecord,
    RunResult,
    StepRecord,
    Throughput,
)
from gasweep.results.states import RunState


def make_spec(
    run_id: str, *, learning_rate: float = 0.1, layout: tuple[int, int, int] = (8, 1, 2)
) -> RunSpec:
    b, n, g = layout
    return RunSpec(
        run_id=run_id,
        kind="convergence",
        effective_batch_size=b * n * g,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=g),
        learning_rate=learning_rate,
        seed=0,
        config=SweepConfig(name="t"),
        axes={"task.width": 64},
    )


def make_step(optimizer_step: int, *, loss: float | None = 1.0) -> StepRecord:
    return StepRecord(
        optimizer_step=optimizer_step, contributions=16 * optimizer_step, loss=loss, learning_rate=0.1
    )


def make_eval(optimizer_step: int, *, loss: float = 1.0) -> EvalRecord:
    return EvalRecord(
        optimizer_step=optimizer_step, contributions=16 * optimizer_step, metrics={"eval_loss": loss}
    )


def make_result(
    run_id: str,
    *,
    state: RunState = RunState.REACHED,
    optimizer_steps: int = 10,
    evaluations: list[EvalRecord] | None = None,
) -> RunResult:
    return RunResult(
        run_id=run_id,
        state=state,
        reason=None if state is RunState.REACHED else "why",
        optimizer_steps=optimizer_steps,
        attempted_optimizer_steps=optimizer_steps,
        contributions=16 * optimizer_steps,
        distinct_examples=16 * optimizer_steps,
        evaluations=evaluations or [],
        parameter_sha256="ab" * 32,
        throughput=Throughput(
            num_timed_optimizer_steps=5,
            seconds_per_optimizer_step=0.1,
            seconds_per_optimizer_step_low=0.05,
            seconds_per_optimizer_step_high=0.3,
            examples_per_s=160.0,
            tokens_per_s=None,
            bytes_per_optimizer_step=10,
            bytes_per_optimizer_step_unsaved=20,
            control_bytes_per_optimizer_step=1,
            communication=[
                CommunicationRecord(
                    collective="all_reduce",
                    dtype="float32",
                    group="data",
                    num_ranks=2,
                    control=control,
                    calls=1,
                    num_bytes=1 if control else 10,
                )
                for control in (False, True)
            ],
        ),
        environment=Environment(hostname="h", device="cpu", num_threads=1, versions={"torch": "2"}),
        wall_s=1.5,
        layout={"micro_batch_size": 8, "world_size": 1, "accumulation_steps": 2},
    )


def started(directory: Path, *run_ids: str) -> Journal:
    journal = Journal.create_or_open(directory)
    journal.add_runs([make_spec(run_id) for run_id in run_ids])
    for run_id in run_ids:
        journal.transition(run_id, RunState.RUNNING)
        assert journal.start_attempt(run_id) == 1
    return journal
