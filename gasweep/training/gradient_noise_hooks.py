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

from gasweep.errors import RefusedError

GradientHook = Callable[[int, Tensor], None]


class ModelGradients:
    """A model's trainable parameters: their own gradients by hook, their final ones from `.grad`.

    Under FSDP2 the tensors that autograd sees exist only from a unit's forward on, so the hooks are set
    there; they see the whole gradient of this rank's examples before the reduce-scatter.

    Raises RefusedError for what shards in another way (FSDP1, a device mesh of several dimensions).
    """

    def __init__(self, model: nn.Module, *, process_group: Any = None) -> None:
        self._model = model
        self.parameters = [(_clean(n), p) for n, p in model.named_parameters() if p.requires_grad]
        self._units = [module for module in model.modules() if _is_fsdp2(module)]
        self._handles: list[RemovableHandle] = []
        self._watched: set[int] = set()
        self._group = process_group if process_group is not None else _process_group(model, self.parameters)
        self._refuse()

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
        return self.parameters[0][1].device

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def finals(self) -> list[Tensor | None]:
        """`.grad` on the coordinates this rank owns."""
        return [None if p.grad is None else local(p.grad) for _, p in self.parameters]

    def own_part(self, index: int, gradient: Tensor) -> Tensor:
        """The coordinates of a whole gradient that `finals` holds on this rank."""
        return shard_of(gradient, self.parameters[index][1])

    def head_sizes(self) -> list[int]:
        """How many of each parameter's first elements rank 0 owns."""
        return [leading_elements(parameter) for _, parameter in self.parameters]

    def attach(self, hook: GradientHook) -> None:
        """Call `hook(index, gradient)` during every backward from now on."""
        self.detach()
        if not self._units:
            for index, (_, parameter) in enumerate(self.parameters):
                self._watch(index, parameter, hook)
            return
        places = _places(self._model)

        def after_unshard(unit: nn.Module, *_: object) -> None:
            inside = set(unit.modules())
            for index, (owner, attribute) in enumerate(places):
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


def is_dtensor(tensor: object) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


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


def _places(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """(owner, attribute) of each trainable parameter, in `named_parameters` order."""
    places, seen = [], set()
    for owner in model.modules():
        for attribute, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                places.append((owner, attribute))
    return places


def _is_fsdp2(module: nn.Module) -> bool:
    fsdp = sys.modules.get(
        "torch.distributed.fsdp"
    )  # not imported: nothing is sharded, and it is slow to load
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _process_group(model: nn.Module, parameters: list[tuple[str, Any]]) -> Any:
    """The ranks that share the final gradient, or None for one process."""
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return module.process_group
    for _, parameter in parameters:
        if is_dtensor(parameter):
            return parameter.device_mesh.get_group()
    return None


def _clean(name: str) -> str:
    """A parameter's name in the bare module."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def inside_another_backward() -> bool:
    """Whether Python's stack shows a custom function's backward, inside which this backward runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "apply" and frame.f_code.co_filename.endswith("autograd/function.py"):
            return True
        frame = frame.f_back
    return False
