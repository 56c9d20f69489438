"""What the noise scale's public functions require of their arguments, as one-line errors."""

from __future__ import annotations

import math

from gasweep.errors import MeasurementError


def require_finite(name: str, value: float, *, at_least: float | None = None) -> None:
    """Raises MeasurementError unless `value` is a finite number, and ≥ `at_least` where that is given."""
    if isinstance(value, bool) or not _is_finite(value):
        raise MeasurementError(f"{name}={value!r} must be a finite number; leave such a step out instead")
    if at_least is not None and value < at_least:
        raise MeasurementError(f"{name}={value!r} must be >= {at_least:g}")


def require_whole(name: str, value: float, *, at_least: int) -> None:
    """Raises MeasurementError unless `value` is a whole number ≥ `at_least`."""
    if isinstance(value, bool) or not _is_finite(value) or value != int(value) or value < at_least:
        raise MeasurementError(f"{name}={value!r} must be a whole number >= {at_least}")


def require_share(name: str, value: float, *, up_to_one: bool) -> None:
    """Raises MeasurementError unless `value` lies in (0, 1), or in (0, 1] with `up_to_one`."""
    if not _is_finite(value) or not (0.0 < value < 1.0 or (up_to_one and value == 1.0)):
        raise MeasurementError(f"{name}={value!r} must be in (0, 1{']' if up_to_one else ')'}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False
