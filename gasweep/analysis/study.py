"""From runs to a report: steps to target, the learning rate of each batch size, then the fit, per target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gasweep.analysis.diagnostics import diagnose
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.fit import FitResult, fit_critical_batch_size
from gasweep.analysis.growth import growth
from gasweep.analysis.learning_rate_choice import (
    Bracket,
    RateChoice,
    RateTrial,
    choose_learning_rate,
    mean_log_steps,
)
from gasweep.analysis.learning_rate_curve import RateNeighbourhood, RatePoint, RateShift, rate_shifts
from gasweep.analysis.observation import Observation
from gasweep.analysis.steps_summary import summarise_steps
from gasweep.analysis.steps_to_target import TargetRule
from gasweep.analysis.study_report import BatchReport, StudyReport, TargetReport
from gasweep.analysis.trials import DIVERGED, StudyRun, apply_rule, set_outliers_aside, sort_into_trials

__all__ = ["DIVERGED", "BatchReport", "StudyReport", "StudyRun", "TargetReport", "fit_study"]

UNNAMED = "as given"
"""Target of a source that gives steps to one target and does not name it."""


def fit_study(
    runs: Sequence[StudyRun],
    targets: Sequence[TargetRule] = (),
    *,
    base_batch_size: float | None = None,
    noise_scale: Estimate | None = None,
) -> StudyReport:
    """One report per target, in the order given.

    targets: rules applied to runs that carry curves; runs without curves bring their own target names.
    base_batch_size: see `fit_critical_batch_size`.
    noise_scale: B_simple measured elsewhere, shown beside B_crit under its own name, never mixed with it.
    """
    noise = noise_scale or Estimate(value=None, low=None, high=None, reason="not measured")
    curves = [run for run in runs if run.points is not None]
    named = [run for run in runs if run.points is None]
    reports = [
        _report(str(rule), rule, [apply_rule(run, rule) for run in curves], base_batch_size, noise)
        for rule in targets
    ]
    for name in dict.fromkeys(run.target for run in named):
        members = [run for run in named if run.target == name]
        reports.append(_report(name or UNNAMED, None, members, base_batch_size, noise))
    return StudyReport(
        targets=tuple(reports), growth=tuple(growth(reports[: len(targets)])) if len(targets) > 1 else ()
    )


def _report(
    name: str, rule: TargetRule | None, runs: Sequence[StudyRun], base: float | None, noise: Estimate
) -> TargetReport:
    flags: list[str] = []
    trials, seed_sd = set_outliers_aside(sort_into_trials(runs, flags))
    choices = {batch: choose_learning_rate(group, seed_sd=seed_sd) for batch, group in trials.items()}
    shifts = rate_shifts(_neighbourhoods(trials, choices, seed_sd), seed_sd=seed_sd)
    entering = [item for batch, choice in choices.items() for item in _entering(choice, shifts.get(batch))]
    fit = fit_critical_batch_size(entering, base_batch_size=base)
    batches = tuple(
        _batch(batch, group, choices[batch], shifts.get(batch), fit) for batch, group in trials.items()
    )
    flags += [str(one) for group in trials.values() for trial in group for one in trial.set_aside]
    batches = tuple(replace(batch, flags=_choice_flags(batch)) for batch in batches)
    flags += [flag for batch in batches for flag in batch.flags]
    flags += [*fit.flags, *diagnose(entering, fit, runs)]
    return TargetReport(
        target=name, rule=rule, fit=fit, batches=batches, noise_scale=noise, flags=tuple(flags)
    )


def _neighbourhoods(
    trials: Mapping[float, Sequence[RateTrial]], choices: Mapping[float, RateChoice], seed_sd: float
) -> dict[float, RateNeighbourhood]:
    """The winners inside their grid, with their usable neighbours."""
    found = {}
    for batch, choice in choices.items():
        winner = choice.winner
        if winner is None or choice.is_upper_bound or choice.bracket in (Bracket.ONLY, Bracket.BEST_GIVEN):
            continue
        ordered = sorted(trials[batch], key=lambda trial: trial.learning_rate or 0.0)
        index = ordered.index(winner)
        below, above = ordered[index - 1], ordered[index + 1]
        complete = [one for one in (below, winner, above) if one.is_usable and not one.num_censored]
        if winner not in complete or len(complete) < 2:
            continue
        means = dict(
            zip((id(one) for one in complete), mean_log_steps(complete, seed_sd=seed_sd), strict=True)
        )
        points = [_point(one, means) if one in complete else None for one in (below, winner, above)]
        limit = math.log(above.learning_rate) if above.num_diverged and above.learning_rate else None
        if points[1] is not None:
            found[batch] = RateNeighbourhood(winner=points[1], below=points[0], above=points[2], limit=limit)
    return found


def _point(trial: RateTrial, means: Mapping[int, float]) -> RatePoint:
    rate = math.log(trial.learning_rate or 1.0)
    return RatePoint(log_rate=rate, mean=means[id(trial)], num_seeds=len(trial.observations))


def _entering(choice: RateChoice, shift: RateShift | None) -> tuple[Observation, ...]:
    """The winner's seeds as the fit takes them: moved to the best rate there is, or as an upper bound."""
    if choice.winner is None:
        return ()
    log_shift, log_sd = (shift.log_shift, shift.log_sd) if shift else (0.0, 0.0)
    return tuple(
        replace(item, is_upper_bound=choice.is_upper_bound, log_shift=log_shift, log_sd=log_sd)
        for item in choice.winner.observations
    )


