"""Numbers as people read them: measured ones to four significant digits, counts whole, thousands grouped."""

from __future__ import annotations

import math
from collections.abc import Callable

from gasweep.analysis.estimate import Estimate

DIGITS = 4


def number(value: float) -> str:
    """
    >>> number(11943.2), number(0.031250), number(156.34), number(3e12)
    ('11,940', '0.03125', '156.3', '3e+12')
    """
    if value == 0 or not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{DIGITS}g}"
    places = DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    text = f"{rounded:,.{max(places, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """A batch size or number of steps, every digit of it: people type these back in.

    >>> count(16384), count(100000.0), count(120.5)
    ('16,384', '100,000', '120.5')
    """
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else number(value)


def estimate(value: Estimate, text: Callable[[float], str] = number) -> str:
    """An estimate with its interval, `≥ X` or `≤ X` where one side is all there is, or the reason.

    text: how a single number is written.
    """
    low, high = ("?" if side is None else text(side) for side in (value.low, value.high))
    if value.value is not None and value.low is None and value.high is None and value.reason:
        return f"{text(value.value)}, without an interval ({value.reason})"
    if value.value is not None:
        return f"{text(value.value)} [{low}, {high}]"
    if value.low is not None and value.high is not None:
        return f"between {low} and {high} ({value.reason})"
    if value.low is not None:
        return f"≥ {low} ({value.reason})"
    if value.high is not None:
        return f"≤ {high} ({value.reason})"
    return f"unknown ({value.reason})"


def interval(value: Estimate) -> str:
    """The 95 % interval alone, or the reason where there is no value."""
    if value.value is None:
        return value.reason or ""
    return f"95 %: {_bound(value.low)} – {_bound(value.high)}"


def headline(value: Estimate) -> str:
    """The value alone, or the bound that is known, or that nothing is."""
    if value.value is not None:
        return number(value.value)
    if value.low is not None and value.high is None:
        return f"≥ {number(value.low)}"
    if value.high is not None and value.low is None:
        return f"≤ {number(value.high)}"
    return "not known"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0421), duration(75), duration(5400), duration(300000)
    ('42.1 ms', '1.25 min', '1.5 h', '3.47 d')
    """
    for unit, size, limit in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 60.0), ("min", 60.0, 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.3g} h" if seconds < 48 * 3600 else f"{seconds / 86400:.3g} d"


def size(num_bytes: float | None) -> str:
    """
    >>> size(7454760), size(12), size(None)
    ('7.45 MB', '12 B', '-')
    """
    if num_bytes is None:
        return "-"
    value = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def memory(num_bytes: float | None) -> str:
    """Of a device, in powers of 1024 as memory is sold; what is sent is in powers of 1000 (`size`).

    >>> memory(18368102400), memory(400_000_000), memory(None)
    ('17.1 GiB', '381 MiB', '-')
    """
    if num_bytes is None:
        return "-"
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.375), percent(None)
    ('37.5%', '-')
    """
    return "-" if fraction is None else f"{fraction:.1%}"


def _bound(value: float | None) -> str:
    return "?" if value is None else number(value)
