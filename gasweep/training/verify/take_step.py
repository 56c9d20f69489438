"""One optimizer step from a stored state, with its whole gradient, loss and new parameters kept."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gasweep.config.run_spec import RunSpec
from gasweep.errors import RunError
from gasweep.training.bitwise.environment import kernels_of
from gasweep.training.build import Trainer, build_trainer
from gasweep.training.checkpoint import CheckpointStore
from gasweep.training.observer import GradientObserver
from gasweep.training.parts import MicroBatch, StepPlan, TrainingParts
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress
from gasweep.training.verify.silence import without_dropout

WARM_STEPS = 2
"""Steps before the compared one, in one layout: zero-initialised layers would otherwise hide a difference."""

_MAX_ATTEMPTS = 40  # fp16 starts with a loss scale that overflows and halves it


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one layout made of the step. Tensors whole, on the CPU, by parameter name.

    gradients: Σ loss gradient / items, before clipping. loss: Σ loss / items before the update.
    parameters: after the update.
    """

    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    loss: float

    def save(self, path: Path) -> None:
        torch.save(dataclasses.asdict(self), path)

    @classmethod
    def load(cls, path: Path) -> Taken:
        return cls(**torch.load(path, weights_only=True))


def make_start(process: ProcessContext, *, spec: RunSpec, folder: Path, silent: bool) -> None:
    """Train WARM_STEPS steps of `spec` and checkpoint them in `folder`."""
    with _setting(spec, process, silent=silent):
        trainer = build_trainer(spec, process=process, observe=_Keeper)
        progress = RunProgress()
        for _ in range(WARM_STEPS):
            _attempt(trainer, progress)
        CheckpointStore(folder, trainer).save(progress)
        trainer.parts.strategy.close()


def take_step(process: ProcessContext, *, spec: RunSpec, start: Path, output: Path, silent: bool) -> None:
    """The step after `start`, in the layout of `spec`; rank 0 writes a `Taken` to `output`. Collective."""
    with _setting(spec, process, silent=silent):
        trainer = build_trainer(spec, process=process, observe=_Keeper)
        progress = CheckpointStore(start, trainer).load()
        assert progress is not None, start
        loss = _attempt(trainer, progress)
        assert isinstance(trainer.observer, _Keeper)
        parameters = {name: t.cpu().clone() for name, t in trainer.parts.strategy.full_state()}
        if process.rank == 0:
            Taken(gradients=trainer.observer.gradients, parameters=parameters, loss=loss).save(output)
        trainer.parts.strategy.close()


class _Keeper(GradientObserver):
    """Keeps the whole gradient of every step, as it is before clipping."""

    def __init__(self, parts: TrainingParts) -> None:
        super().__init__(parts)
        self.gradients: dict[str, Tensor] = {}

    def observes(self, *, optimizer_step: int, contributions: int, effective_batch_size: int) -> bool:
        return True

    def begin_step(self, plan: StepPlan) -> None:
        self.gradients = {}

    def around(self, micro_batch: MicroBatch) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def end_step(self, plan: StepPlan) -> dict[str, float | Tensor]:
        for name, tensor in self.parts.parameters:
            if tensor.grad is not None:
                self.gradients[name] = _whole(tensor.grad).cpu().clone()
        return {}


def _attempt(trainer: Trainer, progress: RunProgress) -> float:
    """One applied update; the loss per item before it. Advances `progress`."""
    parts = trainer.parts
    total = parts.spec.effective_batch_size
    for _ in range(_MAX_ATTEMPTS):
        plan = trainer.planner.plan(
            optimizer_step=progress.attempted,
            contributions=progress.contributions,
            effective_batch_size=total,
            micro_batch_size=parts.spec.layout.micro_batch_size,
        )
        outcome = trainer.step.run(plan, learning_rate=parts.spec.learning_rate, observed=True)
        progress.advance(effective_batch_size=total, skipped=outcome.skipped)
        if outcome.skipped is None and outcome.loss_sum is not None:
            loss_sum = outcome.loss_sum.clone()
            if parts.process.world_size > 1 and not trainer.accumulator.loss_is_global:
                parts.strategy.all_reduce(loss_sum)
            return float(loss_sum) / plan.num_items
    raise RunError(f"no update in {_MAX_ATTEMPTS} attempts ({outcome.skipped}): nothing to compare")


@contextlib.contextmanager
def _setting(spec: RunSpec, process: ProcessContext, *, silent: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(kernels_of(spec, device=torch.device(process.device)))
        if silent:
            stack.enter_context(without_dropout())
        yield


def _whole(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole
