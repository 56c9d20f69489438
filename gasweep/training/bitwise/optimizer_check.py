"""Whether an optimizer's update of a shard has the bits of its update of the whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from gasweep.errors import RefusedError

_SIZE = 1003
_CUTS = (1, 334, 517)  # none a multiple of a vector register, so main and remainder loops change places
_STEPS = 4

BuildOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


def refuse_inexact_shards(build: BuildOptimizer, *, device: torch.device, dtype: torch.dtype) -> None:
    """Update a tensor whole and in uneven parts, on this device, and compare bits.

    An elementwise update could be the same in theory and is not always in practice: a kernel may compute its
    vectorised part and its remainder with different roundings (torch's fused SGD does on some CPUs).

    Raises RefusedError when the bits differ.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(_SIZE, generator=generator).to(device, dtype)
    bounds = [0, *_CUTS, _SIZE]
    pieces = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    whole, parts = [start.clone()], [start[piece].clone() for piece in pieces]
    optimizers = [build(whole), build(parts)]
    for _ in range(_STEPS):
        gradient = (torch.randn(_SIZE, generator=generator) * torch.rand(_SIZE, generator=generator)).to(
            device, dtype
        )
        whole[0].grad = gradient.clone()
        for part, piece in zip(parts, pieces, strict=True):
            part.grad = gradient[piece].clone()
        for optimizer in optimizers:
            optimizer.step()
    if not torch.equal(whole[0], torch.cat(parts)):
        raise RefusedError(
            f"determinism=bitwise: {type(optimizers[0]).__name__} on {device} updates a shard with other "
            f"bits than the whole tensor; use strategy=ddp or single"
        )
