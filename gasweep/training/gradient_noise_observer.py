"""The gradient noise of a run's own steps, for its step records."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from gasweep.analysis.noise_scale import DUPLICATES, STRADDLES_EPOCH, NotMeasured
from gasweep.analysis.noise_scale_records import noise_fields
from gasweep.training.bitwise.grains import cut
from gasweep.training.gradient_noise_adam import adam_preconditioner
from gasweep.training.gradient_noise_cadence import Cadence
from gasweep.training.gradient_noise_hooks import leading_elements, shard_of
from gasweep.training.gradient_noise_ranks import RankTable, StepUnits
from gasweep.training.gradient_noise_recorded import Group
from gasweep.training.gradient_noise_recorder import NormRecorder
from gasweep.training.gradient_noise_sync import is_dtensor
from gasweep.training.observer import GradientObserver
from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts

SPLIT_EVERY = 16
"""Spacing where a measured step runs other groups than a plain one: fixed, since it must not depend on how
fast the machine is what a run computes, be it only its rounding."""


class NoiseObserver(GradientObserver):
    """Measures every k-th attempted step; each group, or in bitwise mode each grain, gives one norm.

    A step with one group is run as two halves. Steps that straddle an epoch or hold an example twice say
    nothing about independent draws: they are counted, not measured. Under `data.sampling=replacement` draws
    are independent, repeats included, so nothing is left out and nothing corrected.
    """

    def __init__(self, parts: TrainingParts, *, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(parts)
        config, process = parts.spec.config, parts.process
        self._optimizer = optimizer
        self._tensors = [tensor for _, tensor in parts.parameters]
        self._is_sharded = any(is_dtensor(tensor) for tensor in self._tensors)
        self._bitwise = config.determinism == "bitwise"
        self._every = config.noise_scale.every_optimizer_steps
        self._cadence = Cadence(every=self._every, overhead_fraction=config.noise_scale.overhead_fraction)
        self._recorder = NormRecorder(
            self._tensors,
            own_part=self._own_part if self._is_sharded else None,
            head_sizes=[leading_elements(tensor) for tensor in self._tensors],
        )
        names = [name for name, _ in parts.parameters]
        self._table = RankTable(
            names=names,
            labels=[parameter_label(name) for name in names] if config.noise_scale.parameter_groups else None,
            rank=process.rank,
            world_size=process.world_size,
            all_reduce=parts.strategy.all_reduce,
            device=parts.device,
        )
        self._by_items = parts.task.items_per_example() is None
        self._splits_at: int | None = None
        self._left_out: str | None = None
        self._loss_scale = 1.0
        self._asked_s: float | None = None
        self._hooks = contextlib.ExitStack()
        self._coming: Iterator[Group] = iter(())

    @property
    def spacing(self) -> int | None:
        """k, the optimizer steps from one measured step to the next; None while it is being found."""
        if self._splits_at is not None:
            return self._every or SPLIT_EVERY
        return self._cadence.every

    def observes(self, *, optimizer_step: int, contributions: int, effective_batch_size: int) -> bool:
        self._hooks.close()
        self._splits_at = self._split_size(effective_batch_size)
        if self._splits_at is not None:
            return optimizer_step % (self._every or SPLIT_EVERY) == 0
        self._time_step()
        return self._cadence.is_due(optimizer_step)

    def max_group_size(self, micro_batch_size: int) -> int:
        return micro_batch_size if self._splits_at is None else self._splits_at

    def begin_step(self, plan: StepPlan) -> None:
        stream, size = self.parts.stream, plan.partition.effective_batch_size
        self._left_out = None
        if stream.straddles_epoch(plan.contributions, size):
            self._left_out = STRADDLES_EPOCH
        elif stream.sampling == "epoch" and stream.has_duplicates(plan.contributions, size):
            self._left_out = DUPLICATES
        adam = adam_preconditioner(self._optimizer, self._tensors)
        self._recorder.begin_step(
            preconditioner=adam, keeps_sum=self._by_items or (self._is_sharded and adam is not None)
        )
        self._loss_scale = self.parts.precision.loss_scale()
        self._hooks.close()
        if self._left_out is None:
            hook = self._grain_hook if self._bitwise else self._recorder.hook
            self._hooks.enter_context(self.parts.strategy.own_gradients(hook))

    def around(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        if self._left_out is not None:
            return contextlib.nullcontext()
        return self._grains(micro_batch) if self._bitwise else self._one_group(micro_batch)

    def end_step(self, plan: StepPlan) -> dict[str, float | Tensor]:
        self._hooks.close()
        if self._left_out is not None:
            return dict(noise_fields(NotMeasured(reason=self._left_out)))
        shard = self.parts.strategy.shard
        recorded = self._recorder.finish(
            [None if tensor.grad is None else shard(tensor.grad) for tensor in self._tensors],
            owns_heads=not self._is_sharded or self.parts.process.rank == 0,
        )
        units = StepUnits(
            reduction="sum",
            divisor=float(plan.num_items),
            loss_scale=self._loss_scale,
            by_items=self._by_items,
            sharded=self._is_sharded,
        )
        stream = self.parts.stream
        dataset_size = stream.num_examples if stream.sampling == "epoch" else None
        fields: dict[str, float | Tensor] = {}
        for (metric, label), result in self._table.measure(
            recorded, units, dataset_size=dataset_size
        ).items():
            fields |= noise_fields(result, metric=metric, label=label)
        return fields

    def _own_part(self, index: int, gradient: Tensor) -> Tensor:
        return shard_of(gradient, self._tensors[index])

    @contextlib.contextmanager
    def _one_group(self, micro_batch: MicroBatch) -> Iterator[None]:
        # Without items the gradient counts as 0, whatever the backward makes of a mean of nothing.
        self._recorder.begin_group(_group(len(micro_batch.indices), micro_batch.num_items))
        yield
        self._recorder.end_group()

    @contextlib.contextmanager
    def _grains(self, micro_batch: MicroBatch) -> Iterator[None]:
        """The accumulator runs one backward per grain, in order; ranks short of grains join with none."""
        self._coming = iter(self._grain_groups(micro_batch))
        yield

    def _grain_hook(self, index: int, gradient: Tensor) -> None:
        recorder = self._recorder
        if not recorder.is_open:
            recorder.begin_group(next(self._coming, _group(0, 0)))
            torch.autograd.Variable._execution_engine.queue_callback(recorder.end_group)
        recorder.hook(index, gradient)

    def _grain_groups(self, micro_batch: MicroBatch) -> list[Group]:
        start, task, data = micro_batch.start, self.parts.task, self.parts.data
        each = task.items_per_example()
        groups = []
        for grain in cut(start, start + len(micro_batch.indices), grain=self.parts.spec.config.grain):
            size = grain.stop - grain.start
            if each is None:
                own = micro_batch.indices[grain.start - start : grain.stop - start]
                num_items = task.count_items(data.batch(own))
            else:
                num_items = size * each
            if num_items > 0 or self._is_sharded:
                groups.append(_group(size, num_items))
        return groups

    def _split_size(self, effective_batch_size: int) -> int | None:
        """Half the batch, where one group would be all there is and it can be cut."""
        layout = self.parts.spec.layout
        one_group = layout.world_size == 1 and effective_batch_size <= layout.micro_batch_size
        if self._bitwise or not one_group or effective_batch_size < 2:
            return None
        return math.ceil(effective_batch_size / 2)

    def _time_step(self) -> None:
        """Time from one question to the next, while the spacing is being found. Collective, once."""
        if not self._cadence.calibrates:
            return
        device, process = self.parts.device, self.parts.process
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if self._asked_s is not None:
            self._cadence.add(now - self._asked_s)
        self._asked_s = now
        cost = self._cadence.cost
        if cost is not None:
            own = torch.tensor([cost], dtype=torch.float64, device=device)
            total = self.parts.strategy.all_reduce(own) if process.world_size > 1 else own
            self._cadence.settle(float(total) / process.world_size)


def parameter_label(name: str) -> str:
    """The part of a parameter's name up to its first number, or its first part: "blocks.0", "tokens"."""
    parts = name.split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: numbered + 1])


def _group(num_examples: int, num_items: float) -> Group:
    weight = num_items / num_examples if num_examples else 0.0
    return Group(num_examples=num_examples, num_items=float(num_items), cross_weight=weight)
