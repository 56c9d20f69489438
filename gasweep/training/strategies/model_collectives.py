"""Counts the collectives that a model makes inside itself, as tensor-parallel layers do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from gasweep.errors import RefusedError
from gasweep.training.meter import CommunicationMeter

# What layers call: torch's functional collectives, below autograd, so that backward's are among them, and the
# one that DTensor calls for itself where there is an accelerator.
_NAMESPACES = ("_c10d_functional", "_dtensor")
_NAMES = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
}
_VARIANTS = ("_", "_out", "_coalesced", "_coalesced_")
_SILENT = ("wait_tensor", "_wrap_tensor_autograd", "mesh_get_process_group")


class ModelCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, every functional collective is counted by `meter`; what a model calls through
    `torch.distributed` itself (`dist.all_reduce`) is not.

    groups: the name that torch gives a process group -> the meter's, see `CommunicationMeter.group_sizes`; a
    group that is not among them keeps torch's name.
    Costs a Python call per operator, so only for strategies whose models talk.
    Assumes: forward and backward run in the block, on the thread that entered it or on autograd's own, which
        inherit it. Raises RefusedError for a collective whose bytes it cannot tell (point to point).
    """

    def __init__(self, meter: CommunicationMeter, *, groups: Mapping[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meter = meter
        self._groups = dict(groups)
        self._is_control = False

    @contextlib.contextmanager
    def as_control(self) -> Iterator[None]:
        """In the block collectives count as control traffic."""
        before, self._is_control = self._is_control, True
        try:
            yield
        finally:
            self._is_control = before

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it splits into local operators and collectives, which come here next
        found = func(*args, **(kwargs or {}))
        if getattr(func, "namespace", None) in _NAMESPACES:
            self._count(func._opname, args, found)
        return found

    def _count(self, operator: str, args: Any, found: Any) -> None:
        if operator in _SILENT:
            return
        collective = _collective(operator)
        group = self._group(args[-1])
        whole = found if collective == "all_gather" else args[0]
        for tensor in [whole] if isinstance(whole, Tensor) else whole:
            self._meter.count(collective, tensor, group=group, control=self._is_control)

    def _group(self, torch_name: str) -> str:
        group = self._groups.setdefault(torch_name, torch_name)
        if group not in self._meter.group_sizes:
            self._meter.group_sizes[group] = _resolve_process_group(cast(Any, torch_name)).size()
        return group


def _collective(operator: str) -> str:
    for suffix in ("", *_VARIANTS):
        name = _NAMES.get(operator.removesuffix(suffix))
        if name is not None:
            return name
    raise RefusedError(
        f"the model calls the collective {operator}, whose bytes the meter cannot tell; use "
        f"{', '.join(_NAMES)}"
    )
