"""The gradient-observer contract: who wants to see the gradients of single groups, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from torch import Tensor

from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts


class GradientObserver(ABC):
    """Measures chosen optimizer steps without changing what they compute.

    Calls, the same on every rank: `max_group_size` before a step is partitioned; then, if it is observed,
    `begin_step`, `around` once per micro-step, and `end_step` after sync and unscale and before clipping.
    A step that an accumulator repeats starts again at `begin_step`; a step that is skipped (no valid item, or
    an overflow under fp16) gets no `end_step`.

    A group's own gradient is seen with `parts.strategy.own_gradients(hook)`: during the backward,
    `hook(index, gradient)` is called for the parameter `parts.parameters[index]`, before the gradient is
    added to anything or synced, whole even under FSDP. It is that of Σ loss of the group / `plan.num_items`,
    times the loss scale.
    """

    def __init__(self, parts: TrainingParts) -> None:
        self.parts = parts

    @abstractmethod
    def observes(self, *, optimizer_step: int, contributions: int, effective_batch_size: int) -> bool:
        """Whether to measure the attempted optimizer step `optimizer_step` (from 0): a pure function, equal
        on every rank and after a resume."""

    def max_group_size(self, micro_batch_size: int) -> int:
        """The largest group wanted in an observed step; smaller than `micro_batch_size` splits the groups,
        which changes nothing but rounding (a step with one group has no spread to measure)."""
        return micro_batch_size

    @abstractmethod
    def begin_step(self, plan: StepPlan) -> None:
        """An observed step starts."""

    @abstractmethod
    def around(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        """Entered around forward and backward of each group of an observed step."""

    @abstractmethod
    def end_step(self, plan: StepPlan) -> dict[str, float | Tensor]:
        """What was measured, for `StepRecord.extra`: finite numbers (a tensor is read later, in a batch with
        others). `.grad` of `parts.parameters` holds the step's whole gradient, unscaled, not yet clipped."""
