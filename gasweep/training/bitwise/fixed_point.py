"""Order-independent sums: floating-point gradients as integers on one grid for the whole step.

A grain's gradient g becomes the integer round(g · 2^e); integers add exactly, so their sum does not depend on
how the grains were spread over ranks, micro-steps or collectives. e is agreed before the step.

Bits of an int64: the sum of K grains stays below 2^62 when every |g| · 2^e < 2^(62 - ceil(log2 K)).

Source: integer (fixed-point) reproducible summation; Demmel and Nguyen, "Parallel Reproducible Summation",
IEEE Transactions on Computers 64(7), 2015, discusses it and the pre-rounded floating-point form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

HEADROOM_BITS = 8
"""A grain's gradient may grow 2^8-fold from one step to the next before the step must be recomputed."""

SHRINK_BITS = 16
"""It may shrink 2^16-fold before the step is recomputed on a finer grid."""

SUM_BITS = 62
_EXPONENT_RANGE = 126
"""2^e and 2^-e stay normal float32 numbers."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of one step: multiples of 2^-exponent, wide enough for `num_grains` grains.

    exponent: e. num_grains: K, the grains of the whole optimizer step, over all ranks.
    """

    exponent: int
    num_grains: int

    @property
    def scale(self) -> float:
        """2^e, exact in float32."""
        return math.ldexp(1.0, self.exponent)

    @property
    def quantum(self) -> float:
        """2^-e, the distance of two grid points."""
        return math.ldexp(1.0, -self.exponent)

    def holds(self, peak: float) -> bool:
        """Whether no sum of K grains with elements up to `peak` can overflow."""
        return peak == 0.0 or math.frexp(peak)[1] + self.exponent <= _limit_bits(self.num_grains)

    def resolves(self, peak: float) -> bool:
        """Whether the grid is fine enough for grains whose largest element is `peak` (0 always is)."""
        if peak == 0.0 or self.exponent == _EXPONENT_RANGE:
            return True
        slack = HEADROOM_BITS + SHRINK_BITS
        return math.frexp(peak)[1] + self.exponent >= _limit_bits(self.num_grains) - slack

    def sum_error_bound(self) -> float:
        """Largest |Σ of K rounded grains - Σ of the K float grains|, per element: K/2 quanta."""
        return self.num_grains * self.quantum / 2


def grid_for(peak: float, *, num_grains: int) -> Grid:
    """The grid for a step whose largest grain element is expected to be `peak`.

    Depends on `peak` and K alone, which are the same whatever the layout. peak 0 gives the finest grid.
    """
    wanted = _limit_bits(num_grains) - HEADROOM_BITS - math.frexp(peak)[1]
    if peak == 0.0:
        wanted = _EXPONENT_RANGE
    return Grid(exponent=max(-_EXPONENT_RANGE, min(_EXPONENT_RANGE, wanted)), num_grains=num_grains)


def add_quantized(total: Tensor, gradient: Tensor, *, scale: float | Tensor) -> None:
    """total += round(gradient · scale), elementwise; ties to even.

    total: int64, any shape. gradient: float32 or float64 of the same shape. scale: a power of two, or one for
    each element. |gradient| · scale must stay below 2^62: the caller checks the peak, and discards the sum if
    it did not; a non-finite element gives an unspecified integer and a non-finite peak.
    """
    total.add_(torch.mul(gradient, scale).round_().to(torch.int64))


def peak_of(gradient: Tensor) -> Tensor:
    """max |gradient| as a 0-dim float64 tensor; NaN if any element is NaN, 0 for an empty tensor."""
    if gradient.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=gradient.device)
    low, high = torch.aminmax(gradient)
    return torch.maximum(-low, high).double()


def dequantize(total: Tensor, *, scale: float, dtype: torch.dtype) -> Tensor:
    """total / scale in `dtype`: rounded to float64, divided by a power of two (exact), rounded to `dtype`."""
    return total.to(torch.float64).div_(scale).to(dtype)


def _limit_bits(num_grains: int) -> int:
    return SUM_BITS - (num_grains - 1).bit_length()
