"""What autograd keeps of one micro-batch's forward, counted without computing it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gasweep.tasks.base import Task
from gasweep.training.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Activations:
    """num_bytes: None when the task's loss looks at values, which fake tensors lack; `reason` says it.

    largest: bytes of the largest tensor that a gradient flows back through.
    """

    num_bytes: int | None
    largest: int = 0
    reason: str | None = None


def count_activations(
    task: Task,
    module: nn.Module,
    *,
    units: Sequence[nn.Module],
    num_examples: int,
    precision: str,
    recomputed: bool,
    root: str | None,
) -> Activations:
    """Bytes of the distinct memory that the backward of `num_examples` examples needs kept, and of the
    examples themselves; the parameters and buffers left out.

    module: its tensors are replaced by fake ones.
    recomputed: `units` keep their inputs only, and one of them at a time all else (activation checkpointing).
    """
    data = task.train_data(root=root)
    batch = data.batch(np.arange(num_examples) % len(data))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _replace_tensors(module, mode)
    counter = _Counter(module)
    try:
        batch = tree_map_only(Tensor, mode.from_tensor, batch)
        with mode, counter.watching(units), Precision(precision, device=torch.device("cpu")).autocast():
            task.loss(module.train(), batch)
        for tensor in tree_leaves(batch):
            if isinstance(tensor, Tensor):
                counter.keep(tensor)
    except Exception as error:  # whatever the task does with a value that is not there
        text = (str(error).splitlines() or [""])[0]
        return Activations(num_bytes=None, reason=f"{type(error).__name__}: {text}")
    return Activations(num_bytes=counter.total(recomputed=recomputed), largest=counter.largest)


class _Watch(TorchFunctionMode):
    """Shows `see` every tensor that a function of torch gives."""

    def __init__(self, see: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, Tensor):
                self._see(tensor)
        return found


class _Counter:
    """Saved memory by the unit that was running when it was first saved; None: outside all units."""

    def __init__(self, module: nn.Module) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        self._seen = {_storage(tensor) for tensor in tensors}
        self._saved: dict[int | None, int] = defaultdict(int)
        self._inputs: dict[int, int] = defaultdict(int)
        self.largest = 0
        self._unit: int | None = None
        self._kept: list[Any] = []  # storages, so that no other takes the address of one

    def total(self, *, recomputed: bool) -> int:
        if not recomputed:
            return sum(self._saved.values())
        in_units = [size for unit, size in self._saved.items() if unit is not None]
        return self._saved[None] + sum(self._inputs.values()) + max(in_units, default=0)

    @contextlib.contextmanager
    def watching(self, units: Sequence[nn.Module]) -> Iterator[None]:
        handles = []
        for number, unit in enumerate(units):
            handles.append(unit.register_forward_pre_hook(lambda _, args, n=number: self._enter(n, args)))
            handles.append(unit.register_forward_hook(lambda *_: self._leave()))
        try:
            with saved_tensors_hooks(self.keep, lambda tensor: tensor), _Watch(self._see):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def keep(self, tensor: Tensor) -> Tensor:
        """Count `tensor`'s memory, once."""
        storage = tensor.untyped_storage()
        if _storage(tensor) not in self._seen:
            self._seen.add(_storage(tensor))
            self._kept.append(storage)
            self._saved[self._unit] += storage.nbytes()
        return tensor

    def _see(self, tensor: Tensor) -> None:
        if tensor.requires_grad and tensor.grad_fn is not None:
            self.largest = max(self.largest, tensor.nbytes)

    def _enter(self, unit: int, arguments: tuple[Any, ...]) -> None:
        self._unit = unit
        self._inputs[unit] += sum(a.nbytes for a in arguments if isinstance(a, Tensor))

    def _leave(self) -> None:
        self._unit = None


def _replace_tensors(module: nn.Module, mode: FakeTensorMode) -> None:
    """Fake tensors, unlike the meta device's own, know autocast and what runs on a CPU."""
    replaced: dict[int, Tensor] = {}  # shared parameters stay shared
    with mode:
        for owner in module.modules():
            tables: list[dict[str, Any]] = [owner._parameters, owner._buffers]
            for table in tables:
                for name, tensor in table.items():
                    if tensor is not None and id(tensor) not in replaced:
                        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                        is_parameter = isinstance(tensor, nn.Parameter)
                        new = nn.Parameter(fake, requires_grad=tensor.requires_grad) if is_parameter else fake
                        replaced[id(tensor)] = new
                    if tensor is not None:
                        table[name] = replaced[id(tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
