"""What one run says about S(B): exact, between two evaluations, or longer than so many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Optimizer steps to one target, from one seed at the learning rate chosen for its batch size.

    batch_size: contributions per optimizer step, > 0.
    steps: optimizer steps, > 0, interpolated or exact. None: only the interval or the censoring is known.
    low, high: the crossing lies in (low, high] optimizer steps; with `steps` they bound the interpolation.
        low 0: reached by the first evaluation, so that `high` alone bounds it.
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
        _check("batch_size", self.batch_size, "must be a positive number")
        for name in ("steps", "high", "censored_at"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), "must be a positive number of optimizer steps, or None")
        if self.low is not None:
            _check("low", self.low, "must be a number of optimizer steps >= 0, or None", zero=True)
        _check("log_sd", self.log_sd, "must be a finite number >= 0", zero=True)
        if isinstance(self.log_shift, bool) or not math.isfinite(self.log_shift):
            raise ValueError(f"log_shift: {self.log_shift} must be a finite number")
        given = [name for name in ("steps", "low", "high") if getattr(self, name) is not None]
        if self.censored_at is not None and given:
            raise ValueError(
                f"censored_at: {self.censored_at} was given beside {given[0]}; a run is one or the other"
            )
        if self.censored_at is None and self.steps is None and self.high is None:
            raise ValueError("steps: give steps, an interval (low, high] or censored_at")
        self._check_order()

    def _check_order(self) -> None:
        present = [(name, getattr(self, name)) for name in ("low", "steps", "high")]
        present = [(name, value) for name, value in present if value is not None]
        for (lesser, low), (greater, high) in pairwise(present):
            if low > high:
                raise ValueError(f"{lesser}: {low} must not exceed {greater}: {high}")

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


def _check(name: str, value: object, constraint: str, *, zero: bool = False) -> None:
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{name}: {value!r} {constraint}")
