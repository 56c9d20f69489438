"""The strategy contract: how a run's ranks hold the parameters and agree on gradients."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gasweep.config.schema import StrategyOptions
from gasweep.training.meter import CommunicationMeter
from gasweep.training.process import ProcessContext

GradientHook = Callable[[int, Tensor], Tensor | None]


class Strategy(ABC):
    """One run's data parallelism. All ranks call the same methods in the same order.

    Gradients are *summed* over ranks, never averaged: the loss is divided by the global count before the
    backward, so no factor N exists to be undone. The model is replicated from rank 0's parameters and
    buffers, whatever the other ranks initialised.
    """

    name: ClassVar[str]

    def __init__(
        self,
        *,
        process: ProcessContext,
        options: StrategyOptions,
        meter: CommunicationMeter,
        accumulation_steps: int,
        syncs_gradients: bool = True,
    ) -> None:
        """syncs_gradients: False leaves the reduction to the accumulator (`Accumulator.syncs_itself`).

        Raises RefusedError for options that cannot be combined.
        """
        self.process = process
        self.options = options
        self.meter = meter
        self.accumulation_steps = accumulation_steps
        self.syncs_gradients = syncs_gradients
        self.module: nn.Module

    @abstractmethod
    def prepare(self, module: nn.Module, *, units: list[nn.Module] | None) -> nn.Module:
        """What the training step calls, sharing the parameters of `module`, which is already on the device.

        units: submodules sharded as units of their own (FSDP); others ignore it.
        """

    @functools.cached_property
    def trainable_parameters(self) -> list[nn.Parameter]:
        """The prepared module's parameters with a gradient."""
        return trainable(self.module)

    @abstractmethod
    def no_sync(self) -> AbstractContextManager[object]:
        """Entered around forward *and* backward of every micro-step but the last of an optimizer step."""

    def counting(self) -> AbstractContextManager[object]:
        """Entered around a whole optimizer step: in the block the meter also sees collectives that the model
        itself makes. Nothing to do where a strategy makes them all."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def own_gradients(self, hook: GradientHook, *, take: bool = False) -> Iterator[None]:
        """In the block, `hook(index, gradient)` sees the gradient of each backward alone: whole, this rank's,
        before it is added to anything or synced. What it returns, if not None, takes the gradient's place.

        index: position among the module's trainable parameters, in `named_parameters` order. A parameter the
        backward does not reach is not reported.
        take: the gradient is not added to `.grad` afterwards; only for a strategy that does not sync
        (`syncs_gradients=False`).
        """
        handles = []
        for index, parameter in enumerate(self.trainable_parameters):
            handles += watch_gradient(parameter, index, hook, take=take)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @abstractmethod
    def gradient_norm(self, parameters: list[Tensor]) -> Tensor:
        """Euclidean norm of the whole gradient held in `.grad`, equal on every rank; a device scalar."""

    @abstractmethod
    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole value of every parameter and buffer, in a fixed order, under the names of the task's
        own module. Collective: every rank must exhaust it."""

    @abstractmethod
    def write_tensors(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Write named tensors (parameters, buffers, optimizer state) into `folder`. Collective; the files are
        complete when it returns on rank 0, and durable once the caller has synced them."""

    @abstractmethod
    def read_tensors(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Fill `tensors` in place, bit for bit, from what any strategy wrote on any number of ranks."""

    @abstractmethod
    def unsynced_bytes(self, num_micro_steps: int) -> int:
        """What the optimizer step just metered would have sent, had it synced on every micro-step."""

    def reset_gradients(self, *, num_micro_steps: int) -> None:
        """Forget the module's gradients before an optimizer step of `num_micro_steps`."""
        for parameter in self.trainable_parameters:
            parameter.grad = None

    def all_reduce_gradients(self, gradients: list[Tensor]) -> None:  # noqa: B027
        """The sum over ranks, in place; for an accumulator that syncs by itself. Metered as model traffic."""

    def sync_buffers(self) -> None:
        """Give every rank the buffers of rank 0 (running statistics differ between ranks)."""
        if self.process.world_size > 1:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)

    def check_synced(self, num_syncs: int) -> None:  # noqa: B027
        """After the last backward of an optimizer step with `num_syncs` synced micro-steps: raises TaskError
        when part of the gradient was not reduced."""

    def call_order(self) -> int:
        """A number below 2**20 that ranks share if they made the same collectives since it was last asked."""
        return 0

    def after_evaluation(self) -> None:  # noqa: B027
        """Forwards without a backward have just been run."""

    def shard(self, tensor: Tensor) -> Tensor:
        """This rank's part of a parameter or gradient: plain memory, the whole where nothing is sharded."""
        return tensor

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Control traffic: the sum over ranks, in place, of a tensor on the run's device or on the CPU (the
        default group has a backend for each)."""
        if self.process.world_size == 1:
            return tensor
        self.meter.count("all_reduce", tensor, control=True)
        if self.meter.is_muted:
            return tensor.mul_(self.process.world_size)
        dist.all_reduce(tensor, group=self.data_group())
        return tensor

    def data_group(self) -> dist.ProcessGroup | None:
        """The data-parallel ranks; None: the default group."""
        return None

    def close(self) -> None:
        """Drop what refers to the model or the process group."""
        self.__dict__.pop("trainable_parameters", None)
        del self.module


def watch_gradient(parameter: Tensor, index: int, hook: GradientHook, *, take: bool) -> list[RemovableHandle]:
    """Call `hook(index, gradient)` before each backward's gradient reaches `parameter.grad`."""
    handles: list[RemovableHandle] = [
        parameter.register_hook(lambda gradient: hook(index, gradient))  # type: ignore[no-untyped-call]
    ]
    if take:
        handles.append(
            parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
        )
    return handles


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters with a gradient, in `named_parameters` order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
