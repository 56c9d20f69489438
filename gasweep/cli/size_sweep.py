"""What a sweep tells the sizing recipe: B_crit, how many steps to expect, a learning rate to start from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.sizing import Baseline
from gasweep.cli.size_setting import hardest_target
from gasweep.results.directory import JOURNAL_FILE


@dataclass(frozen=True, kw_only=True)
class SweptRate:
    """The best learning rate at one batch size; flags: what `fit` says against it."""

    effective_batch_size: int
    learning_rate: float
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepAnswer:
    """What a sweep found for its hardest target.

    critical_batch_size: its lower bound where that is all that was found.
    rates: of the batch sizes where a seed reached the target.
    note: where this comes from, one line.
    """

    critical_batch_size: float | None
    min_steps: float | None
    rates: tuple[SweptRate, ...]
    note: str

    def steps(self, batch_size: int) -> float | None:
        """Optimizer steps to expect at `batch_size`."""
        if self.critical_batch_size is None or self.min_steps is None:
            return None
        return self.min_steps * (1 + self.critical_batch_size / batch_size)

    def baseline(self, batch_size: int, *, warmup_optimizer_steps: int) -> Baseline | None:
        """The best rate at the swept batch size nearest, in ratio, to `batch_size`."""
        if not self.rates:
            return None
        found = min(self.rates, key=lambda rate: abs(math.log(rate.effective_batch_size / batch_size)))
        return Baseline(
            learning_rate=found.learning_rate,
            effective_batch_size=found.effective_batch_size,
            warmup_optimizer_steps=warmup_optimizer_steps,
            source="the sweep's best rate there",
            caution=tuple(f"the learning rate starts from the sweep's: {flag}" for flag in found.flags),
        )


def sweep_answer(directory: Path, setting: dict[str, Any]) -> SweepAnswer | None:
    """None where no sweep has run, or none of its targets at `setting` has an answer yet.

    setting: the value of each extra axis.
    """
    if not (directory / JOURNAL_FILE).is_file():
        return None
    from gasweep.cli.answer import answer_of

    target = hardest_target(answer_of(directory, plot=False).to_dict()["targets"], setting)
    return None if target is None else answer_from(target, directory=directory)


def answer_from(target: dict[str, Any], *, directory: Path) -> SweepAnswer:
    """From one target of `fit`'s JSON object."""
    estimate = Estimate(**target["critical_batch_size"])
    axes = "".join(f", {path}={value}" for path, value in target.get("axes", {}).items())
    return SweepAnswer(
        critical_batch_size=estimate.low if estimate.value is None else estimate.value,
        min_steps=target["min_steps"]["value"],
        rates=tuple(
            SweptRate(
                effective_batch_size=int(seen["effective_batch_size"]),
                learning_rate=float(seen["learning_rate"]),
                flags=tuple(seen["flags"]),
            )
            for seen in target["observations"]
            if seen["learning_rate"] is not None and seen["num_reached"] > 0
        ),
        note=f"B_crit of {directory} for {target['target']}{axes}: {estimate} examples",
    )
