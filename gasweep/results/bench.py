"""What a bench measured: each layout's step cost, beside its twin that syncs on every micro-step."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gasweep.analysis.cost import GridPoint
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.step_time import ProbePoint, StepTimeModel, fit_step_time, fraction_saved
from gasweep.results.columns import seconds_cells
from gasweep.results.reader import JournalReader
from gasweep.results.records import RunResult, Throughput
from gasweep.results.step_time import (
    grid_point,
    probe_point,
    step_cost,
    step_times,
)
from gasweep.results.stored import StoredRun


@dataclass(frozen=True, kw_only=True)
class BenchPoint:
    """One layout as measured.

    seconds: mean per optimizer step with its interval for a run there, as the cost to target takes it.
    unsaved: its twin with a sync on every micro-step; None where there is nothing to skip (N = 1 or G = 1) or
        the twin has no result.
    """

    run: StoredRun
    result: RunResult
    throughput: Throughput
    seconds: Estimate
    unsaved: Throughput | None

    @property
    def probe(self) -> ProbePoint:
        return probe_point(grid_point(self.run), self.throughput.mean_seconds)

    @property
    def seconds_saved(self) -> Estimate | None:
        """The share of the twin's mean step that skipping syncs saves; None without a twin."""
        if self.unsaved is None:
            return None
        return fraction_saved(step_cost(self.throughput), step_cost(self.unsaved))

    def to_dict(self) -> dict[str, Any]:
        """The JSON shape of a point of `gasweep bench`; fractions saved are of the syncing twin's cost."""
        own, twin = self.throughput, self.unsaved
        unsaved_bytes = own.bytes_per_optimizer_step_unsaved
        # 1 but for records from before rates went by the mean
        pace = self.run.effective_batch_size / own.mean_seconds / own.examples_per_s
        return {
            "micro_batch_size": self.run.micro_batch_size,
            "world_size": self.run.world_size,
            "accumulation_steps": self.run.accumulation_steps,
            "effective_batch_size": self.run.effective_batch_size,
            "axes": self.run.axes,
            "strategy": self.result.extra.get("strategy"),
            **seconds_cells(own),
            **_bounded("seconds_per_optimizer_step", self.seconds),
            "seconds_per_optimizer_step_unsaved": None if twin is None else twin.mean_seconds,
            "seconds_split": own.seconds_split,
            **_bounded("seconds_saved_fraction", self.seconds_saved),
            "bytes_per_optimizer_step": own.bytes_per_optimizer_step,
            "bytes_per_optimizer_step_unsaved": unsaved_bytes,
            "bytes_per_optimizer_step_unsaved_measured": None if twin is None else _wire(twin),
            "bytes_saved_fraction": _saved(own.bytes_per_optimizer_step, unsaved_bytes or None),
            "control_bytes_per_optimizer_step": own.control_bytes_per_optimizer_step,
            "collectives_per_optimizer_step": own.collectives_per_optimizer_step,
            "communication": [dataclasses.asdict(record) for record in own.communication],
            "examples_per_s": own.examples_per_s * pace,
            "tokens_per_s": _times(own.tokens_per_s, pace),
            "mfu": _times(self.result.extra.get("mfu"), pace),
            "model_flops_per_s_per_rank": _times(self.result.extra.get("model_flops_per_s_per_rank"), pace),
            "peak_memory_bytes": own.peak_memory_bytes,
            "peak_memory_bytes_unsaved": None if twin is None else twin.peak_memory_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """How the step-time model does on points it was not shown: each left out in turn.

    errors: |predicted / measured - 1| per predicted point. num_inside: measured inside the 95 % interval.
    """

    errors: list[float]
    num_inside: int

    def to_dict(self) -> dict[str, Any]:
        ordered = sorted(self.errors)
        return {
            "num_held_out": len(ordered),
            "median_error": ordered[len(ordered) // 2] if ordered else None,
            "max_error": ordered[-1] if ordered else None,
            "num_inside_interval": self.num_inside,
        }


def bench_points(reader: JournalReader) -> list[BenchPoint]:
    """The measured layouts of a bench's (or a sweep's) current probes, in grid order."""
    twins: dict[str, Throughput] = {}
    own: list[tuple[StoredRun, RunResult, Throughput]] = []
    for run in reader.runs(current_only=True):
        result = reader.result(run.run_id) if run.kind == "probe" else None
        if result is None or result.throughput is None:
            continue
        if _is_twin(run):
            twins[_key(run)] = result.throughput
        else:
            own.append((run, result, result.throughput))
    times = _step_times([(run, throughput) for run, _, throughput in own])
    return [
        BenchPoint(
            run=run,
            result=result,
            throughput=throughput,
            seconds=times[run.run_id],
            unsaved=twins.get(_key(run)),
        )
        for run, result, throughput in own
    ]


def _step_times(probes: Sequence[tuple[StoredRun, Throughput]]) -> dict[str, Estimate]:
    """By run id; each setting of the extra axes has a law of its own."""
    settings: dict[str, dict[GridPoint, Throughput]] = {}
    for run, throughput in probes:
        settings.setdefault(str(run.axes), {})[grid_point(run)] = throughput
    times = {axes: step_times(measured) for axes, measured in settings.items()}
    return {run.run_id: times[str(run.axes)][grid_point(run)].seconds for run, _ in probes}


def check_model(points: Sequence[BenchPoint]) -> tuple[StepTimeModel | None, ModelCheck]:
    """The step-time model of one setting's points, and its errors on each point left out in turn."""
    probes = [point.probe for point in points]
    errors, inside = [], 0
    for i, probe in enumerate(probes):
        model = fit_step_time(probes[:i] + probes[i + 1 :])
        estimate = None if model is None else model.predict(probe)
        if estimate is None or estimate.value is None or probe.seconds is None:
            continue
        errors.append(abs(estimate.value / probe.seconds - 1))
        inside += (estimate.low or 0.0) <= probe.seconds <= (estimate.high or float("inf"))
    return fit_step_time(probes), ModelCheck(errors=errors, num_inside=inside)


def _is_twin(run: StoredRun) -> bool:
    """Of a bench's pair, the one that syncs on every micro-step (where that makes a difference)."""
    return run.syncs_every_micro_step and run.world_size > 1 and run.accumulation_steps > 1


def _key(run: StoredRun) -> str:
    """What a pair has in common."""
    config = {
        key: value
        for key, value in run.spec["config"].items()
        if key in ("task", "optimizer", "precision", "determinism", "strategy")
    }
    options = dict(run.spec["config"]["strategy_options"], sync_every_micro_step=None)
    return json.dumps([config, options, run.spec["layout"], run.effective_batch_size], sort_keys=True)


def _bounded(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    sides = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), sides, strict=True))


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _wire(throughput: Throughput) -> int:
    return throughput.bytes_per_optimizer_step


def _saved(cost: float, without: float | None) -> float | None:
    return None if not without else 1 - cost / without
