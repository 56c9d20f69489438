"""Tensor parallelism inside a micro-batch, FSDP2 over the data-parallel ranks: a mesh of N x T processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from gasweep.training.strategies.fsdp import FsdpStrategy


class TensorParallelStrategy(FsdpStrategy):
    """Splits layers over T ranks, which together compute each micro-batch, and shards over N groups of them.

    Accumulation does not notice: a group of T ranks is one data-parallel rank, with the same examples, the
    same loss and the same optimizer; only where gradients and norms are added up does the mesh show. Process
    number r of the default group is data-parallel rank r // T: that, and N, is what `process` holds.

    plan: layer name pattern -> style, as `torch.distributed.tensor.parallel.parallelize_module` takes it.
    """

    name = "tensor_parallel"

    def __init__(self, *, tensor_parallel_size: int, plan: dict[str, ParallelStyle], **options: Any) -> None:
        super().__init__(**options)
        self._size = tensor_parallel_size
        self._plan = plan

    def gradient_norm(self, parameters: list[Tensor]) -> Tensor:
        # One by one: split and unsplit parameters lie on different meshes, which no single call may mix.
        norms = [_norm(tensor.grad) for tensor in parameters if tensor.grad is not None]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.meter.count("all_reduce", tensor.nbytes, control=True)
        if self.meter.is_muted:
            return tensor.mul_(self.process.world_size)
        dist.all_reduce(tensor, group=self._mesh["data"].get_group())
        return tensor

    def _data_mesh(self, module: nn.Module) -> DeviceMesh:
        device = torch.device(self.process.device).type
        shape = (self.process.world_size, self._size)
        self._mesh = init_device_mesh(device, shape, mesh_dim_names=("data", "tensor"))
        parallelize_module(module, self._mesh["tensor"], self._plan)
        return self._mesh["data"]


def _norm(gradient: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(gradient)
    whole: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole
