"""Tensor hooks on the parameters that a backward really reaches, for a plain, DDP or FSDP2 model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gasweep.errors import MeasurementError, RefusedError
from gasweep.training.gradient_noise_sync import is_dtensor, is_fsdp2, is_low_precision, sync_modules
from gasweep.training.gradient_noise_sync import process_group as group_of

GradientHook = Callable[[int, Tensor], None]


class ModelGradients:
    """A model's trainable parameters: their own gradients by hook, their final ones from `.grad`.

    Under FSDP2 the tensors that autograd sees exist only from a unit's forward on, so the hooks are set
    there; they see the whole gradient of this rank's examples before the reduce-scatter. Parameters that it
    leaves whole are hooked as they are; rank 0 stands for them, since all ranks hold the same gradient.

    Raises RefusedError for what shards in another way (FSDP1, a device mesh of several dimensions).
    """

    def __init__(self, model: nn.Module, *, process_group: Any = None) -> None:
        self._model = model
        self._units = [module for module in model.modules() if is_fsdp2(module)]
        self._syncs = sync_modules(model)
        self._all: list[tuple[str, Any]] = list(model.named_parameters())
        self._handles: list[RemovableHandle] = []
        self._watched: set[int] = set()
        self._tracked: set[str] = set()
        self.parameters: list[tuple[str, Any]] = []
        self.look_again()
        self._group = process_group if process_group is not None else group_of(model, self.parameters)
        self._refuse()

    def look_again(self) -> bool:
        """Take in parameters that have become trainable; whether there were any."""
        before = len(self._tracked)
        self._tracked |= {name for name, parameter in self._all if parameter.requires_grad}
        if len(self._tracked) == before:
            return False
        tracked = [(name, parameter) for name, parameter in self._all if name in self._tracked]
        self.parameters = [(_clean(name), parameter) for name, parameter in tracked]
        self._places = [_place(self._model, name) for name, _ in tracked]
        self._whole = {i for i, (_, p) in enumerate(self.parameters) if self._units and not is_dtensor(p)}
        return True

    @property
    def has_unwatched(self) -> bool:
        """Whether a parameter has become trainable since `attach`."""
        return any(parameter.requires_grad and name not in self._expected for name, parameter in self._all)

    @property
    def names(self) -> list[str]:
        """Of the parameters, with what else to know of one whose gradient is not as expected."""
        note = " (not sharded by fully_shard: average its gradient over ranks)"
        return [name + note * (index in self._whole) for index, (name, _) in enumerate(self.parameters)]

    @property
    def is_low_precision_sync(self) -> bool:
        """Whether gradients may be sent in 16 bits."""
        return any(is_low_precision(module) for module in self._syncs)

    @property
    def is_sharded(self) -> bool:
        return bool(self._units)

    @property
    def rank(self) -> int:
        return 0 if self._group is None else dist.get_rank(self._group)

    @property
    def world_size(self) -> int:
        return 1 if self._group is None else dist.get_world_size(self._group)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.parameters[0][1].device
        return device

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def finals(self) -> list[Tensor | None]:
        """`.grad` on the coordinates this rank owns."""
        elsewhere = self._whole if self.rank > 0 else ()
        return [
            None if parameter.grad is None or index in elsewhere else local(parameter.grad)
            for index, (_, parameter) in enumerate(self.parameters)
        ]

    def own_part(self, index: int, gradient: Tensor) -> Tensor | None:
        """The coordinates of a whole gradient that `finals` holds on this rank; None: none."""
        if index in self._whole and self.rank > 0:
            return None
        return shard_of(gradient, self.parameters[index][1])

    def head_sizes(self) -> list[int]:
        """How many of each parameter's first elements rank 0 owns."""
        return [leading_elements(parameter) for _, parameter in self.parameters]

    def attach(self, hook: GradientHook) -> None:
        """Call `hook(index, gradient)` during every backward from now on."""
        self.detach()
        self._expected = {name for name, parameter in self._all if parameter.requires_grad}
        for index, (_, parameter) in enumerate(self.parameters):
            if not self._units or index in self._whole:
                self._watch(index, parameter, hook)

        def after_unshard(unit: nn.Module, *_: object) -> None:
            inside = set(unit.modules())
            for index, (owner, attribute) in enumerate(self._places):
                parameter = getattr(owner, attribute)
                if owner in inside and index not in self._watched and not is_dtensor(parameter):
                    self._watch(index, parameter, hook)

        # FSDP2's own pre-forward hook comes first, so a unit's parameters are whole when this runs.
        self._handles += [unit.register_forward_pre_hook(after_unshard) for unit in self._units]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched.clear()

    def _watch(self, index: int, parameter: Tensor, hook: GradientHook) -> None:
        if not parameter.requires_grad:  # frozen since
            return
        self._watched.add(index)

        def on_gradient(gradient: Tensor) -> None:
            hook(index, gradient)

        self._handles.append(parameter.register_hook(on_gradient))  # type: ignore[no-untyped-call]

    def _refuse(self) -> None:
        if not self.parameters:
            raise RefusedError("model has no trainable parameter, so there is no gradient to measure")
        if any(type(module).__name__ == "FullyShardedDataParallel" for module in self._model.modules()):
            raise RefusedError(
                "model is wrapped in FullyShardedDataParallel, whose flat parameters hide single gradients; "
                "use torch.distributed.fsdp.fully_shard"
            )
        for name, parameter in self.parameters:
            dimensions = _mesh_dimensions(parameter)
            if dimensions > 1 or (dimensions == 1 and not self._units):
                raise RefusedError(
                    f"parameter {name} lies on a {dimensions}-dimensional device mesh, or is sharded by "
                    "something else than fully_shard; gradients are measured under one-dimensional FSDP2 only"
                )


def local(tensor: Any) -> Tensor:
    """This rank's shard, or the tensor itself where nothing is sharded."""
    shard: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return shard


def shard_of(gradient: Tensor, parameter: Any) -> Tensor:
    """The part of a whole gradient that lies where this rank's shard of `parameter` does."""
    if not is_dtensor(parameter):
        return gradient
    placement = parameter.placements[0]
    if not placement.is_shard():
        return gradient
    mesh = parameter.device_mesh
    pieces = gradient.chunk(mesh.size(), dim=placement.dim)
    rank = mesh.get_local_rank()
    piece: Tensor = pieces[rank] if rank < len(pieces) else gradient.narrow(placement.dim, 0, 0)
    return piece


def leading_elements(parameter: Any) -> int:
    """How many first elements, in row-major order, the first rank of `parameter`'s mesh owns."""
    if not is_dtensor(parameter) or not parameter.placements[0].is_shard():
        return int(parameter.numel())
    if parameter.placements[0].dim != 0 or parameter.numel() == 0:
        return 0
    rows = int(parameter.shape[0])
    return math.ceil(rows / int(parameter.device_mesh.size())) * int(parameter.numel()) // rows


def _mesh_dimensions(parameter: Any) -> int:
    return int(parameter.device_mesh.ndim) if is_dtensor(parameter) else 0


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """(owner, attribute) of a parameter."""
    path, _, attribute = name.rpartition(".")
    return model.get_submodule(path), attribute


def _clean(name: str) -> str:
    """A parameter's name in the bare module."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def refuse_inner_backward() -> None:
    """Raises MeasurementError where Python's stack shows a custom function's backward around this one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "apply" and frame.f_code.co_filename.endswith("autograd/function.py"):
            raise MeasurementError(
                "a backward inside another one (activation checkpointing with use_reentrant=True) cannot "
                "be told from a group; use use_reentrant=False, or `with noise.group(num_examples=...)` "
                "around forward and backward of each micro-batch"
            )
        frame = frame.f_back
