"""B_crit as training goes on: per target, and between adjacent targets, where it is a local quantity.

B_crit of a target mixes the whole run up to it. The steps between two targets of the same run obey the same
law with the B_crit of that stretch alone, which is what a batch ramp should follow.

Source: McCandlish et al. 2018, section 2.3 and figure 9 (B_crit grows as the loss falls).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.observation import Observation
from gasweep.analysis.study_report import GrowthPoint, TargetReport


def growth(reports: Sequence[TargetReport]) -> list[GrowthPoint]:
    """One point per target, easiest first, of runs that went through all of them.

    Assumes: the stretch is compared at the learning rate that is best for its harder target; a batch size
        whose rate is not bracketed there is left out. A seed that lacks the harder target is censored.
    """
    points = []
    ordered = sorted(reports, key=_typical_steps)
    for index, report in enumerate(ordered):
        previous = ordered[index - 1] if index else None
        points.append(
            GrowthPoint(
                target=report.target,
                critical_batch_size=report.fit.critical_batch_size,
                previous_target=previous.target if previous else None,
                local_critical_batch_size=local_critical_batch_size(previous, report) if previous else None,
            )
        )
    return points


def local_critical_batch_size(easier: TargetReport, harder: TargetReport) -> Estimate:
    """B_crit of the stretch of training between two targets."""
    return fit_critical_batch_size(_stretches(easier, harder)).critical_batch_size


def _typical_steps(report: TargetReport) -> float:
    """Steps at the smallest batch size fitted; targets that nothing reached come last."""
    steps = [batch.fitted_steps.value for batch in report.batches if batch.fitted_steps.value is not None]
    return steps[0] if steps else float("inf")


def _stretches(easier: TargetReport, harder: TargetReport) -> list[Observation]:
    """Steps from the easier to the harder target, seed by seed, in the same runs."""
    found = []
    for batch in harder.batches:
        winner = batch.choice.winner
        if winner is None or batch.choice.is_upper_bound:
            continue
        before = _seeds(easier, batch.batch_size, winner.learning_rate)
        outliers = set(batch.outlier_seeds)
        for item in winner.observations:
            start = before.get(item.seed)
            if start is not None and start.steps is not None and item.seed not in outliers:
                found += _stretch(item, start.steps)
    return found


def _stretch(item: Observation, start: float) -> list[Observation]:
    """The run of `item` counted from `start`; nothing where its evaluations cannot tell the targets apart."""
    if item.steps is not None and item.steps > start:
        return [replace(item, steps=item.steps - start, low=None, high=None)]
    if item.censored_at is not None and item.censored_at > start:
        return [replace(item, censored_at=item.censored_at - start)]
    return []


def _seeds(
    report: TargetReport, batch_size: float, learning_rate: float | None
) -> dict[int | str | None, Observation]:
    """A report's observations at one batch size and rate, by seed; none where seeds have no names."""
    for batch in report.batches:
        if batch.batch_size != batch_size:
            continue
        for trial in batch.trials:
            if trial.learning_rate == learning_rate:
                return {item.seed: item for item in trial.observations if item.seed is not None}
    return {}
