"""A sweep directory as a driver leaves it, with planted curves and step times instead of training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from gasweep.config.load import config_to_dict, config_to_yaml, parse_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.results.journal import Journal
from gasweep.results.records import Environment, EvalRecord, RunResult, Throughput
from gasweep.results.states import RunState

TARGET = 0.5
MIN_STEPS, CRITICAL = 100.0, 64.0


def planted_config(**changes: Any) -> SweepConfig:
    data: dict[str, Any] = {
        "name": "planted",
        "task": {"_target_": "gasweep.tasks.NoisyQuadratic"},
        "grid": {
            "micro_batch_size": [4, 16],
            "world_size": [1, 2],
            "accumulation_steps": [1, 4, 16],
            "learning_rate": [0.03, 0.1, 0.3],
            "seed": [0, 1, 2],
        },
        "target": {"metric": "eval_loss", "value": TARGET},
        "budget": {"max_examples": 1_000_000},
    }
    return parse_sweep_config({**data, **changes})


def planted_sweep(
    directory: Path, *, unfinished: int = 0, throughput_of_training: bool = False, **changes: Any
) -> Path:
    """Write a whole sweep; the last `unfinished` runs are left waiting.

    throughput_of_training: convergence runs carry a throughput too.
    """
    config = planted_config(**changes)
    plan = plan_sweep(config)
    specs = [*plan.runs, *plan.probes]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sweep.yaml").write_text(config_to_yaml(config))
    with Journal.create_or_open(directory) as journal, journal.transaction():
        journal.record_config(config_to_dict(config), {"code_revision": "abc"})
        journal.add_runs(specs)
        for spec in specs[: len(specs) - unfinished]:
            journal.transition(spec.run_id, RunState.RUNNING)
            journal.start_attempt(spec.run_id)
            journal.record_result(
                _probe(spec) if spec.kind == "probe" else _convergence(spec, throughput_of_training)
            )
    return directory


def planted_steps(spec: RunSpec) -> float:
    """Steps to target by the law, scattered by the seed, worse away from the best rate 0.1."""
    scatter = np.random.default_rng([spec.effective_batch_size, spec.seed]).normal(0, 0.03)
    off = 1 + 0.2 * math.log(spec.learning_rate / 0.1) ** 2
    width = 1 + float(spec.axes.get("task.dimension", 0)) / 1000
    return width * MIN_STEPS * (1 + CRITICAL / spec.effective_batch_size) * off * math.exp(scatter)


def planted_seconds(spec: RunSpec) -> float:
    layout = spec.layout
    speed = 2.0 if spec.axes.get("strategy") == "fsdp" else 1.0
    sync = 0.002 if layout.world_size > 1 else 0.0
    return speed * (0.001 + layout.accumulation_steps * (0.0005 + 1e-4 * layout.micro_batch_size) + sync)


def _convergence(spec: RunSpec, timed: bool) -> RunResult:
    steps = planted_steps(spec)
    at = sorted({0, *(max(round(steps * share), 1) for share in (0.25, 0.5, 0.8, 0.95, 1.0, 1.05))})
    losses = [2.0 if s == 0 else TARGET * (steps / s) ** 0.7 for s in at]
    size = spec.effective_batch_size
    evaluations = [
        EvalRecord(optimizer_step=s, contributions=s * size, metrics={"eval_loss": loss})
        for s, loss in zip(at, losses, strict=True)
    ]
    return _result(
        spec, optimizer_steps=at[-1], evaluations=evaluations, throughput=_throughput(spec) if timed else None
    )


def _probe(spec: RunSpec) -> RunResult:
    return _result(spec, optimizer_steps=10, evaluations=[], throughput=_throughput(spec))


def _throughput(spec: RunSpec) -> Throughput:
    seconds = planted_seconds(spec)
    return Throughput(
        num_timed_optimizer_steps=10,
        seconds_per_optimizer_step=seconds,
        seconds_per_optimizer_step_low=0.97 * seconds,
        seconds_per_optimizer_step_high=1.05 * seconds,
        examples_per_s=spec.effective_batch_size / seconds,
        tokens_per_s=None,
        bytes_per_optimizer_step=0,
        bytes_per_optimizer_step_unsaved=0,
        control_bytes_per_optimizer_step=0,
        peak_memory_bytes=(100 + spec.layout.micro_batch_size) * 2**20,
    )


def _result(spec: RunSpec, **fields: Any) -> RunResult:
    steps = fields["optimizer_steps"]
    return RunResult(
        run_id=spec.run_id,
        state=RunState.REACHED,
        reason=None,
        attempted_optimizer_steps=steps,
        contributions=steps * spec.effective_batch_size,
        distinct_examples=steps * spec.effective_batch_size,
        parameter_sha256=None,
        environment=Environment(hostname="host", device="cpu", num_threads=1, versions={"torch": "2.8.0"}),
        wall_s=0.004 * steps,
        layout={
            "micro_batch_size": spec.layout.micro_batch_size,
            "world_size": spec.layout.world_size,
            "accumulation_steps": spec.layout.accumulation_steps,
        },
        **fields,
    )
