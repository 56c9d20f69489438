"""Range checks for task arguments, one line each."""

from __future__ import annotations

import math

from gasweep.errors import TaskError


def require_whole(task: str, name: str, value: int, *, at_least: int) -> None:
    """Raise TaskError unless `value` is a whole number >= `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise TaskError(f"{task}: {name}={value!r} must be a whole number >= {at_least}")


def require_number(
    task: str, name: str, value: float, *, low: float, high: float = math.inf, low_included: bool = True
) -> None:
    """Raise TaskError unless `value` is a finite number between `low` and `high`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    inside = number and low <= value <= high and (low_included or value > low)
    if not inside:
        bound = f"{'>=' if low_included else '>'} {low:g}"
        if high < math.inf:
            bound += f" and <= {high:g}"
        raise TaskError(f"{task}: {name}={value!r} must be a finite number {bound}")


def refuse_root(task: str, root: str | None, *, source: str) -> None:
    """Raise TaskError when `data.root` is set for a task whose data is no files."""
    if root is not None:
        raise TaskError(f"{task}: data.root={root!r} has no use here, its data {source}; remove data.root")
