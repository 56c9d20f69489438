"""Adding integer sums over the ranks, for whole and for sharded parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from gasweep.errors import RefusedError
from gasweep.training.bitwise.norm import exact_norm
from gasweep.training.bitwise.totals import GradientTotals
from gasweep.training.parts import TrainingParts

# torch renames the function, and warns at the old name.
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Exchange(ABC):
    """What the ranks of one run tell each other in a bitwise step. All ranks make the same calls."""

    every_rank_runs_equally_often = False
    """Whether a forward is itself a collective, so that a rank with fewer grains must run empty ones."""

    def __init__(self, parts: TrainingParts) -> None:
        self._parameters = [tensor for _, tensor in parts.parameters]
        self._meter = parts.strategy.meter
        self._alone = parts.process.world_size == 1
        self._bucket_bytes = max(1, int(parts.strategy.options.bucket_cap_mb * 2**20))

    def largest(self, values: Tensor) -> Tensor:
        """The elementwise maximum over ranks, in place; no value may be NaN."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def add_control(self, values: Tensor) -> Tensor:
        """The elementwise sum over ranks, in place, of values that add exactly."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def fill_gradients(self, value: float) -> None:
        """Set every gradient to `value`."""
        for parameter in self._parameters:
            parameter.grad = torch.full_like(parameter, value)

    def unsynced_bytes(self, num_micro_steps: int) -> int:
        """The metered step's wire bytes, had the sums been exchanged on every micro-step."""
        sent = self._meter.model
        return sent.total_bytes + (num_micro_steps - 1) * sent.bytes_of("all_reduce", "reduce_scatter")

    @abstractmethod
    def sum_gradients(self, totals: GradientTotals, reached: Sequence[bool]) -> None:
        """Set `.grad` to the sum over ranks; None where no backward of any rank reached."""

    @abstractmethod
    def gradient_norm(self) -> Tensor:
        """Norm of the whole gradient in `.grad`, order-independent."""

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if not self._alone:
            self._meter.count("all_reduce", values, control=True)
            dist.all_reduce(values, op=operation)
        return values


class WholeExchange(Exchange):
    """Every rank holds whole parameters: one integer all-reduce, in pieces of the bucket size."""

    def sum_gradients(self, totals: GradientTotals, reached: Sequence[bool]) -> None:
        if not self._alone:
            for piece in totals.flat.split(max(1, self._bucket_bytes // 8)):  # type: ignore[no-untyped-call]
                self._meter.count("all_reduce", piece)
                dist.all_reduce(piece)
        for index, parameter in enumerate(self._parameters):
            gradient = None
            if reached[index]:
                gradient = totals.gradient(index, dtype=parameter.dtype)
            parameter.grad = gradient

    def gradient_norm(self) -> Tensor:
        return exact_norm([parameter.grad for parameter in self._parameters if parameter.grad is not None])


class ShardedExchange(Exchange):
    """FSDP2: parameters sharded along dimension 0; one integer reduce-scatter per bucket."""

    every_rank_runs_equally_often = True

    def __init__(self, parts: TrainingParts) -> None:
        super().__init__(parts)
        self._world_size = parts.process.world_size
        for name, tensor in parts.parameters:
            if not isinstance(tensor, DTensor) or tensor.placements != (Shard(0),):
                raise RefusedError(
                    f"determinism=bitwise: {name} is not sharded along its first dimension over the "
                    f"data-parallel ranks alone; use strategy single, ddp or fsdp"
                )

    def sum_gradients(self, totals: GradientTotals, reached: Sequence[bool]) -> None:
        for bucket in self._buckets(totals):
            shards = self._reduce_scatter([totals.total(index) for index in bucket])
            for index, shard in zip(bucket, shards, strict=True):
                parameter = cast(DTensor, self._parameters[index])
                if not reached[index]:
                    parameter.grad = None
                    continue
                rows = shard[: parameter.to_local().shape[0]]
                parameter.grad = _as_sharded(
                    totals.as_gradient(rows, index, dtype=parameter.dtype), like=parameter
                )

    def gradient_norm(self) -> Tensor:
        shards = [cast(DTensor, p.grad).to_local() for p in self._parameters if p.grad is not None]
        return exact_norm(shards, reduce_max=self.largest, reduce_sum=self.add_control)

    def _buckets(self, totals: GradientTotals) -> Iterator[list[int]]:
        """Runs of parameter indices whose sums fill one bucket (or a single larger one)."""
        bucket: list[int] = []
        size = 0
        for index in range(len(self._parameters)):
            num_bytes = totals.total(index).nbytes
            if bucket and size + num_bytes > self._bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(index)
            size += num_bytes
        if bucket:
            yield bucket

    def _reduce_scatter(self, sums: list[Tensor]) -> list[Tensor]:
        """This rank's rows of each sum over the ranks, padded to equal shares."""
        shares = [-(-total.shape[0] // self._world_size) for total in sums]
        blocks = [_padded(total, share * self._world_size) for total, share in zip(sums, shares, strict=True)]
        source = torch.cat([block.reshape(self._world_size, -1) for block in blocks], dim=1)
        result = source.new_empty(source.shape[1])
        self._meter.count("reduce_scatter", source)
        _reduce_scatter(result, source.reshape(-1))
        sizes = [block.numel() // self._world_size for block in blocks]
        pieces = result.split(sizes)  # type: ignore[no-untyped-call]
        return [
            piece.view(share, *total.shape[1:])
            for piece, share, total in zip(pieces, shares, sums, strict=True)
        ]


def exchange_for(parts: TrainingParts) -> Exchange:
    """The exchange that fits how the run's strategy holds its parameters."""
    if any(isinstance(tensor, DTensor) for _, tensor in parts.parameters):
        return ShardedExchange(parts)
    return WholeExchange(parts)


def _padded(total: Tensor, rows: int) -> Tensor:
    if total.shape[0] == rows:
        return total
    return torch.cat((total, total.new_zeros(rows - total.shape[0], *total.shape[1:])))


def _as_sharded(shard: Tensor, *, like: DTensor) -> DTensor:
    """`shard` as the gradient of `like`, with its mesh, placement and whole shape."""
    return DTensor.from_local(
        shard, like.device_mesh, like.placements, run_check=False, shape=like.size(), stride=like.stride()
    )
