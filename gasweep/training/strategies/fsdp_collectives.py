"""FSDP2's two collectives with a meter in them: counted where they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from gasweep.training.meter import CommunicationMeter

# torch 2.13 gave both their new names and warns about the old ones.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class _Allocates:
    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class MeteredAllGather(_Allocates, AllGather):
    """payload_bytes: of one unit's gathered parameters; 0 before the first call. calls: since set to 0."""

    def __init__(self, meter: CommunicationMeter, *, on_call: Callable[[], None]) -> None:
        self.payload_bytes = 0
        self.calls = 0
        self._meter = meter
        self._on_call = on_call

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self.payload_bytes = output_tensor.nbytes
        self.calls += 1
        self._on_call()
        self._meter.count("all_gather", output_tensor)
        if self._meter.is_muted:
            # Every rank's part is taken from this one: real parameters, so that computing costs the same.
            for part in output_tensor.view(-1, input_tensor.numel()):
                if part.data_ptr() != input_tensor.data_ptr():
                    part.copy_(input_tensor)
            return None
        work: dist.Work | None = _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class MeteredReduceScatter(_Allocates, ReduceScatter):
    """payload_bytes: of one unit's whole gradient; 0 before the first call. calls: since set to 0."""

    def __init__(self, meter: CommunicationMeter) -> None:
        self.payload_bytes = 0
        self.calls = 0
        self._meter = meter

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        assert op == dist.ReduceOp.SUM, op
        self.payload_bytes = input_tensor.nbytes
        self.calls += 1
        self._meter.count("reduce_scatter", input_tensor)
        if self._meter.is_muted:
            output_tensor.copy_(input_tensor[: output_tensor.numel()])
            return None
        work: dist.Work | None = _reduce_scatter(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
        return work
