"""The interval of a median, shared by the experiments that time pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable


def median_interval(values: Iterable[float]) -> tuple[float, float]:
    """A 95 % interval for the median, from the order statistics alone (normal approximation of the binomial).

    Assumes: independent values of one distribution, at least some 20 of them; nothing of its shape.
    """
    ordered = sorted(values)
    middle, reach = len(ordered) / 2, 1.96 * math.sqrt(len(ordered)) / 2
    low, high = math.floor(middle - reach), math.ceil(middle + reach)
    return ordered[max(low, 0)], ordered[min(high, len(ordered) - 1)]
