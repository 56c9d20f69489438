"""The gradient noise scale where a sweep's runs reached a target, to stand beside B_crit there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.noise_scale import NoiseMeasurement, NotMeasured
from gasweep.analysis.noise_scale_records import noise_measurements
from gasweep.analysis.noise_scale_window import noise_scale, steps_around
from gasweep.analysis.steps_to_target import TargetRule, crossing
from gasweep.analysis.study_report import NoiseSource, TargetReport
from gasweep.analysis.trials import StudyRun
from gasweep.errors import MeasurementError
from gasweep.results.reader import JournalReader

WINDOW_FRACTION = 0.2
MIN_WINDOW = 16
FAR = 2.0
"""Times WINDOW_FRACTION / 2 beyond which a measured step no longer stands for those at the crossing."""

Measured = NoiseMeasurement | NotMeasured


def noise_scale_at_target(
    reader: JournalReader, target: TargetReport, runs: Mapping[str, StudyRun]
) -> tuple[Estimate, NoiseSource | None]:
    """B_simple = tr Σ / |G|² in examples, around the optimizer step at which the target was reached.

    From the seeds of one batch size at its chosen learning rate: the batch size nearest to B_crit, where the
    two numbers are compared. Each seed gives the measured steps within ± WINDOW_FRACTION / 2 of its crossing,
    the nearest MIN_WINDOW where those are fewer, which the source says; their sums are pooled.

    runs: those the target was estimated from, by run id.
    Source: McCandlish et al. 2018, section 2.2 and App. A.
    Assumes: seeds measure the same gradient noise at the same loss.
    """
    chosen = _chosen(target)
    if chosen is None or target.rule is None:
        return _unknown("no learning rate reached the target"), None
    try:
        members = [run_id for run_id, run in runs.items() if (run.batch_size, run.learning_rate) == chosen]
        windows = [_around_crossing(reader, run_id, runs[run_id], target.rule) for run_id in members]
        steps = [step for window in windows for step in window.steps]
        estimate = noise_scale(steps).noise_scale if steps else _unknown("not measured")
    except MeasurementError as error:
        return _unknown(str(error)), None
    return estimate, _source(chosen, windows)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """One run's steps around its crossing at optimizer step `at`."""

    steps: list[Measured]
    at: float

    @property
    def measured(self) -> list[int]:
        return [step.optimizer_step for step in self.steps if isinstance(step, NoiseMeasurement)]


def _source(chosen: tuple[float, float], windows: list[_Window]) -> NoiseSource | None:
    steps = [step for window in windows for step in window.measured]
    if not steps:
        return None
    far = FAR * WINDOW_FRACTION / 2.0
    reach = [abs(step - one.at) > far * one.at for one in windows for step in one.measured]
    return NoiseSource(
        batch_size=chosen[0],
        learning_rate=chosen[1],
        num_runs=sum(bool(window.measured) for window in windows),
        num_measured=len(steps),
        first_step=min(steps),
        last_step=max(steps),
        is_widened=any(reach),
    )


def _chosen(target: TargetReport) -> tuple[float, float] | None:
    """The batch size nearest to B_crit among those with a winner, and its learning rate."""
    winners = [
        (batch.batch_size, batch.choice.winner.learning_rate)
        for batch in target.batches
        if batch.choice.winner is not None and batch.choice.winner.learning_rate is not None
    ]
    if not winners:
        return None
    critical = target.fit.critical_batch_size
    near = critical.value or critical.low or critical.high or winners[len(winners) // 2][0]
    return min(winners, key=lambda winner: abs(math.log(winner[0] / near)))


def _around_crossing(reader: JournalReader, run_id: str, run: StudyRun, rule: TargetRule) -> _Window:
    at = crossing(run.points or (), rule).steps
    if at is None:
        return _Window(steps=[], at=0.0)
    steps = steps_around(
        noise_measurements(reader.steps(run_id)),
        optimizer_step=at,
        window_fraction=WINDOW_FRACTION,
        min_window=MIN_WINDOW,
    )
    return _Window(steps=steps, at=at)


def _unknown(reason: str) -> Estimate:
    return Estimate(value=None, low=None, high=None, reason=reason)
