"""What `gasweep verify` found, as data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from gasweep.config.run_spec import Layout
from gasweep.training.verify.compare import Pair, Verdict


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The answer of `verify`.

    equal: the worst verdict of any pair. causes: one line each, when different. notes: what was compared, and
    what bounds hold. reference_deviation: largest deviation of any layout's gradient, at the run's precision,
    from the single-group gradient in float64; None where that was not needed or the task does not run so.
    """

    equal: Verdict
    effective_batch_size: int
    layouts: list[Layout]
    pairs: list[Pair]
    causes: list[str]
    reference_deviation: float | None
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """1 when different."""
        return 1 if self.equal == "different" else 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: {equal, pairs, causes, ...}; a number that is not finite is null."""
        data: dict[str, Any] = _finite(dataclasses.asdict(self))
        return data


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
