"""The gradient noise scale in anyone's training loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gasweep.analysis.noise_scale import NoiseMeasurement, NotMeasured
from gasweep.analysis.noise_scale_checks import require_finite, require_whole
from gasweep.analysis.noise_scale_records import Metric
from gasweep.analysis.noise_scale_window import (
    NoisePoint,
    NoiseScale,
    noise_scale,
    noise_trajectory,
    unknown_noise_scale,
)
from gasweep.errors import MeasurementError
from gasweep.training.gradient_noise_adam import adam_preconditioner
from gasweep.training.gradient_noise_arguments import check_arguments, check_asked, group_of
from gasweep.training.gradient_noise_cadence import Cadence
from gasweep.training.gradient_noise_hooks import ModelGradients, refuse_inner_backward
from gasweep.training.gradient_noise_ranks import RankTable, Results, StepUnits
from gasweep.training.gradient_noise_recorded import Group
from gasweep.training.gradient_noise_recorder import NormRecorder

NEWLY_TRAINABLE = "a parameter became trainable within the step"

Step = NoiseMeasurement | NotMeasured


class GradientNoiseScale:
    """Measures |G|², tr Σ and B_simple = tr Σ / |G|² (in examples) while you train.

        noise = GradientNoiseScale(model, micro_batch_size=8)      # after DDP / fully_shard
        ...
        loss.backward()                                            # as ever, G times
        scaler.unscale_(optimizer)                                 # if you scale the loss
        noise.step(loss_scale=scaler.get_scale())                  # before clipping and optimizer.step()
        ...
        print(noise.estimate())

    Every backward of a measured step is one group; its squared norm is taken from its own gradient, before
    accumulation and sync. On all other steps nothing is hooked and nothing costs. At least two groups per
    step are needed over all ranks: with one, run `backward` on halves of the batch while `noise.due`.

    model: the module you call: bare, DistributedDataParallel, FSDP2 (`fully_shard`), compiled or not.
    micro_batch_size: examples of each backward, where `group` does not say.
    loss_reduction: "mean", each backward runs on its mean loss over examples / `loss_divisor`; "sum", on a
        sum over its items / `loss_divisor`.
    items_differ: examples hold different numbers of items (tokens) and the loss weighs items; needs "sum" and
        `group(num_items=...)`, and keeps one gradient's memory on measured steps.
    every: measure each k-th step; None: k is found in the first 30 steps so that measuring costs at most
        `overhead_fraction` of the step time.
    dataset_size: D, when an epoch is drawn without replacement from D examples; None: a stream or
        independent draws.
    parameter_group: parameter name -> label, to measure groups of parameters apart too.
    optimizer: an Adam, to measure in its own metric too.
    process_group: the ranks that share the gradient, where the model does not tell (a hand-made all-reduce).
    ranks_average: sync averages over ranks (DDP, FSDP2 by default) rather than sums.

    Raises RefusedError for what cannot be hooked, ValueError for arguments that do not fit together.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        micro_batch_size: int | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        items_differ: bool = False,
        every: int | None = None,
        overhead_fraction: float = 0.01,
        dataset_size: int | None = None,
        parameter_group: Callable[[str], str] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        process_group: Any = None,
        ranks_average: bool = True,
    ) -> None:
        check_arguments(
            micro_batch_size=micro_batch_size,
            loss_reduction=loss_reduction,
            items_differ=items_differ,
            dataset_size=dataset_size,
            optimizer=optimizer,
        )
        self._model = ModelGradients(model, process_group=process_group)
        self._micro_batch_size = micro_batch_size
        self._reduction: Literal["mean", "sum"] = loss_reduction
        self._by_items = items_differ
        self._dataset_size = dataset_size
        self._optimizer = optimizer
        self._rank_factor = 1.0 / self._model.world_size if ranks_average else 1.0
        self._cadence = Cadence(every=every, overhead_fraction=overhead_fraction)
        self._parameter_group = parameter_group
        self._take_parameters()
        self._steps = 0
        self._history: dict[tuple[Metric, str | None], list[Step]] = {}
        self._due = False
        self._step_began_s: float | None = None
        self._begin()

    @property
    def due(self) -> bool:
        """Whether the step whose groups run now is measured."""
        return self._due

    @property
    def every(self) -> int | None:
        """k; None while it is being found."""
        return self._cadence.every

    @contextlib.contextmanager
    def group(self, *, num_examples: int, num_items: float | None = None) -> Iterator[None]:
        """All backwards inside are one group of `num_examples` examples.

        For groups of other sizes than `micro_batch_size`, for token counts, for several backwards per group,
        and for reentrant activation checkpointing, which runs backwards of its own.
        """
        require_whole("num_examples", num_examples, at_least=0)
        if num_items is not None:
            require_finite("num_items", num_items, at_least=0.0)
        if not self._due:
            yield
            return
        self._open(self._group_of(num_examples, num_items))
        yield
        self._recorder.end_group()

    def step(
        self,
        *,
        loss_divisor: float | None = None,
        loss_scale: float = 1.0,
        optimizer_step: int | None = None,
        contributions: int = 0,
        loss: float | None = None,
        leave_out: str | None = None,
    ) -> Step | None:
        """Call once per optimizer step, after the last backward, sync and unscale, before clipping.

        loss_divisor: what each backward's loss was divided by. "mean": default the number of groups on this
            rank. "sum": the global item count (/ N where ranks average), required.
        loss_scale: the factor on every backward that `.grad` no longer carries, e.g. GradScaler's.
        optimizer_step, contributions, loss: where in training, kept with the measurement.
        leave_out: why this step must not count (it straddles an epoch, holds an example twice).

        Returns the step's measurement, NotMeasured with the reason, or None when it was not due. Collective
        when due. Raises MeasurementError when `.grad` is not what the groups add up to.
        """
        for name, value in (("loss_divisor", loss_divisor), ("loss_scale", loss_scale)):
            if value is not None and not 0.0 < value < math.inf:
                raise MeasurementError(f"{name}={value!r} must be a finite number > 0")
        at = self._steps if optimizer_step is None else optimizer_step
        results = self._finish(loss_divisor, loss_scale, leave_out) if self._due else {}
        for key, result in results.items():
            placed = (
                replace(result, optimizer_step=at, contributions=contributions, loss=loss)
                if isinstance(result, NoiseMeasurement)
                else replace(result, optimizer_step=at)
            )
            self._history.setdefault(key, []).append(placed)
        self._end_timing()
        self._steps += 1
        self._begin()
        return self._history["plain", None][-1] if results else None

    def steps(self, *, metric: Metric = "plain", label: str | None = None) -> list[Step]:
        """Everything measured or left out so far, in order, signed.

        Raises ValueError for a metric or label that this object does not measure.
        """
        check_asked(metric, label, labels=self._labels, optimizer=self._optimizer)
        return list(self._history.get((metric, label), []))

    def estimate(
        self, *, last: int | None = None, metric: Metric = "plain", label: str | None = None
    ) -> NoiseScale:
        """The noise scale over all measured steps, or the `last` ones, with its interval."""
        steps = self.steps(metric=metric, label=label)
        if last is not None:
            require_whole("last", last, at_least=1)
        if metric == "adam" and not steps and self.steps():
            return unknown_noise_scale("the optimizer had made no update before any measured step")
        return noise_scale(steps if last is None else steps[-last:])

    def trajectory(self, *, metric: Metric = "plain", label: str | None = None) -> list[NoisePoint]:
        """The noise scale along training, over trailing windows of a fifth of the measured steps."""
        return noise_trajectory(self.steps(metric=metric, label=label))

    def close(self) -> None:
        """Remove all hooks."""
        self._model.detach()
        self._due = False

    def _take_parameters(self) -> None:
        """Make ready for the parameters that are trainable, now and whenever there are more."""
        model, label = self._model, self._parameter_group
        self._labels = [] if label is None else [label(name) for name, _ in model.parameters]
        self._table = RankTable(
            names=model.names,
            labels=self._labels or None,
            rank=model.rank,
            world_size=model.world_size,
            all_reduce=model.all_reduce,
            device=model.device,
        )
        self._tensors: list[Tensor] = [parameter for _, parameter in model.parameters]
        self._recorder = NormRecorder(
            self._tensors,
            own_part=model.own_part if model.is_sharded else None,
            head_sizes=model.head_sizes(),
        )

    def _begin(self) -> None:
        """Hook the parameters if the coming step is due."""
        self._due = False
        if not self._cadence.is_due(self._steps):
            return
        if self._model.look_again():
            self._take_parameters()
        self._recorder.begin_step()
        self._opened = False
        self._due = True
        self._model.attach(self._on_gradient)

    def _open(self, group: Group) -> None:
        if not self._opened:
            # Not before: the optimizer's state of the step before must be in place.
            self._opened = True
            adam = None if self._optimizer is None else adam_preconditioner(self._optimizer, self._tensors)
            keeps_sum = self._by_items or (self._model.is_sharded and adam is not None)
            self._recorder.begin_step(preconditioner=adam, keeps_sum=keeps_sum)
        self._recorder.begin_group(group)

    def _on_gradient(self, index: int, gradient: Tensor) -> None:
        recorder = self._recorder
        if not recorder.is_open:
            if self._micro_batch_size is None:
                self.close()  # so that another object for this model does not meet this one's hooks
                raise MeasurementError(
                    "micro_batch_size=None: give the examples per backward, or wrap each one in "
                    "`with noise.group(num_examples=...)`"
                )
            refuse_inner_backward()
            self._open(self._group_of(self._micro_batch_size, None))
            torch.autograd.Variable._execution_engine.queue_callback(recorder.end_group)
        recorder.hook(index, gradient)

    def _group_of(self, num_examples: int, num_items: float | None) -> Group:
        return group_of(num_examples, num_items, reduction=self._reduction, by_items=self._by_items)

    def _finish(self, loss_divisor: float | None, loss_scale: float, leave_out: str | None) -> Results:
        recorder = self._recorder
        self._model.detach()
        if leave_out is not None:
            return {("plain", None): NotMeasured(reason=leave_out)}
        if self._model.has_unwatched:
            return {("plain", None): NotMeasured(reason=NEWLY_TRAINABLE)}
        recorded = recorder.finish(
            self._model.finals(), owns_heads=not self._model.is_sharded or self._model.rank == 0
        )
        if loss_divisor is None:
            if self._reduction == "sum":
                raise MeasurementError("loss_divisor=None: give what each summed loss was divided by")
            loss_divisor = float(max(recorder.num_groups, 1))
        units = StepUnits(
            reduction=self._reduction,
            divisor=loss_divisor,
            loss_scale=loss_scale,
            rank_factor=self._rank_factor,
            by_items=self._by_items,
            sharded=self._model.is_sharded,
            low_precision_sync=self._model.is_low_precision_sync,
        )
        return self._table.measure(recorded, units, dataset_size=self._dataset_size)

    def _end_timing(self) -> None:
        """Time whole steps, from one call to the next, while k is being found."""
        if not self._cadence.calibrates:
            return
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        now = time.perf_counter()
        if self._step_began_s is not None:
            self._cadence.add(now - self._step_began_s)
        self._step_began_s = now
        cost = self._cadence.cost
        if cost is not None:
            if self._model.world_size > 1:
                own = torch.tensor([cost], dtype=torch.float64, device=self._model.device)
                cost = float(self._model.all_reduce(own)) / self._model.world_size
            self._cadence.settle(cost)
