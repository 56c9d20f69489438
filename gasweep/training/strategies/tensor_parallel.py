"""Tensor parallelism inside a micro-batch, FSDP2 over the data-parallel ranks: a mesh of N x T processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from gasweep.training.meter import DATA_GROUP
from gasweep.training.strategies.fsdp import FsdpStrategy
from gasweep.training.strategies.model_collectives import ModelCollectives

TENSOR_GROUP = "tensor"


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
        with self._collectives.as_control():
            norms = [_norm(tensor.grad) for tensor in parameters if tensor.grad is not None]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total

    def data_group(self) -> dist.ProcessGroup:
        return self._mesh[DATA_GROUP].get_group()

    def counting(self) -> AbstractContextManager[object]:
        return self._collectives

    def _data_mesh(self, module: nn.Module) -> DeviceMesh:
        device = torch.device(self.process.device).type
        shape = (self.process.world_size, self._size)
        self._mesh = init_device_mesh(device, shape, mesh_dim_names=(DATA_GROUP, TENSOR_GROUP))
        self.meter.group_sizes[TENSOR_GROUP] = self._size
        self._collectives = ModelCollectives(
            self.meter,
            groups={self._mesh[name].get_group().group_name: name for name in (DATA_GROUP, TENSOR_GROUP)},
        )
        parallelize_module(module, self._mesh[TENSOR_GROUP], self._plan)
        return self._mesh[DATA_GROUP]


def _norm(gradient: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(gradient)
    whole: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole
