"""The columns of exported tables and the rows below them, one place for names and units."""

from __future__ import annotations

import json
from typing import Any

from gasweep.results.records import EvalRecord, RunResult, StepRecord, Throughput
from gasweep.results.stored import StoredRun

Column = tuple[str, type]

RUN_COLUMNS: list[Column] = [
    ("run_id", str),
    ("kind", str),
    ("state", str),
    ("reason", str),
    ("current", bool),
    ("effective_batch_size", int),
    ("micro_batch_size", int),
    ("world_size", int),
    ("accumulation_steps", int),
    ("sync_every_micro_step", bool),
    ("learning_rate", float),
    ("seed", int),
    ("num_attempts", int),
    ("optimizer_steps", int),
    ("attempted_optimizer_steps", int),
    ("contributions_examples", int),
    ("distinct_examples", int),
    ("wall_s", float),
    ("seconds_per_optimizer_step", float),
    ("seconds_per_optimizer_step_mean_error", float),
    ("seconds_per_optimizer_step_median", float),
    ("seconds_per_optimizer_step_5pct", float),
    ("seconds_per_optimizer_step_95pct", float),
    ("examples_per_s", float),
    ("tokens_per_s", float),
    ("bytes_per_optimizer_step", int),
    ("bytes_per_optimizer_step_unsaved", int),
    ("control_bytes_per_optimizer_step", int),
    ("peak_memory_bytes", int),
    ("parameter_sha256", str),
    ("hostname", str),
    ("device", str),
    ("num_threads", int),
    ("code_revision", str),
]

# With what tells runs apart, so that the file is a set of curves that `gasweep fit` reads as it is.
EVALUATION_AXES: list[Column] = [
    ("run_id", str),
    ("state", str),
    ("effective_batch_size", int),
    ("learning_rate", float),
    ("seed", int),
    ("optimizer_step", int),
    ("contributions_examples", int),
]

STEP_COLUMNS: list[Column] = [
    ("run_id", str),
    ("optimizer_step", int),
    ("contributions_examples", int),
    ("loss", float),
    ("learning_rate", float),
    ("grad_norm", float),
    ("seconds_per_optimizer_step", float),
    ("examples_per_s", float),
    ("tokens_per_s", float),
    ("bytes_on_wire", int),
    ("bytes_saved_by_no_sync", int),
    ("extra_json", str),
]


def run_row(run: StoredRun, result: RunResult | None) -> dict[str, Any]:
    """A run with, once it has ended, what it came to; extra axes below their dotted paths."""
    row: dict[str, Any] = {
        "run_id": run.run_id,
        "kind": run.kind,
        "state": run.state.value,
        "reason": run.reason,
        "current": run.current,
        "effective_batch_size": run.effective_batch_size,
        "micro_batch_size": run.micro_batch_size,
        "world_size": run.world_size,
        "accumulation_steps": run.accumulation_steps,
        "sync_every_micro_step": run.syncs_every_micro_step,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "num_attempts": run.num_attempts,
    }
    if result is not None:
        row |= _result_cells(result)
    return row | {path: _axis_text(value) for path, value in run.axes.items()}


def evaluation_row(run: StoredRun, record: EvalRecord) -> dict[str, Any]:
    """One evaluation; a column per metric."""
    return {
        "run_id": run.run_id,
        "state": run.state.value,
        "effective_batch_size": run.effective_batch_size,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "optimizer_step": record.optimizer_step,
        "contributions_examples": record.contributions,
        **record.metrics,
    }


def step_row(run: StoredRun, record: StepRecord) -> dict[str, Any]:
    """One optimizer step; further measurements as a JSON object."""
    return {
        "run_id": run.run_id,
        "optimizer_step": record.optimizer_step,
        "contributions_examples": record.contributions,
        "loss": record.loss,
        "learning_rate": record.learning_rate,
        "grad_norm": record.grad_norm,
        "seconds_per_optimizer_step": record.seconds,
        "examples_per_s": record.examples_per_s,
        "tokens_per_s": record.tokens_per_s,
        "bytes_on_wire": record.bytes_on_wire,
        "bytes_saved_by_no_sync": record.bytes_saved,
        "extra_json": json.dumps(record.extra) if record.extra else None,
    }


def seconds_cells(throughput: Throughput) -> dict[str, Any]:
    """Seconds per optimizer step under the names that tables and exports give them: the mean has the plain
    one, as everywhere; median and quantiles are of single steps."""
    return {
        "seconds_per_optimizer_step": throughput.mean_seconds,
        "seconds_per_optimizer_step_mean_error": throughput.seconds_per_optimizer_step_mean_error,
        "seconds_per_optimizer_step_median": throughput.seconds_per_optimizer_step,
        "seconds_per_optimizer_step_5pct": throughput.seconds_per_optimizer_step_low,
        "seconds_per_optimizer_step_95pct": throughput.seconds_per_optimizer_step_high,
    }


def _result_cells(result: RunResult) -> dict[str, Any]:
    cells: dict[str, Any] = {
        "optimizer_steps": result.optimizer_steps,
        "attempted_optimizer_steps": result.attempted_optimizer_steps,
        "contributions_examples": result.contributions,
        "distinct_examples": result.distinct_examples,
        "wall_s": result.wall_s,
        "parameter_sha256": result.parameter_sha256,
        "hostname": result.environment.hostname,
        "device": result.environment.device,
        "num_threads": result.environment.num_threads,
        "code_revision": result.environment.code_revision,
    }
    if result.throughput is not None:
        names = {name for name, _ in RUN_COLUMNS}
        measured = vars(result.throughput) | seconds_cells(result.throughput)
        cells |= {key: value for key, value in measured.items() if key in names}
    return cells


def _axis_text(value: Any) -> str:
    """An extra axis' value as one cell: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
