"""From a stream position to what this rank runs in one optimizer step."""

from __future__ import annotations

import functools
import operator

import torch

from gasweep.batching.partition import StepPartition, partition_step
from gasweep.data.index_stream import Indices
from gasweep.errors import TaskError
from gasweep.tasks.base import Batch, move
from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts


class StepPlanner:
    """Cuts the effective batch over ranks and micro-steps, and agrees on its item count.

    unit: group boundaries fall on multiples of it (the grain of bitwise mode).
    """

    def __init__(self, parts: TrainingParts, *, unit: int = 1) -> None:
        self._parts = parts
        self._unit = unit
        self._items_per_example = parts.task.items_per_example()
        self._partition = functools.lru_cache(maxsize=8)(self._cut)

    def plan(
        self, *, optimizer_step: int, contributions: int, effective_batch_size: int, micro_batch_size: int
    ) -> StepPlan:
        """The step that takes stream positions contributions..contributions+B-1. Collective when the task
        cannot tell an example's items without looking at it."""
        partition = self._partition(effective_batch_size, micro_batch_size)
        bounds = partition.bounds[self._parts.process.rank]
        first, last = bounds[0][0], bounds[-1][1]
        mine = self._parts.stream.take(contributions + first, last - first)
        micro_batches = [
            self._micro_batch(optimizer_step, micro_step, start, mine[start - first : stop - first])
            for micro_step, (start, stop) in enumerate(bounds)
        ]
        return StepPlan(
            optimizer_step=optimizer_step,
            contributions=contributions,
            partition=partition,
            micro_batches=micro_batches,
            num_items=self._num_items(effective_batch_size, micro_batches),
        )

    def _cut(self, effective_batch_size: int, micro_batch_size: int) -> StepPartition:
        return partition_step(
            effective_batch_size=effective_batch_size,
            micro_batch_size=micro_batch_size,
            world_size=self._parts.process.world_size,
            unit=self._unit,
        )

    def _micro_batch(self, optimizer_step: int, micro_step: int, start: int, indices: Indices) -> MicroBatch:
        data, device = self._parts.data, self._parts.device
        if self._items_per_example is not None:
            num_items = len(indices) * self._items_per_example

            def fetch() -> Batch:
                return move(data.batch(indices), device)
        else:
            # Counting needs the examples, so they wait on the CPU until their group runs.
            on_cpu = data.batch(indices)
            num_items = self._count(on_cpu)

            def fetch() -> Batch:
                return move(on_cpu, device)

        return MicroBatch(
            optimizer_step=optimizer_step,
            micro_step=micro_step,
            start=start,
            indices=indices,
            fetch=fetch,
            num_items=num_items,
        )

    def _count(self, batch: Batch) -> int:
        count = self._parts.task.count_items(batch)
        try:
            return operator.index(count)
        except TypeError:
            raise TaskError(f"task.count_items returned {count!r}; it must be a whole number") from None

    def _num_items(self, effective_batch_size: int, micro_batches: list[MicroBatch]) -> int:
        if self._items_per_example is not None:
            return effective_batch_size * self._items_per_example
        own = sum(micro_batch.num_items for micro_batch in micro_batches)
        if self._parts.process.world_size == 1:
            return own
        # Counts live on the CPU and are agreed there: a GPU need not be waited for.
        return int(self._parts.strategy.all_reduce(torch.tensor(own, dtype=torch.int64)))
