"""A finished sweep with planted truth: S(B) = min_steps * (1 + critical / B) at the best learning rate."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import ScheduleConfig, SweepConfig, TargetConfig
from gasweep.results.journal import Journal
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.results.states import RunState
from tests.results.examples import make_result

MIN_STEPS, CRITICAL = 100.0, 64.0
TARGET = 0.5
BATCHES = (8, 16, 32, 64, 128, 256, 512)
RATES = (0.05, 0.1, 0.2)
LAYOUTS = ((8, 1), (4, 2))


def true_steps(batch: int, rate: float, seed: int) -> float:
    """Best at rate 0.1; seeds scatter by two percent."""
    penalty = 1.0 + 0.8 * math.log2(rate / 0.1) ** 2
    return MIN_STEPS * (1.0 + CRITICAL / batch) * penalty * (1.0 + 0.02 * (seed - 1))


def planted_config() -> SweepConfig:
    return SweepConfig(
        name="planted",
        task={"_target_": "gasweep.tasks.NoisyQuadratic"},
        target=TargetConfig(metric="eval_loss", value=TARGET),
    )


def spec_of(
    batch: int,
    rate: float,
    seed: int,
    *,
    layout: tuple[int, int] = (8, 1),
    axes: dict[str, Any] | None = None,
) -> RunSpec:
    b, n = layout
    tag = "-".join(map(str, (axes or {}).values()))
    return RunSpec(
        run_id=f"c{batch}-{rate}-{seed}-{b}x{n}{tag}",
        kind="convergence",
        effective_batch_size=batch,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=max(batch // (b * n), 1)),
        learning_rate=rate,
        seed=seed,
        config=planted_config(),
        axes=axes or {},
    )


def probe_of(batch: int, layout: tuple[int, int] = (8, 1)) -> RunSpec:
    spec = spec_of(batch, RATES[0], 0, layout=layout)
    return dataclasses.replace(spec, kind="probe", run_id=f"p{batch}-{layout[0]}x{layout[1]}")


def curve(steps: float, *, until: float) -> list[EvalRecord]:
    """A loss that falls linearly and crosses the target at `steps`, evaluated every 5 %."""
    records, at = [], 0
    while at <= until:
        loss = 1.0 - (1.0 - TARGET) * at / steps
        records.append(EvalRecord(optimizer_step=at, contributions=at, metrics={"eval_loss": loss}))
        at = max(at + 1, round(at * 1.05))
    return records


def plant(
    directory: Path,
    *,
    layouts: tuple[tuple[int, int], ...] = LAYOUTS[:1],
    axes: tuple[dict[str, Any], ...] = ({},),
    unfinished: int = 0,
    schedule: ScheduleConfig | None = None,
    noise: bool = False,
    seconds_mean: float | None = None,
) -> Path:
    """The sweep's directory; the last `unfinished` runs are still running.

    noise: whether convergence runs measured the noise scale.
    seconds_mean: of every probe's steps, whose median is 0.1; None: not recorded.
    """
    config = dataclasses.replace(planted_config(), schedule=schedule or ScheduleConfig())
    specs = [
        dataclasses.replace(spec_of(batch, rate, seed, layout=layout, axes=setting), config=config)
        for setting in axes
        for batch in BATCHES
        for rate in RATES
        for seed in range(3)
        for layout in layouts
    ]
    probes = [probe_of(batch) for batch in BATCHES]
    with Journal.create_or_open(directory) as journal, journal.transaction():
        journal.record_config(dataclasses.asdict(planted_config()), {"code_revision": "abc"})
        journal.add_runs([*probes, *specs])
        for spec in [*probes, *specs[: len(specs) - unfinished]]:
            _finish(journal, spec, noise=noise, seconds_mean=seconds_mean)
        for spec in specs[len(specs) - unfinished :]:
            journal.transition(spec.run_id, RunState.RUNNING)
            journal.append(spec.run_id, journal.start_attempt(spec.run_id), steps=_steps(spec, 3))
    return directory


def _finish(journal: Journal, spec: RunSpec, *, noise: bool, seconds_mean: float | None) -> None:
    journal.transition(spec.run_id, RunState.RUNNING)
    attempt = journal.start_attempt(spec.run_id)
    if spec.kind == "probe":
        probed = make_result(spec.run_id, optimizer_steps=20)
        assert probed.throughput is not None
        throughput = dataclasses.replace(probed.throughput, seconds_per_optimizer_step_mean=seconds_mean)
        journal.record_result(dataclasses.replace(probed, throughput=throughput))
        return
    # Layouts of one run differ by a thousandth, as floating-point reassociation makes them.
    wobble = 1.0 + 0.001 * (spec.layout.world_size - 1)
    steps = true_steps(spec.effective_batch_size, spec.learning_rate, spec.seed) * wobble
    evaluations = curve(steps, until=steps * 1.06)
    last = evaluations[-1].optimizer_step
    measured = noisy_steps(spec, last) if noise else _steps(spec, 3)
    journal.append(spec.run_id, attempt, steps=measured, evaluations=evaluations)
    journal.record_result(make_result(spec.run_id, optimizer_steps=last, evaluations=evaluations))


NOISE_SCALE = 40.0


def noisy_steps(spec: RunSpec, last: int) -> list[StepRecord]:
    """Every fifth step measured |G|² = 1 and tr Σ = NOISE_SCALE, both with scatter."""
    return [
        dataclasses.replace(
            record,
            extra={
                "grad_sq_norm": 1.0 + 0.1 * math.sin(record.optimizer_step),
                "grad_noise_trace": NOISE_SCALE * (1.0 + 0.1 * math.cos(record.optimizer_step)),
                "noise_num_groups": 4.0,
                "noise_num_examples": float(spec.effective_batch_size),
            }
            if record.optimizer_step % 5 == 0
            else {},
        )
        for record in _steps(spec, last)
    ]


def _steps(spec: RunSpec, count: int) -> list[StepRecord]:
    return [
        StepRecord(
            optimizer_step=i,
            contributions=i * spec.effective_batch_size,
            loss=1.0 / i,
            learning_rate=spec.learning_rate,
            examples_per_s=100.0,
        )
        for i in range(1, count + 1)
    ]
