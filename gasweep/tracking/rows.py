"""Records as the rows, config and summary that a tracking service shows; keys follow the vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.analysis.noise_scale_ema import SmoothedNoise
from gasweep.analysis.noise_scale_records import noise_measurements
from gasweep.config.run_spec import RunSpec
from gasweep.results.columns import seconds_cells
from gasweep.results.records import EvalRecord, RunResult, StepRecord, Throughput

Row = dict[str, float | int]


def merge_rows(
    steps: Iterable[StepRecord], evaluations: Iterable[EvalRecord], *, noise: SmoothedNoise
) -> Iterator[tuple[int, Row]]:
    """One row per optimizer step, in order, an evaluation beside the step it follows.

    noise: of the steps sent before; where |G|² averages above 0 a measured step's row holds
        `noise_scale_smoothed` beside its own two signed parts.
    """
    rows: dict[int, Row] = {}
    for record in steps:
        rows[record.optimizer_step] = step_row(record) | _noise_row(record, noise)
    for evaluation in evaluations:
        row = rows.setdefault(evaluation.optimizer_step, _axes(evaluation))
        row.update(evaluation.metrics)
    yield from sorted(rows.items())


def step_row(record: StepRecord) -> Row:
    """What one optimizer step logs; what is None is left out, never sent as 0 or NaN."""
    sent = {
        "loss": record.loss,
        "learning_rate": record.learning_rate,
        "grad_norm": record.grad_norm,
        "seconds_per_optimizer_step": record.seconds,
        "examples_per_s": record.examples_per_s,
        "tokens_per_s": record.tokens_per_s,
        "bytes_on_wire": record.bytes_on_wire,
        "bytes_saved_by_no_sync": record.bytes_saved,
        "saving_from_no_sync": _saving(record.bytes_on_wire, record.bytes_saved),
    }
    row = _axes(record)
    row.update({key: value for key, value in sent.items() if value is not None})
    row.update(record.extra)
    return row


def run_name(spec: RunSpec) -> str:
    """A short display name, e.g. "B64 8x2x4 lr0.1 seed0"."""
    axes = "".join(f" {path}={value}" for path, value in spec.axes.items())
    kind = "probe " if spec.kind == "probe" else ""
    return f"{kind}B{spec.effective_batch_size} {spec.layout} lr{spec.learning_rate:g} seed{spec.seed}{axes}"


def run_config(spec: RunSpec) -> dict[str, Any]:
    """What a service filters and groups by, flat; the whole resolved config below `sweep_config`."""
    return {
        "run_id": spec.run_id,
        "kind": spec.kind,
        "effective_batch_size": spec.effective_batch_size,
        "micro_batch_size": spec.layout.micro_batch_size,
        "world_size": spec.layout.world_size,
        "accumulation_steps": spec.layout.accumulation_steps,
        "learning_rate": spec.learning_rate,
        "seed": spec.seed,
        "task": str(spec.config.task.get("_target_", "")).rpartition(".")[2],
        "strategy": spec.config.strategy,
        "precision": spec.config.precision,
        "determinism": spec.config.determinism,
        # Services read dots as nesting.
        "axes": {path.replace(".", "/"): value for path, value in spec.axes.items()},
        "sweep_config": dataclasses.asdict(spec.config),
    }


def run_summary(spec: RunSpec, result: RunResult | None, *, state: str) -> dict[str, Any]:
    """The run's last word: its state and, where it finished, what it came to."""
    summary: dict[str, Any] = {"state": state, "effective_batch_size": spec.effective_batch_size}
    if result is None:
        return summary
    summary |= {
        "reason": result.reason,
        "optimizer_steps": result.optimizer_steps,
        "attempted_optimizer_steps": result.attempted_optimizer_steps,
        "contributions": result.contributions,
        "distinct_examples": result.distinct_examples,
        "wall_s": result.wall_s,
        "parameter_sha256": result.parameter_sha256,
        "hostname": result.environment.hostname,
        "device": result.environment.device,
        "code_revision": result.environment.code_revision,
    }
    if result.throughput is not None:
        measured = dataclasses.asdict(result.throughput) | seconds_cells(result.throughput)
        measured["saving_from_no_sync"] = _saving(
            result.throughput.bytes_per_optimizer_step,
            result.throughput.bytes_per_optimizer_step_unsaved - result.throughput.bytes_per_optimizer_step,
        )
        measured["communication"] = _communication(result.throughput)
        summary["throughput"] = {key: value for key, value in measured.items() if value is not None}
    return {key: value for key, value in summary.items() if value is not None}


def _communication(throughput: Throughput) -> dict[str, dict[str, dict[str, int]]]:
    """Calls and bytes per optimizer step by group of ranks, then by collective and dtype."""
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for sent in throughput.communication:
        name = "_".join([*(["control"] if sent.control else []), sent.collective, sent.dtype])
        groups.setdefault(sent.group, {})[name] = {"calls": sent.calls, "num_bytes": sent.num_bytes}
    return groups


def _noise_row(record: StepRecord, noise: SmoothedNoise) -> Row:
    row: Row = {}
    for found in noise_measurements([record]):
        smoothed = noise.update(found) if isinstance(found, NoiseMeasurement) else None
        if smoothed is not None:
            row["noise_scale_smoothed"] = smoothed
    return row


def _axes(record: StepRecord | EvalRecord) -> Row:
    return {"optimizer_step": record.optimizer_step, "contributions": record.contributions}


def _saving(on_wire: int, saved: int) -> float | None:
    """Share of the gradient traffic that `no_sync` avoided; None where there would be no traffic at all."""
    return saved / (on_wire + saved) if on_wire + saved > 0 else None
