"""The strategy contract: how a run's ranks hold the parameters and agree on gradients."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
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

    @abstractmethod
    def no_sync(self) -> AbstractContextManager[object]:
        """Entered around forward *and* backward of every micro-step but the last of an optimizer step."""

    @contextlib.contextmanager
    def own_gradients(self, hook: GradientHook) -> Iterator[None]:
        """In the block, `hook(index, gradient)` sees the gradient of each backward alone: whole, this rank's,
        before it is added to anything or synced. What it returns, if not None, takes the gradient's place.

        index: position among the module's trainable parameters, in `named_parameters` order. A parameter the
        backward does not reach is not reported.
        """
        handles = []
        for index, parameter in enumerate(trainable(self.module)):
            handles.append(register_gradient_hook(parameter, index, hook))
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
    def save_state(self, optimizer: torch.optim.Optimizer, folder: str) -> dict[str, Any]:
        """Model and optimizer state for `load_state`: what rank 0 should write itself, or, where the state is
        sharded, an empty dict after every rank wrote its own part under `folder`."""

    @abstractmethod
    def load_state(self, optimizer: torch.optim.Optimizer, folder: str, state: dict[str, Any]) -> None:
        """The inverse of `save_state`, bit for bit."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Control traffic: the sum over ranks, in place."""
        return tensor

    def close(self) -> None:
        """Drop what refers to the model or the process group."""
        del self.module


def register_gradient_hook(parameter: Tensor, index: int, hook: GradientHook) -> RemovableHandle:
    """Call `hook(index, gradient)` before each backward's gradient reaches `parameter.grad`."""
    handle: RemovableHandle = parameter.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: hook(index, gradient)
    )
    return handle


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters with a gradient, in `named_parameters` order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
