"""The fitted law S(B) = S_min + E_min/B as a function with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gasweep.analysis.estimate import Estimate


@dataclass(frozen=True, kw_only=True)
class StepsLaw:
    """Optimizer steps to target at any effective batch size, from the two fitted constants.

    min_steps: S_min, optimizer steps of an infinitely large batch.
    min_examples: E_min, contributions needed by an infinitely small batch.

    Source: McCandlish et al. 2018, eq. 2.7, written as S = S_min + E_min/B.
    Assumes: the errors of S_min and E_min are not positively correlated. They are the intercept and the slope
    of a line in 1/B > 0, whose errors are negatively correlated, so the interval errs on the wide side.
    """

    min_steps: Estimate
    min_examples: Estimate

    def steps(self, effective_batch_size: float) -> Estimate:
        """S(B) with its 95 % interval, to first order in log space; a side that is unknown stays None.

        Raises nothing: without both values the answer is None with the reason.
        """
        steps, examples = self.min_steps.value, self.min_examples.value
        if steps is None or examples is None:
            missing = self.min_steps if steps is None else self.min_examples
            return Estimate(value=None, low=None, high=None, reason=f"no fitted law: {missing.reason}")
        value = steps + examples / effective_batch_size
        share = steps / value
        return Estimate(
            value=value,
            low=_side(value, share, self.min_steps, self.min_examples, high=False),
            high=_side(value, share, self.min_steps, self.min_examples, high=True),
        )

    def examples(self, effective_batch_size: float) -> Estimate:
        """E(B) = B·S(B), in contributions."""
        return scale(self.steps(effective_batch_size), effective_batch_size)


def scale(estimate: Estimate, factor: float) -> Estimate:
    """An estimate times an exact positive factor."""
    return Estimate(
        value=None if estimate.value is None else estimate.value * factor,
        low=None if estimate.low is None else estimate.low * factor,
        high=None if estimate.high is None else estimate.high * factor,
        reason=estimate.reason,
    )


def _side(value: float, share: float, steps: Estimate, examples: Estimate, *, high: bool) -> float | None:
    of_steps, of_examples = _log_half_width(steps, high=high), _log_half_width(examples, high=high)
    if of_steps is None or of_examples is None:
        return None
    width = math.hypot(share * of_steps, (1 - share) * of_examples)
    return value * math.exp(width if high else -width)


def _log_half_width(estimate: Estimate, *, high: bool) -> float | None:
    bound = estimate.high if high else estimate.low
    if bound is None or estimate.value is None or bound <= 0 or estimate.value <= 0:
        return None
    return abs(math.log(bound / estimate.value))
