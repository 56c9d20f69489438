"""The running integer sums of all gradients of one rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gasweep.training.bitwise.fixed_point import Grid, add_quantized, dequantize, grid_for, peak_of

UNTOUCHED = -1.0
"""The peak of a parameter that no backward reached: its gradient is None, not zero."""


class GradientTotals:
    """One int64 sum and one peak per parameter, each on its own grid.

    Memory: 8 bytes per parameter element; the finished gradients lie in the same bytes.

    shapes: whole (unsharded) shapes, in the order of the indices given to `add`.
    """

    def __init__(self, shapes: Sequence[torch.Size], *, device: torch.device) -> None:
        self.shapes = list(shapes)
        sizes = [shape.numel() for shape in self.shapes]
        self._flat = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._totals: list[Tensor] = list(self._flat.split(sizes))  # type: ignore[no-untyped-call]
        self._peaks = torch.empty(len(sizes), dtype=torch.float64, device=device)
        self._grids: list[Grid] = []

    def reset(self, expected_peaks: Sequence[float], *, num_grains: int) -> None:
        """Start a step of `num_grains` grains on the grids for `expected_peaks` (0: nothing known)."""
        self._grids = [grid_for(peak, num_grains=num_grains) for peak in expected_peaks]
        self._flat.zero_()
        self._peaks.fill_(UNTOUCHED)

    def add(self, index: int, gradient: Tensor) -> None:
        """Add one grain's gradient of parameter `index`."""
        peak = self._peaks[index]
        torch.maximum(peak, peak_of(gradient), out=peak)
        add_quantized(self._totals[index], gradient.reshape(-1), scale=self._grids[index].scale)

    @property
    def peaks(self) -> Tensor:
        """Largest |element| of any grain so far, per parameter; inf where one was not finite."""
        return torch.where(self._peaks.isnan(), torch.inf, self._peaks)

    @property
    def flat(self) -> Tensor:
        """All sums end to end, int64: what ranks that hold whole parameters add up in place."""
        return self._flat

    def total(self, index: int) -> Tensor:
        """The sum of parameter `index`, int64, in its whole shape."""
        return self._totals[index].view(self.shapes[index])

    def fits(self, peaks: Sequence[float]) -> bool:
        """Whether every grid held its sums without overflow and was fine enough for them."""
        return all(
            grid.holds(peak) and grid.resolves(peak)
            for grid, peak in zip(self._grids, peaks, strict=True)
            if peak != UNTOUCHED
        )

    def gradient(self, index: int, *, dtype: torch.dtype) -> Tensor:
        """The sum of parameter `index` in its whole shape, written over the sum."""
        total = self._totals[index]
        place = total.view(dtype)[: total.numel()]
        place.copy_(self.as_gradient(total, index, dtype=dtype))
        return place.view(self.shapes[index])

    def as_gradient(self, total: Tensor, index: int, *, dtype: torch.dtype) -> Tensor:
        """`total`, all of parameter `index`'s sum or a shard of it, as a gradient."""
        return dequantize(total, scale=self._grids[index].scale, dtype=dtype)

    def error_bound(self, index: int) -> float:
        """Largest error of parameter `index`'s gradient against exact addition, final rounding excepted."""
        return self._grids[index].sum_error_bound()
