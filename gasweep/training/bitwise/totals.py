"""The running integer sums of all gradients of one rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gasweep.errors import RefusedError
from gasweep.training.bitwise.fixed_point import Grid, add_quantized, dequantize, grid_for

UNTOUCHED = -1.0
"""The peak of a parameter that no backward reached: its gradient is None, not zero."""


SMALL = 8192
"""Elements up to which a gradient is gathered with others: most tensors of a model are norms and biases, on
which an operation costs its call."""


class GradientTotals:
    """One int64 sum and one peak per parameter, each on its own grid.

    Memory: 8 bytes per parameter element; the finished gradients lie in the same bytes. Small gradients of a
    grain wait side by side and are added together when it ends.

    shapes: whole (unsharded) shapes, in the order of the indices given to `add`.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        """dtype: float32, or float64 where any gradient is: what gradients are widened to."""
        self.shapes = list(shapes)
        self._dtype = dtype
        sizes = [shape.numel() for shape in self.shapes]
        self._flat = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._small = [index for index, size in enumerate(sizes) if size <= SMALL]
        large = [index for index, size in enumerate(sizes) if size > SMALL]
        self._totals = _cut(self._flat, sizes, order=self._small + large)
        small_sizes = [sizes[index] for index in self._small]
        self._small_sizes = torch.tensor(small_sizes, dtype=torch.int64, device=device)
        self._waiting = torch.zeros(sum(small_sizes), dtype=dtype, device=device)
        self._places = _cut(self._waiting, sizes, order=self._small)
        self._peaks = torch.empty(len(sizes), dtype=torch.float64, device=device)
        self._extremes = torch.empty(2, len(sizes), dtype=dtype, device=device)
        self._cells = [(self._extremes[0, i], self._extremes[1, i]) for i in range(len(sizes))]
        self._grids: list[Grid] = []
        self._seen: set[int] = set()

    def reset(self, expected_peaks: Sequence[float], *, num_grains: int) -> None:
        """Start a step of `num_grains` grains on the grids for `expected_peaks` (0: nothing known)."""
        self._grids = [grid_for(peak, num_grains=num_grains) for peak in expected_peaks]
        scales = torch.tensor([self._grids[index].scale for index in self._small], dtype=self._dtype)
        self._scales = scales.to(self._flat.device).repeat_interleave(self._small_sizes)
        self._flat.zero_()
        self._peaks.fill_(UNTOUCHED)
        self._open_grain()

    def add(self, index: int, gradient: Tensor) -> None:
        """Add the open grain's gradient of parameter `index`.

        Raises RefusedError when it comes in pieces: the grid holds one element per grain.
        """
        if index in self._seen:
            raise RefusedError(
                f"determinism=bitwise: parameter {index} gets its gradient in pieces of one backward, "
                f"as reentrant activation checkpointing makes them; use checkpoint(..., use_reentrant=False)"
            )
        self._seen.add(index)
        wide = gradient.detach().reshape(-1).to(self._dtype)
        if wide.numel():
            torch.aminmax(wide, out=self._cells[index])
        if index in self._places:
            self._places[index].copy_(wide)
        else:
            add_quantized(self._totals[index], wide, scale=self._grids[index].scale)

    def end_grain(self) -> None:
        """Add what waits, and take note of the grain's largest elements."""
        add_quantized(self._flat[: len(self._waiting)], self._waiting, scale=self._scales)
        low, high = self._extremes.double()
        torch.maximum(self._peaks, torch.maximum(-low, high), out=self._peaks)
        self._open_grain()

    @property
    def peaks(self) -> Tensor:
        """Largest |element| of any grain so far, per parameter; inf where one was not finite."""
        return torch.where(self._peaks.isnan(), torch.inf, self._peaks)

    @property
    def flat(self) -> Tensor:
        """All sums end to end, int64: what ranks that hold whole parameters add up in place."""
        return self._flat

    def _open_grain(self) -> None:
        self._extremes[0].fill_(-UNTOUCHED)
        self._extremes[1].fill_(UNTOUCHED)
        self._waiting.zero_()
        self._seen.clear()

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


def _cut(flat: Tensor, sizes: Sequence[int], *, order: Sequence[int]) -> dict[int, Tensor]:
    """The piece of `flat` of each index in `order`, one after the other."""
    pieces = flat[: sum(sizes[i] for i in order)].split([sizes[i] for i in order])  # type: ignore[no-untyped-call]
    return dict(zip(order, pieces, strict=True))
