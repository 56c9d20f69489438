"""What one run says about S(B): exact, between two evaluations, or longer than so many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Optimizer steps to one target, from one seed at the learning rate chosen for its batch size.

    batch_size: contributions per optimizer step, > 0.
    steps: optimizer steps, > 0, interpolated or exact. None: only the interval or the censoring is known.
    low, high: the crossing lies in (low, high] optimizer steps; with `steps` they bound the interpolation.
    censored_at: the target was not reached by this optimizer step; then `steps`, `low`, `high` are None.
    is_upper_bound: the learning rate was the best tried, not the best there is: the steps only bound S(B)
        from above.
    log_shift: log(steps at the best learning rate / steps at the best one tried); added to log steps.
    log_sd: its standard deviation, shared by all seeds of this batch size.
    """

    batch_size: float
    steps: float | None = None
    low: float | None = None
    high: float | None = None
    censored_at: float | None = None
    learning_rate: float | None = None
    seed: int | str | None = None
    is_upper_bound: bool = False
    log_shift: float = 0.0
    log_sd: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.batch_size) and self.batch_size > 0):
            raise ValueError(f"batch_size: {self.batch_size} must be a positive number")
        for name in ("steps", "high", "censored_at"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value} must be a positive number of optimizer steps, or None")
        if self.censored_at is not None and (self.steps is not None or self.high is not None):
            raise ValueError(
                f"censored_at: {self.censored_at} was given beside steps; a run is one or the other"
            )
        if self.censored_at is None and self.steps is None and self.high is None:
            raise ValueError("steps: give steps, an interval (low, high] or censored_at")
        if self.high is not None and (self.low or 0.0) > self.high:
            raise ValueError(f"low: {self.low} must not exceed high: {self.high}")

    @property
    def is_reached(self) -> bool:
        return self.censored_at is None

    @property
    def log_interval(self) -> tuple[float, float]:
        """Natural logs between which log S lies; equal for an exact value, infinite where open."""
        if self.censored_at is not None:
            return math.log(self.censored_at), math.inf
        if self.steps is not None:
            return math.log(self.steps), math.log(self.steps)
        if self.high is None:
            raise AssertionError("an observation without steps has an interval")
        return (math.log(self.low) if self.low else -math.inf), math.log(self.high)

    @property
    def log_spacing(self) -> float:
        """Relative width of the evaluation interval, 0 where unknown or open."""
        return math.log(self.high / self.low) if self.high and self.low else 0.0
