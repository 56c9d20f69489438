"""An estimate: a value with its 95 % interval, or the reason why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`value` is None when `reason` says why; "at least X" is low=X, high=None; "at most X" the reverse.

    Invariants: no NaN or infinity anywhere; low <= value <= high where present.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None

    def __post_init__(self) -> None:
        for number in (self.value, self.low, self.high):
            if number is not None and not math.isfinite(number):
                raise AssertionError(f"estimate holds {number}")
        if self.value is None and self.reason is None:
            raise AssertionError("an estimate without a value needs a reason")

    def to_dict(self) -> dict[str, float | str | None]:
        return {"value": self.value, "low": self.low, "high": self.high, "reason": self.reason}

    def __str__(self) -> str:
        if self.value is not None and self.low is None and self.high is None and self.reason:
            return f"{self.value:.4g}, without an interval ({self.reason})"
        if self.value is not None:
            low = "?" if self.low is None else f"{self.low:.4g}"
            high = "?" if self.high is None else f"{self.high:.4g}"
            return f"{self.value:.4g} [{low}, {high}]"
        if self.low is not None and self.high is None:
            return f"≥ {self.low:.4g} ({self.reason})"
        if self.high is not None and self.low is None:
            return f"≤ {self.high:.4g} ({self.reason})"
        return f"unknown ({self.reason})"
