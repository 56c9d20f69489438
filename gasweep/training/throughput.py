"""What an optimizer step costs: times, traffic, memory, FLOPs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gasweep.results.records import CommunicationRecord, Throughput, mean_error_blocks
from gasweep.training.advance import Stepper
from gasweep.training.build import Trainer
from gasweep.training.meter import StepTraffic
from gasweep.training.peak_memory import PeakMemory

PEAK_FLOPS = {
    # name fragment -> dense FLOP/s in bf16/fp16 and in fp32 (TF32 off), from the vendor's data sheets
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
}


def measured_throughput(
    seconds: list[float],
    *,
    trainer: Trainer,
    stepper: Stepper,
    memory: PeakMemory,
    seconds_split: dict[str, float] | None = None,
) -> Throughput | None:
    """Mean, median and 5 %-95 % range of `seconds` per optimizer step, rates by the mean, the last step's
    traffic; None when no step was timed. Collective."""
    peak = _largest_over_ranks(memory.read(), trainer=trainer)
    if not seconds:
        return None
    low, median, high = (float(x) for x in np.quantile(seconds, [0.05, 0.5, 0.95]))
    mean = float(np.mean(seconds))
    rate = trainer.parts.spec.effective_batch_size / mean
    tokens, traffic = stepper.tokens_per_example, stepper.traffic
    return Throughput(
        num_timed_optimizer_steps=len(seconds),
        seconds_per_optimizer_step=median,
        seconds_per_optimizer_step_low=low,
        seconds_per_optimizer_step_high=high,
        examples_per_s=rate,
        tokens_per_s=None if tokens is None else rate * tokens,
        bytes_per_optimizer_step=traffic.model.total_bytes,
        bytes_per_optimizer_step_unsaved=traffic.unsynced_bytes,
        control_bytes_per_optimizer_step=traffic.control.total_bytes,
        collectives_per_optimizer_step=dict(traffic.model.calls),
        peak_memory_bytes=peak,
        seconds_per_optimizer_step_mean=mean,
        seconds_per_optimizer_step_mean_error=_mean_error(seconds),
        seconds_split=seconds_split or {},
        communication=communication_records(traffic, trainer.parts.strategy.meter.group_sizes),
    )


def communication_records(traffic: StepTraffic, group_sizes: Mapping[str, int]) -> list[CommunicationRecord]:
    """`traffic` by kind of collective, model traffic first; no groups of one rank, which send nothing."""
    return [
        CommunicationRecord(
            collective=kind.name,
            dtype=str(kind.dtype).removeprefix("torch."),
            group=kind.group,
            num_ranks=group_sizes[kind.group],
            control=is_control,
            calls=sent.calls,
            num_bytes=sent.num_bytes,
        )
        for is_control, part in ((False, traffic.model), (True, traffic.control))
        for kind, sent in part.by_collective.items()
        if group_sizes[kind.group] > 1
    ]


def _mean_error(seconds: list[float]) -> float | None:
    """Standard error of the mean, from the means of blocks; None where there are too few steps for that."""
    num_blocks = mean_error_blocks(len(seconds))
    if not num_blocks:
        return None
    means = [float(np.mean(block)) for block in np.array_split(seconds, num_blocks)]
    return statistics.stdev(means) / math.sqrt(num_blocks)


def flops_report(trainer: Trainer, throughput: Throughput | None, *, device_name: str) -> dict[str, Any]:
    """Model FLOPs per example and per second and rank, and the fraction of the device's peak (MFU) where that
    is known. Forward and backward only: what activation checkpointing recomputes is no model FLOP.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1: 6 FLOPs per parameter and token (or example,
        where there are no tokens); a task may say better.
    """
    if throughput is None:
        return {}
    parts = trainer.parts
    per_example = parts.task.flops_per_example(parts.module)
    if per_example is None:
        num_parameters = sum(p.numel() for p in parts.module.parameters())
        tokens = throughput.tokens_per_s
        per_example = 6.0 * num_parameters * (1.0 if tokens is None else tokens / throughput.examples_per_s)
    per_rank = per_example * throughput.examples_per_s / parts.process.world_size
    peak = _peak_flops(device_name, parts.precision.name)
    return {
        "model_flops_per_example": per_example,
        "model_flops_per_s_per_rank": per_rank,
        "mfu": None if peak is None else per_rank / peak,
    }


def _peak_flops(device_name: str, precision: str) -> float | None:
    for fragment, (low_precision, single) in PEAK_FLOPS.items():
        if fragment in device_name:
            return {"bf16": low_precision, "fp16": low_precision, "fp32": single}.get(precision)
    return None


def _largest_over_ranks(value: int | None, *, trainer: Trainer) -> int | None:
    process = trainer.parts.process
    if process.world_size == 1:
        return value
    row = torch.zeros(process.world_size, dtype=torch.int64)
    row[process.rank] = -1 if value is None else value
    values = trainer.parts.strategy.all_reduce(row).tolist()
    return None if -1 in values else int(max(values))
