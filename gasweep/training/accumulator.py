"""The accumulator contract: how the groups of one optimizer step become one averaged gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts


class Accumulator(ABC):
    """Runs forward and backward of each group and adds the gradients up.

    The order of calls is the accumulation primitive's (`gasweep.batching`), never the accumulator's:
    `begin_step`, then `accumulate` once per micro-step with that micro-step's `loss_divisor` and
    `sync_gradients`, then `finish_step`. All ranks make the same calls. Between `begin_step` and
    `finish_step` the parameters do not change.

    After a `finish_step` that returned True, `.grad` of every tensor in `parts.parameters` holds
    Σ loss gradient / global item count over all ranks, in fp32 (fp64 for fp64 parameters), times
    `parts.precision.loss_scale()`; it is ready for one unscale → clip → step.
    """

    syncs_itself: ClassVar[bool] = False
    """True: the strategy must not reduce gradients (DDP leaves the module unwrapped, FSDP2 keeps them
    unsharded); the accumulator then agrees on them over the ranks in `finish_step`."""

    def __init__(self, parts: TrainingParts) -> None:
        self.parts = parts

    @abstractmethod
    def begin_step(self, plan: StepPlan) -> None:
        """Forget the previous step's gradient. Called again for a step that must be repeated."""

    @abstractmethod
    def accumulate(self, micro_batch: MicroBatch, *, loss_divisor: float, sync_gradients: bool) -> None:
        """Forward and backward of one group; its loss counts as Σ loss / `loss_divisor`.

        A group without items contributes exactly 0 but still runs, so that the rank joins every collective.
        """

    @abstractmethod
    def finish_step(self) -> bool:
        """Complete the gradient. False: this step's groups must be run again from `begin_step` (the same
        answer on every rank)."""

    @abstractmethod
    def loss_sum(self) -> Tensor:
        """Σ loss of this rank's groups in the finished step, a float64 scalar on the device, before any
        scaling or division; the trainer adds it over ranks unless `loss_is_global`."""

    loss_is_global: ClassVar[bool] = False
    """True: `loss_sum` is already the sum over all ranks (an order-independent one, say)."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beyond parameters, optimizer and position: plain JSON data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """The inverse of `state_dict`."""

    def unsynced_bytes(self, num_micro_steps: int) -> int:
        """What the optimizer step just metered would have sent, had it synced on every micro-step."""
        return self.parts.strategy.unsynced_bytes(num_micro_steps)

    def report(self) -> dict[str, Any]:
        """What a run's result should say of how gradients were added up: JSON data."""
        return {}

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of the whole gradient, all ranks agreeing; a scalar on the device."""
        return self.parts.strategy.gradient_norm([tensor for _, tensor in self.parts.parameters])
