"""How often to measure, so that measuring costs at most a stated share of the step time."""

from __future__ import annotations

import math
import statistics

_WARM_UP = 3
_PAIRS = 12
_MOST = 1000
_AIM = 0.5
"""Share of the allowed overhead that k is aimed at: allowed is what a repeat may find as its upper limit, and
twelve pairs leave the cost itself uncertain."""


class Cadence:
    """Every k-th optimizer step is measured. A given k holds from the first step on; without one, k follows
    from the cost found in the first steps, measured and plain ones in turn.

    The cost is the median over pairs of neighbouring steps plus two standard errors, and k is aimed at half
    the allowed overhead, since k must hold it and not only meet it on average: on a busy machine k is larger.

    every: k ≥ 1, or None. overhead_fraction: allowed, of the step time, e.g. 0.01; used when k is found.
    """

    def __init__(self, *, every: int | None, overhead_fraction: float) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"every={every!r} must be a whole number >= 1, or None to choose it")
        if not 0.0 < overhead_fraction <= 1.0:
            raise ValueError(f"overhead_fraction={overhead_fraction} must be in (0, 1]")
        self._fraction = overhead_fraction
        self._seconds: list[float] = []
        self.every = every

    @property
    def calibrates(self) -> bool:
        """Whether k is still being found; steps should then be timed with the device synchronised."""
        return self.every is None

    def is_due(self, optimizer_step: int) -> bool:
        """Whether `optimizer_step`, from 0, is measured."""
        if self.every is None:
            return len(self._seconds) > _WARM_UP and len(self._seconds) % 2 == _WARM_UP % 2
        return optimizer_step % self.every == 0

    def add(self, seconds: float) -> None:
        """The wall time of the step that `is_due` was last asked about."""
        if self.every is None:
            self._seconds.append(seconds)

    @property
    def cost(self) -> float | None:
        """Upper estimate of a measured step's extra time over a plain one's; None until enough were timed."""
        timed = self._seconds[_WARM_UP + 1 :]
        pairs = list(zip(timed[1::2], timed[2::2], strict=False))
        if len(pairs) < _PAIRS:
            return None
        plain = [second for _, second in pairs]
        typical = max(statistics.median(plain), 1e-9)
        extra = [(measured - second) / typical for measured, second in pairs]
        return statistics.median(extra) + 2.0 * statistics.stdev(extra) / math.sqrt(len(extra))

    def settle(self, cost: float) -> None:
        """Fix k for a measured step that costs `cost` of a plain step more; all ranks must give the same."""
        self.every = min(max(math.ceil(cost / (_AIM * self._fraction)), 1), _MOST)
