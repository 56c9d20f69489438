"""Which order-independent sum of gradients? Time, memory and error of four candidates.

    python experiments/bitwise_representation.py [--elements 1000000] [--grains 64] [--output FILE]

Adds the gradients of K grains of P float32 elements whose magnitudes span 2^20, as
    float32      plain addition, in the order of the grains: fast mode, not order-independent
    tree         float32, in a fixed binary tree over the grains: order-fixed, log2 K + 1 partial sums alive
    pre-rounded  float64 multiples of one quantum (Rump; Demmel and Nguyen): 53 bits, exact in any order
    int64        integers on one grid: 62 bits, exact in any order (what bitwise mode uses)
and prints milliseconds of CPU time per grain (median), bytes of running sums per element, bytes on the wire
per element of a sum over ranks, whether a reversed order gave the same bits, and the largest and mean error
against exact addition, relative to the largest element of the sum.
"""

from __future__ import annotations

import argparse
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gasweep.training.bitwise.fixed_point import HEADROOM_BITS, add_quantized, dequantize, grid_for


class Sum(ABC):
    """A running sum of K gradients with elements up to `peak`."""

    name: str
    wire_bytes: int

    def __init__(self, size: int, *, grains: int, peak: float) -> None:
        self.size, self.grains, self.peak = size, grains, peak

    @abstractmethod
    def add(self, gradient: Tensor) -> None: ...

    @abstractmethod
    def value(self) -> Tensor: ...

    @abstractmethod
    def bytes_per_element(self) -> int: ...


class Plain(Sum):
    name, wire_bytes = "float32", 4

    def __init__(self, size: int, *, grains: int, peak: float) -> None:
        super().__init__(size, grains=grains, peak=peak)
        self._sum = torch.zeros(size)

    def add(self, gradient: Tensor) -> None:
        self._sum.add_(gradient)

    def value(self) -> Tensor:
        return self._sum

    def bytes_per_element(self) -> int:
        return 4


class Tree(Sum):
    """Pairs of equal height are added as soon as both are there. Over ranks: every rank's partial sums must
    travel to where the tree joins them, at least the log2 of its grains of them unless shares are aligned."""

    name, wire_bytes = "tree", 4

    def __init__(self, size: int, *, grains: int, peak: float) -> None:
        super().__init__(size, grains=grains, peak=peak)
        self._stack: list[tuple[int, Tensor]] = []
        self._most = 0

    def add(self, gradient: Tensor) -> None:
        height, value = 0, gradient.clone()
        while self._stack and self._stack[-1][0] == height:
            value = self._stack.pop()[1].add_(value)
            height += 1
        self._stack.append((height, value))
        self._most = max(self._most, len(self._stack))

    def value(self) -> Tensor:
        total = self._stack[-1][1]
        for _, value in reversed(self._stack[:-1]):
            total = value + total
        return total

    def bytes_per_element(self) -> int:
        return 4 * (self._most + 1)


class PreRounded(Sum):
    name, wire_bytes = "pre-rounded", 8

    def __init__(self, size: int, *, grains: int, peak: float) -> None:
        super().__init__(size, grains=grains, peak=peak)
        limit = 53 - (grains - 1).bit_length() - HEADROOM_BITS
        quantum = 2.0 ** (np.frexp(peak)[1] - limit)
        self._anchor = 1.5 * 2.0**52 * quantum
        self._sum = torch.zeros(size, dtype=torch.float64)

    def add(self, gradient: Tensor) -> None:
        self._sum.add_(gradient.double().add_(self._anchor).sub_(self._anchor))

    def value(self) -> Tensor:
        return self._sum.float()

    def bytes_per_element(self) -> int:
        return 8


class Integers(Sum):
    name, wire_bytes = "int64", 8

    def __init__(self, size: int, *, grains: int, peak: float) -> None:
        super().__init__(size, grains=grains, peak=peak)
        self._grid = grid_for(peak, num_grains=grains)
        self._sum = torch.zeros(size, dtype=torch.int64)

    def add(self, gradient: Tensor) -> None:
        add_quantized(self._sum, gradient, scale=self._grid.scale)

    def value(self) -> Tensor:
        return dequantize(self._sum, scale=self._grid.scale, dtype=torch.float32)

    def bytes_per_element(self) -> int:
        return 8


def gradients(size: int, grains: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    scale = 2.0 ** -torch.randint(0, 21, (size,), generator=generator)
    return [torch.randn(size, generator=generator) * scale for _ in range(grains)]


def total_of(kind: type[Sum], data: list[Tensor], peak: float) -> tuple[Sum, list[float]]:
    running = kind(data[0].numel(), grains=len(data), peak=peak)
    seconds = []
    for gradient in data:
        started = time.process_time()
        running.add(gradient)
        seconds.append(time.process_time() - started)
    return running, seconds


def exact_sum(data: list[Tensor]) -> np.ndarray:
    """Float64 sums of float32 numbers of a span below 2^29 and K <= 2^10 terms: exact here."""
    total = np.zeros(data[0].numel(), dtype=np.longdouble)
    for gradient in data:
        total += gradient.numpy().astype(np.longdouble)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--grains", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = gradients(options.elements, options.grains)
    peak = float(max(gradient.abs().max() for gradient in data))
    exact = exact_sum(data)
    largest = float(np.abs(exact).max())
    lines = [
        f"{options.grains} grains of {options.elements} float32 elements, one thread",
        f"{'sum':<12} {'ms/grain':>8} {'sums, B':>8} {'wire, B':>8} {'any order':>9} "
        f"{'max error':>10} {'mean error':>10}",
    ]
    for kind in (Plain, Tree, PreRounded, Integers):
        times: list[float] = []
        for _ in range(options.repeats):
            running, seconds = total_of(kind, data, peak)
            times += seconds
        backwards, _ = total_of(kind, data[::-1], peak)
        error = np.abs(running.value().numpy().astype(np.longdouble) - exact)
        same = torch.equal(running.value(), backwards.value())
        lines.append(
            f"{kind.name:<12} {np.median(times) * 1e3:8.2f} {running.bytes_per_element():8d} "
            f"{kind.wire_bytes:8d} {'yes' if same else 'no':>9} {float(error.max()) / largest:10.1e} "
            f"{float(error.mean()) / largest:10.1e}"
        )
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