def _batch(
    batch: float, trials: Sequence[RateTrial], choice: RateChoice, shift: RateShift | None, fit: FitResult
) -> BatchReport:
    seeds = choice.winner.observations if choice.winner else ()
    role, reason = _role(choice, trials)
    steps, median = summarise_steps(seeds)
    outliers = [one.observation for one in fit.outliers if one.observation.batch_size == batch]
    if choice.winner is not None:
        outliers += [one.observation for one in choice.winner.set_aside]
    return BatchReport(
        batch_size=batch,
        choice=choice,
        trials=tuple(trials),
        steps=steps,
        median_steps=median,
        role=role,
        reason=reason,
        outlier_seeds=tuple(item.seed for item in outliers),
        fitted_steps=fit.steps_at(batch),
        shift=shift,
    )


def _role(choice: RateChoice, trials: Sequence[RateTrial]) -> tuple[str, str | None]:
    if choice.winner is None:
        return "excluded", _why_no_winner(trials)
    censored = choice.winner.num_censored
    if choice.is_upper_bound:
        if censored:
            return "excluded", "the best rate tried is the grid's edge, and some of its seeds did not reach"
        return "upper bound", "the best rate tried is the grid's edge: the best steps are at most these"
    if censored == len(choice.winner.observations):
        return "lower bound", "no seed reached the target: the steps are more than those run"
    if censored:
        return "exact", f"{censored} of its seeds did not reach and count as longer than they ran"
    return "exact", None


def _why_no_winner(trials: Sequence[RateTrial]) -> str:
    if all(trial.num_diverged for trial in trials):
        if any(trial.observations for trial in trials):
            return "at every learning rate some seed diverged, so none took all of them to the target"
        return "every learning rate diverged"
    if not any(trial.observations for trial in trials):
        return "no run says anything"
    return "no learning rate took all its seeds to the target, so the best one is unknown"


def _choice_flags(batch: BatchReport) -> tuple[str, ...]:
    name, proposal = f"batch {batch.batch_size:g}", batch.choice.propose
    advice = f"; try {proposal:g}" if proposal else ""
    if batch.choice.winner is None:
        return (f"{name}: {batch.reason}; shown, not fitted",)
    if batch.role == "lower bound":
        return (f"{name}: {batch.reason}",)
    rate = batch.choice.winner.learning_rate
    if batch.choice.is_upper_bound and rate is not None:
        tie = " (a tie)" if batch.choice.bracket is Bracket.TIE else ""
        return (f"{name}: learning rate {rate:g}{tie} is the edge of its grid, not bracketed{advice}",)
    if batch.choice.bracket is Bracket.TIE and proposal:
        return (f"{name}: the grid's edge does nearly as well as the best learning rate{advice}",)
    return ()
