"""B = b·N·G and its inverse, refusing whatever has no exact answer."""

from __future__ import annotations

from gasweep.errors import BatchError


def require_positive_int(value: object, *, field: str, error: type[Exception] = BatchError) -> int:
    """`value` as an int ≥ 1; `True`, `2.0` and `"4"` are refused, naming `field`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{field}={value!r} must be a whole number >= 1")
    if value < 1:
        raise error(f"{field}={value} must be >= 1")
    return value


def effective_batch_size(*, micro_batch_size: int, world_size: int, accumulation_steps: int) -> int:
    """B = b·N·G, in contributions per optimizer step.

    >>> effective_batch_size(micro_batch_size=4, world_size=2, accumulation_steps=3)
    24
    """
    b = require_positive_int(micro_batch_size, field="micro_batch_size")
    n = require_positive_int(world_size, field="world_size")
    g = require_positive_int(accumulation_steps, field="accumulation_steps")
    return b * n * g


def solve_accumulation_steps(
    *, effective_batch_size: int, micro_batch_size: int, world_size: int, incomplete_groups: bool = False
) -> int:
    """The per-rank G with which b·N·G makes `effective_batch_size`.

    With `incomplete_groups=True` the last group of a rank may be smaller (or, on some ranks, empty), so
    every B ≥ N has an exact answer: G = ceil(ceil(B / N) / b). Without, b·N must divide B.

    Raises BatchError naming B, b and N when B < N, when b·N does not divide B, or when B < b·N.

    >>> solve_accumulation_steps(effective_batch_size=4096, micro_batch_size=8, world_size=64)
    8
    """
    total = require_positive_int(effective_batch_size, field="effective_batch_size")
    b = require_positive_int(micro_batch_size, field="micro_batch_size")
    n = require_positive_int(world_size, field="world_size")
    if total < n:
        raise BatchError(
            f"effective_batch_size={total} is smaller than world_size={n}: every rank needs at least one "
            f"example per optimizer step; use world_size <= {total}"
        )
    if incomplete_groups:
        largest_share = (total + n - 1) // n
        return (largest_share + b - 1) // b
    if total % (b * n) != 0:
        below, above = total // (b * n) * b * n, (total // (b * n) + 1) * b * n
        nearest = f"{below} or {above}" if below else f"{above}"
        raise BatchError(
            f"effective_batch_size={total} is not a multiple of micro_batch_size*world_size={b}*{n}={b * n}; "
            f"use {nearest}, or allow incomplete last groups (sweep.incomplete_groups=true)"
        )
    return total // (b * n)
