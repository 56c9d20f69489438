"""The Euclidean norm of a gradient, the same bits however the gradient is sharded.

A floating-point sum depends on its order, and with it the clipping factor. Here every square is cut into
two limbs on a fixed grid, whose sums are exact in float64 within a chunk and in int64 over chunks and ranks.

Per tensor: x the smallest exponent with |g| < 2^x, y = (g · 2^-x)² in [0, 1), exact in float64 for float32 g;
y = hi + lo + rest with hi a multiple of 2^-LIMB, lo of 2^-2·LIMB and |rest| <= 2^-(2·LIMB + 1).
The sum of n squares is thus within n · 2^-65 of the exact one, relative to the largest square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gasweep.training.bitwise.fixed_point import peak_of

LIMB_BITS = 32
_CHUNK = 1 << 15  # elements: chunk sums stay below 2^(15 + 32) quanta, exact in float64, and fit the cache
_GPU_CHUNK = 1 << 20  # 2^(20 + 32) quanta: the most that float64 adds exactly
_MAX_ELEMENTS = 1 << 30  # int64 holds 2^62 quanta

AllReduce = Callable[[Tensor], object]


def exact_norm(
    gradients: Sequence[Tensor], *, reduce_max: AllReduce | None = None, reduce_sum: AllReduce | None = None
) -> Tensor:
    """Euclidean norm of all tensors together, a float64 scalar on their device.

    gradients: float32 or float64, whole tensors, or this rank's shards of them.
    reduce_max, reduce_sum: in-place all-reduce over the ranks with the other shards; None: whole tensors.

    Non-finite elements give NaN. Assumes: fewer than 2^30 elements per tensor (checked).
    """
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    peaks = torch.stack([peak_of(gradient) for gradient in gradients])
    peaks = torch.where(peaks.isfinite(), peaks, math.inf)
    if reduce_max is not None:
        reduce_max(peaks)
    finite = peaks.isfinite().all()
    exponents = torch.frexp(torch.where(peaks.isfinite(), peaks, 0.0)).exponent
    scales = torch.ldexp(torch.ones_like(peaks), -exponents)
    limbs = torch.stack([_limbs(gradient, scale) for gradient, scale in zip(gradients, scales, strict=True)])
    if reduce_sum is not None:
        reduce_sum(limbs)
    high, low = limbs.double().unbind(1)
    squares = (high + low * 2.0**-LIMB_BITS) * 2.0**-LIMB_BITS / scales.square()
    return torch.where(finite, squares.sum().sqrt(), math.nan)


def _limbs(gradient: Tensor, scale: Tensor) -> Tensor:
    """Σ hi and Σ lo of one tensor, in quanta, int64 of shape [2]."""
    if gradient.numel() > _MAX_ELEMENTS:
        raise ValueError(
            f"a tensor of {gradient.numel()} elements is above the {_MAX_ELEMENTS} one norm can add"
        )
    total = torch.zeros(2, dtype=torch.int64, device=gradient.device)
    size = _CHUNK if gradient.device.type == "cpu" else _GPU_CHUNK
    for chunk in gradient.reshape(-1).split(size):  # type: ignore[no-untyped-call]
        y = (chunk.double() * scale).square_()  # not in place: .double() of a float64 is itself
        high = _round_to(y, LIMB_BITS)
        low = _round_to(y.sub_(high), 2 * LIMB_BITS)
        sums = torch.stack((high.sum() * 2.0**LIMB_BITS, low.sum() * 2.0 ** (2 * LIMB_BITS)))
        total += sums.to(torch.int64)
    return total


def _round_to(values: Tensor, bits: int) -> Tensor:
    """The multiples of 2^-bits nearest to `values`: adding a large enough constant drops what is below."""
    anchor = 1.5 * 2.0 ** (52 - bits)
    return (values + anchor).sub_(anchor)
