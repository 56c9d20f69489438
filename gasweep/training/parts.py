"""What one run's trainer is made of, and what one optimizer step of it runs.

These are the arguments that accumulators and gradient observers are given: plain data, no behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gasweep.batching.partition import StepPartition
from gasweep.config.run_spec import RunSpec
from gasweep.data.index_stream import IndexStream, Indices
from gasweep.tasks.base import Batch, Data, Task
from gasweep.training.precision import Precision
from gasweep.training.process import ProcessContext
from gasweep.training.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class TrainingParts:
    """Built once per run, before the first step.

    model: what `task.loss` is called with (a DDP wrapper, an FSDP module, or the module itself).
    module: the task's own module; under DDP it is inside `model`, elsewhere it is `model`.
    parameters: (name, tensor) that the optimizer updates and whose `.grad` an accumulator must fill: the
        module's trainable parameters in `module.named_parameters()` order, or, for a low-precision one, its
        fp32 main copy.
    """

    spec: RunSpec
    process: ProcessContext
    device: torch.device
    task: Task
    data: Data
    stream: IndexStream
    strategy: Strategy
    precision: Precision
    model: nn.Module
    module: nn.Module
    parameters: list[tuple[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One rank's group of one micro-step.

    optimizer_step: attempted optimizer steps before this one, the key of its randomness.
    micro_step: within the optimizer step, from 0.
    start: position in the effective batch of the group's first example, from 0.
    indices: data set indices, shape [n]; n may be 0 in a rank's last group.
    fetch: gives the examples at `indices` on the run's device; called when the group runs, so that memory
        does not grow with the accumulation steps. Keep nothing of it.
    num_items: what `task.count_items` said: examples, or valid tokens.
    """

    optimizer_step: int
    micro_step: int
    start: int
    indices: Indices
    fetch: Callable[[], Batch]
    num_items: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """One optimizer step as this rank runs it.

    contributions: stream position of the step's first example.
    micro_batches: this rank's groups, one per micro-step; every rank has equally many.
    num_items: items over all groups of all ranks: what the summed loss is divided by.
    """

    optimizer_step: int
    contributions: int
    partition: StepPartition
    micro_batches: list[MicroBatch]
    num_items: int
