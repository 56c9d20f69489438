"""FSDP2 (`fully_shard`): parameters, gradients and optimizer state sharded over the ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from gasweep.errors import RefusedError
from gasweep.training.strategies.base import GradientHook, Strategy, watch_gradient
from gasweep.training.strategies.ddp import broadcast_from_rank_0
from gasweep.training.strategies.fsdp_collectives import MeteredAllGather, MeteredReduceScatter
from gasweep.training.strategies.tensor_files import WHOLE_FILE, read_sharded, read_whole, write_sharded


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """One sharded unit. parameters: (owning module, attribute, index among the trainable parameters).
    used: the micro-steps of this optimizer step whose forward it took part in."""

    module: FSDPModule
    all_gather: MeteredAllGather
    reduce_scatter: MeteredReduceScatter
    parameters: list[tuple[nn.Module, str, int]]
    used: set[int] = field(default_factory=set)


class FsdpStrategy(Strategy):
    """One reduce-scatter per unit and optimizer step; unsharded gradients are held between micro-steps, which
    costs g·P·(1 - 1/N) bytes for P parameters of g bytes each (`sync_every_micro_step` gives that back).

    Parameters are gathered for every forward and, with `reshard_after_forward`, again for every backward;
    `reshard_after_backward=False` keeps them unsharded from one micro-step to the next: one gather per
    optimizer step when `reshard_after_forward` is off too, at the memory of the whole parameters.

    A low-precision model is sharded in fp32 and gathered in its own dtype, so gradients are reduced and added
    up in fp32 and the optimizer steps fp32 parameters.
    """

    name = "fsdp"

    def prepare(self, module: nn.Module, *, units: list[nn.Module] | None) -> nn.Module:
        _refuse_old_torch()
        broadcast_from_rank_0(module)
        policy = _policy(module)
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        mesh = self._data_mesh(module)
        for unit in [*(units or []), module]:
            fully_shard(
                unit,
                mesh=mesh,
                reshard_after_forward=self.options.reshard_after_forward if unit is not module else None,
                mp_policy=policy,
            )
        self.module = module
        self._root = cast(FSDPModule, module)
        self._call_order = 0
        self._micro_step = 0
        self._units = [self._meter_unit(i, m, names) for i, m in enumerate(_fsdp_modules(module), 1)]
        if not self.syncs_gradients:
            # Every backward stays "the last": FSDP2 tidies its records of the forward order only then.
            self._root.set_requires_gradient_sync(False)
        return module

    def no_sync(self) -> AbstractContextManager[object]:
        if not self.syncs_gradients or self.options.sync_every_micro_step:
            return contextlib.nullcontext()
        return self._held()

    @contextlib.contextmanager
    def own_gradients(self, hook: GradientHook, *, take: bool = False) -> Iterator[None]:
        watched: set[int] = set()
        handles: list[RemovableHandle] = []

        def watch(unit: _Unit) -> None:
            for owner, attribute, index in unit.parameters:
                parameter = getattr(owner, attribute)
                if index not in watched and not isinstance(parameter, DTensor):
                    watched.add(index)
                    handles.extend(watch_gradient(parameter, index, hook, take=take))

        # Only after a unit's own pre-forward hook are its unsharded parameters in place.
        pre_forward = [
            cast(nn.Module, unit.module).register_forward_pre_hook(lambda *_, unit=unit: watch(unit))
            for unit in self._units
        ]
        try:
            yield
        finally:
            for handle in [*pre_forward, *handles]:
                handle.remove()

    def gradient_norm(self, parameters: list[Tensor]) -> Tensor:
        shards = [self.shard(tensor.grad) for tensor in parameters if tensor.grad is not None]
        squared = torch.nn.utils.get_total_norm(shards).square()
        return self.all_reduce(squared).sqrt()

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.module.named_parameters():
            value = parameter.detach()
            yield name, value.full_tensor() if isinstance(value, DTensor) else value
        yield from self.module.named_buffers()

    def write_tensors(self, tensors: dict[str, Tensor], folder: Path) -> None:
        write_sharded(tensors, folder)

    def read_tensors(self, tensors: dict[str, Tensor], folder: Path) -> None:
        if (folder / WHOLE_FILE).exists():
            read_whole(tensors, folder)
        else:
            read_sharded(tensors, folder)

    def reset_gradients(self, *, num_micro_steps: int) -> None:
        super().reset_gradients(num_micro_steps=num_micro_steps)
        self._micro_step = 0
        for unit in self._units:
            unit.used.clear()
            unit.all_gather.calls = unit.reduce_scatter.calls = 0

    def unsynced_bytes(self, num_micro_steps: int) -> int:
        sent = self.meter.model.total_bytes
        if self.options.sync_every_micro_step:
            return sent
        return sent + sum(self._left_out(unit, num_micro_steps) for unit in self._units)

    def _left_out(self, unit: _Unit, num_micro_steps: int) -> int:
        """What a sync on every micro-step would have sent beside: one reduction for each micro-step that used
        the unit (or for every one, of unused parameters too), and the gathers that resharding then needs."""
        syncs = num_micro_steps if self.options.find_unused_parameters else len(unit.used)
        scatters = syncs - unit.reduce_scatter.calls
        gathers = 0
        if not self.options.reshard_after_backward:
            gathers = (len(unit.used) - 1) * unit.all_gather.calls
        return scatters * self.meter.wire_bytes(
            "reduce_scatter", unit.reduce_scatter.payload_bytes
        ) + gathers * self.meter.wire_bytes("all_gather", unit.all_gather.payload_bytes)

    def shard(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def call_order(self) -> int:
        order, self._call_order = self._call_order, 0
        return order

    def after_evaluation(self) -> None:
        # Forwards without a backward leave their order behind, which would misdirect the next prefetch.
        reset = getattr(self._root, "reset_iter_state", None)
        if reset is not None:
            reset()

    def close(self) -> None:
        self.__dict__.pop("_units", None)
        self.__dict__.pop("_root", None)
        super().close()

    def _data_mesh(self, module: nn.Module) -> DeviceMesh:
        """What `module` is sharded over, once whatever splits its layers has been applied."""
        return init_device_mesh(torch.device(self.process.device).type, (self.process.world_size,))

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(True)
            self._micro_step += 1

    def _set_sync(self, sync: bool) -> None:
        # Every backward stays "the last one" to FSDP2: told otherwise it would keep the forward order of
        # earlier micro-steps, and prefetch by it parameters that this backward does not need.
        for unit in self._units:
            unit.module.set_requires_gradient_sync(sync, recurse=False)
            if not self.options.reshard_after_backward:
                unit.module.set_reshard_after_backward(sync, recurse=False)

    def _note_call(self, number: int) -> None:
        self._call_order = (self._call_order * 31 + number) % 2**20

    def _meter_unit(self, number: int, module: FSDPModule, names: list[str]) -> _Unit:
        # Together: DDP-style averaging is replaced by a plain sum, as one collective without a premultiply.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if self.options.find_unused_parameters:
            module.set_reduce_scatter_unused_params(True, recurse=False)
        all_gather = MeteredAllGather(self.meter, on_call=functools.partial(self._note_call, number))
        reduce_scatter = MeteredReduceScatter(self.meter)
        module.set_custom_all_gather(all_gather)
        module.set_custom_reduce_scatter(reduce_scatter)
        unit = _Unit(
            module=module,
            all_gather=all_gather,
            reduce_scatter=reduce_scatter,
            parameters=_own_parameters(self.module, module, names),
        )
        cast(nn.Module, module).register_forward_pre_hook(lambda *_: unit.used.add(self._micro_step))
        return unit


def _refuse_old_torch() -> None:
    needed = ("set_custom_reduce_scatter", "set_force_sum_reduction_for_comms")
    if not all(hasattr(FSDPModule, name) for name in needed):
        raise RefusedError(
            f"strategy='fsdp' sums and meters gradients through FSDP2 hooks that torch {torch.__version__} "
            "does not have; use torch >= 2.9, or strategy=ddp"
        )


def _policy(module: nn.Module) -> MixedPrecisionPolicy:
    """fp32 shards of a low-precision model; the module is converted in place."""
    low = {p.dtype for p in module.parameters() if p.dtype in (torch.bfloat16, torch.float16)}
    if not low:
        return MixedPrecisionPolicy()
    compute_dtype = low.pop()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.data = parameter.data.float()
    return MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)


def _fsdp_modules(root: nn.Module) -> list[FSDPModule]:
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def _own_parameters(root: nn.Module, unit: Any, names: list[str]) -> list[tuple[nn.Module, str, int]]:
    """The trainable parameters that `unit` shards itself, not through a unit inside it."""
    inner = {id(m) for child in _fsdp_modules(unit) if child is not unit for m in cast(Any, child).modules()}
    index_of = {name: index for index, name in enumerate(names)}
    own = []
    for prefix, owner in root.named_modules():
        inside = any(owner is module for module in unit.modules()) and id(owner) not in inner
        for attribute, _ in owner.named_parameters(recurse=False) if inside else ():
            name = f"{prefix}.{attribute}" if prefix else attribute
            if name in index_of:
                own.append((owner, attribute, index_of[name]))
    return own
