"""DistributedDataParallel with a summing, metered all-reduce."""

from __future__ import annotations

import contextlib
import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gasweep.errors import RefusedError, TaskError
from gasweep.training.strategies.base import trainable
from gasweep.training.strategies.replicated import ReplicatedStrategy

# Buffers are made equal before they are used (`sync_buffers`), not in every forward.
# torch 2.13 renamed the option.
_NO_BUFFER_BROADCAST: dict[str, Any] = {
    name: False
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
}
if len(_NO_BUFFER_BROADCAST) > 1:
    del _NO_BUFFER_BROADCAST["broadcast_buffers"]


class DdpStrategy(ReplicatedStrategy):
    """Each gradient bucket is all-reduced once per optimizer step, overlapping the last backward.

    The communication hook replaces DDP's averaging by a plain sum, and counts at the call itself.
    """

    name = "ddp"

    def prepare(self, module: nn.Module, *, units: list[nn.Module] | None) -> nn.Module:
        self.module = module
        self._refuse_static_graph()
        if not self.syncs_gradients:
            broadcast_from_rank_0(module)
            return module
        on_cuda = self.process.device.startswith("cuda")
        self._wrapped = DistributedDataParallel(
            module,
            device_ids=[torch.device(self.process.device).index] if on_cuda else None,
            bucket_cap_mb=self.options.bucket_cap_mb,
            gradient_as_bucket_view=True,
            find_unused_parameters=self.options.find_unused_parameters,
            static_graph=self.options.static_graph,
            **_NO_BUFFER_BROADCAST,
        )
        # A lambda, since DDP refuses hooks whose annotations are text.
        self._reduced_bytes = 0
        self._gradient_bytes = sum(p.nbytes for p in trainable(module))
        self._wrapped.register_comm_hook(None, lambda _, bucket: self._sum_bucket(bucket))
        return self._wrapped

    def reset_gradients(self, *, num_micro_steps: int) -> None:
        # Zeroed in place, a gradient stays a view of its bucket and accumulates there; dropped, it would be
        # held twice, once while accumulating and once in the bucket. Unused parameters have to keep None.
        held = [p.grad for p in self.trainable_parameters if p.grad is not None]
        in_buckets = self.syncs_gradients and not self.options.find_unused_parameters
        if held and num_micro_steps > 1 and in_buckets:
            torch._foreach_zero_(held)
        else:
            super().reset_gradients(num_micro_steps=num_micro_steps)

    def no_sync(self) -> AbstractContextManager[object]:
        if not self.syncs_gradients or self.options.sync_every_micro_step:
            return contextlib.nullcontext()
        return self._wrapped.no_sync()

    def check_synced(self, num_syncs: int) -> None:
        reduced, self._reduced_bytes = self._reduced_bytes, 0
        if reduced != num_syncs * self._gradient_bytes:
            raise TaskError(
                f"strategy='ddp' reduced {reduced} of {num_syncs * self._gradient_bytes} gradient bytes: the "
                "last micro-batch left parameters without a gradient, and DDP waits for them; use "
                "strategy_options.find_unused_parameters=true, or a model that always uses all of them"
            )

    def all_reduce_gradients(self, gradients: list[Tensor]) -> None:
        capacity = int(self.options.bucket_cap_mb * 2**20)
        for bucket in _buckets(gradients, capacity):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self.meter.count("all_reduce", flat)
            if not self.meter.is_muted:
                dist.all_reduce(flat)
            pieces = torch.split(flat, [gradient.numel() for gradient in bucket])
            torch._foreach_copy_(
                bucket, [piece.view_as(gradient) for piece, gradient in zip(pieces, bucket, strict=True)]
            )

    def unsynced_bytes(self, num_micro_steps: int) -> int:
        per_sync = 1 if not self.options.sync_every_micro_step else num_micro_steps
        return self.meter.model.total_bytes // per_sync * num_micro_steps

    def close(self) -> None:
        self.__dict__.pop("_wrapped", None)
        super().close()

    def _sum_bucket(self, bucket: Any) -> torch.futures.Future[Tensor]:
        buffer: Tensor = bucket.buffer()
        self._reduced_bytes += buffer.nbytes
        self.meter.count("all_reduce", buffer)
        if self.meter.is_muted:
            unchanged: torch.futures.Future[Tensor] = torch.futures.Future()
            unchanged.set_result(buffer)
            return unchanged
        work = dist.all_reduce(buffer, async_op=True)
        summed: torch.futures.Future[Tensor] = work.get_future().then(_first_tensor)
        return summed

    def _refuse_static_graph(self) -> None:
        if not self.options.static_graph:
            return
        if self.accumulation_steps > 1 and not self.options.sync_every_micro_step:
            raise RefusedError(
                "strategy_options.static_graph=true cannot be combined with "
                f"accumulation_steps={self.accumulation_steps}: DDP records its graph in the first backward, "
                "which no_sync hides from it; use static_graph=false or sync_every_micro_step=true"
            )


def broadcast_from_rank_0(module: nn.Module) -> None:
    """Make every rank's parameters and buffers those of rank 0."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, src=0)


def _first_tensor(future: torch.futures.Future[Any]) -> Tensor:
    value = future.value()
    tensor: Tensor = value[0] if isinstance(value, (list, tuple)) else value
    return tensor


def _buckets(tensors: list[Tensor], capacity_bytes: int) -> list[list[Tensor]]:
    """Runs of tensors of one dtype holding at most `capacity_bytes` each (or a single larger tensor)."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        same = buckets and buckets[-1][0].dtype == tensor.dtype
        if not same or size + tensor.nbytes > capacity_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets
