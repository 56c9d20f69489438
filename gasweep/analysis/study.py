"""From runs to a report: steps to target, the learning rate of each batch size, then the fit, per target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student_t

from gasweep.analysis.cost_law import sample_law
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.fit import FitResult, fit_critical_batch_size
from gasweep.analysis.learning_rate_choice import Bracket, RateChoice, RateTrial, choose_learning_rate
from gasweep.analysis.likelihood import build_rows
from gasweep.analysis.observation import Observation
from gasweep.analysis.seed_variance import pure_error
from gasweep.analysis.steps_to_target import Points, TargetRule, crossing

DIVERGED = "diverged"


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """What one run measured: a curve, or the steps to one named target.

    batch_size: contributions per optimizer step. learning_rate: None when it was already chosen.
    points: (optimizer_step, metric) at evaluations; then `target`, `steps`, `low`, `high` are unused.
    target: which target `steps` belongs to, for sources without curves; None where there is only one.
    steps, low, high: optimizer steps to target and the evaluation interval; all None: not reached.
    last_step: the last optimizer step run; needed where the target was not reached.
    state: "reached", "censored", "pruned" or "diverged".
    source: where the run came from, for messages ("runs.csv line 12").
    """

    batch_size: float
    learning_rate: float | None = None
    seed: int | str | None = None
    points: Points | None = None
    target: str | None = None
    steps: float | None = None
    low: float | None = None
    high: float | None = None
    last_step: float | None = None
    state: str = "reached"
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """One batch size of one target: the rate chosen, what was seen, and what part it plays in the fit."""

    batch_size: float
    choice: RateChoice
    trials: tuple[RateTrial, ...]
    steps: Estimate
    median_steps: float | None
    role: str  # "exact" | "upper bound" | "lower bound" | "excluded"
    reason: str | None  # why, for anything but exact
    outlier_seeds: tuple[int | str | None, ...]
    fitted_steps: Estimate

    def to_dict(self) -> dict[str, Any]:
        winner = self.choice.winner
        seeds = winner.observations if winner else ()
        return {
            "effective_batch_size": self.batch_size,
            "learning_rate": winner.learning_rate if winner else None,
            "learning_rate_label": str(self.choice.bracket),
            "learning_rates_tied": list(self.choice.tied_with),
            "learning_rate_proposed": self.choice.propose,
            "num_seeds": len(seeds),
            "num_reached": sum(item.is_reached for item in seeds),
            "num_censored": sum(trial.num_censored for trial in ([winner] if winner else self.trials)),
            "num_diverged": sum(trial.num_diverged for trial in self.trials),
            "steps_to_target": self.steps.to_dict(),
            "median_steps_to_target": self.median_steps,
            "examples_to_target": scale(self.steps, self.batch_size).to_dict(),
            "fitted_steps": self.fitted_steps.to_dict(),
            "role": self.role,
            "reason": self.reason,
            "seeds": [_seed_dict(item, item.seed in self.outlier_seeds) for item in seeds],
            "learning_rates": [_trial_dict(trial) for trial in self.trials],
        }


@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """The fit of one target with everything it rests on. rule: None for sources that name targets only."""

    target: str
    rule: TargetRule | None
    fit: FitResult
    batches: tuple[BatchReport, ...]
    noise_scale: Estimate
    flags: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "rule": self.rule.to_dict() if self.rule else None,
            "critical_batch_size": self.fit.critical_batch_size.to_dict(),
            "min_steps": self.fit.min_steps.to_dict(),
            "min_examples": self.fit.min_examples.to_dict(),
            "critical_batch_size_20pct": self.fit.critical_batch_size_20pct.to_dict(),
            "noise_scale": self.noise_scale.to_dict(),
            "flags": list(self.flags),
            "observations": [batch.to_dict() for batch in self.batches],
            "law": sample_law(self.fit.steps_at, [batch.batch_size for batch in self.batches]),
        }


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    targets: tuple[TargetReport, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"targets": [target.to_dict() for target in self.targets]}


def fit_study(
    runs: Sequence[StudyRun],
    targets: Sequence[TargetRule] = (),
    *,
    base_batch_size: float | None = None,
    noise_scale: Estimate | None = None,
) -> StudyReport:
    """One report per target, hardest last as given.

    targets: rules applied to runs that carry curves; runs without curves bring their own target names.
    noise_scale: B_simple measured elsewhere, shown beside B_crit under its own name, never mixed with it.
    """
    noise = noise_scale or Estimate(value=None, low=None, high=None, reason="not measured")
    reports = [
        _report(
            str(rule),
            rule,
            [_apply(run, rule) for run in runs if run.points is not None],
            base_batch_size,
            noise,
        )
        for rule in targets
    ]
    named = [run for run in runs if run.points is None]
    for name in dict.fromkeys(run.target for run in named):
        members = [run for run in named if run.target == name]
        reports.append(_report(name or "target", None, members, base_batch_size, noise))
    return StudyReport(targets=tuple(reports))


def _apply(run: StudyRun, rule: TargetRule) -> StudyRun:
    """`run` with its curve turned into steps to `rule`."""
    found = crossing(run.points or (), rule)
    if found.reached:
        return replace(run, steps=found.steps, low=found.low, high=found.high, state="reached")
    state = DIVERGED if run.state == DIVERGED else "censored"
    return replace(run, steps=None, low=None, high=None, last_step=found.last_step, state=state)


def _report(
    name: str, rule: TargetRule | None, runs: Sequence[StudyRun], base: float | None, noise: Estimate
) -> TargetReport:
    flags: list[str] = []
    trials = _trials(runs, flags)
    seed_sd = _pooled_sd(trials)
    choices = {batch: choose_learning_rate(group, seed_sd=seed_sd) for batch, group in trials.items()}
    entering = {batch: _entering(choice) for batch, choice in choices.items()}
    fit = fit_critical_batch_size(
        [item for group in entering.values() for item in group], base_batch_size=base
    )
    batches = tuple(_batch(batch, trials[batch], choices[batch], fit) for batch in sorted(trials))
    for batch in batches:
        flags += _choice_flags(batch)
    return TargetReport(
        target=name, rule=rule, fit=fit, batches=batches, noise_scale=noise, flags=(*flags, *fit.flags)
    )


def _trials(runs: Sequence[StudyRun], flags: list[str]) -> dict[float, list[RateTrial]]:
    cells: dict[tuple[float, float | None], list[StudyRun]] = {}
    for run in runs:
        cells.setdefault((run.batch_size, run.learning_rate), []).append(run)
    trials: dict[float, list[RateTrial]] = {}
    for (batch, rate), members in sorted(cells.items(), key=lambda cell: (cell[0][0], cell[0][1] or 0.0)):
        kept = [_observation(run, flags) for run in members if run.state != DIVERGED]
        trial = RateTrial(
            learning_rate=rate,
            observations=tuple(item for item in kept if item is not None),
            num_diverged=sum(run.state == DIVERGED for run in members),
        )
        trials.setdefault(batch, []).append(trial)
    return trials


def _observation(run: StudyRun, flags: list[str]) -> Observation | None:
    """The run as an observation, or None with a flag where it says nothing about S(B)."""
    where = run.source or f"batch {run.batch_size:g}, learning rate {run.learning_rate}, seed {run.seed}"
    reached = run.steps is not None or run.high is not None
    if reached and not (run.steps or run.high):
        flags.append(f"{where}: the untrained model already meets the target; run left out")
        return None
    if not reached and not run.last_step:
        flags.append(f"{where}: not reached, and its last step is unknown or 0; run left out")
        return None
    return Observation(
        batch_size=run.batch_size,
        steps=run.steps,
        low=run.low,
        high=run.high,
        censored_at=None if reached else run.last_step,
        learning_rate=run.learning_rate,
        seed=run.seed,
    )


def _pooled_sd(trials: dict[float, list[RateTrial]]) -> float:
    """Seed standard deviation of log steps, pooled over all (batch size, learning rate) cells."""
    cells: list[Observation] = []
    for index, trial in enumerate(trial for group in trials.values() for trial in group):
        cells += [replace(item, batch_size=1.0 + index) for item in trial.observations]
    if not cells:
        return 0.0
    return pure_error(build_rows(cells)).sigma or 0.0


def _entering(choice: RateChoice) -> tuple[Observation, ...]:
    if choice.winner is None:
        return ()
    return tuple(replace(item, is_upper_bound=choice.is_upper_bound) for item in choice.winner.observations)


def _batch(batch: float, trials: Sequence[RateTrial], choice: RateChoice, fit: FitResult) -> BatchReport:
    seeds = choice.winner.observations if choice.winner else ()
    role, reason = _role(choice, seeds)
    steps, median = summarise_steps(seeds)
    outliers = tuple(one.observation.seed for one in fit.outliers if one.observation.batch_size == batch)
    return BatchReport(
        batch_size=batch,
        choice=choice,
        trials=tuple(trials),
        steps=steps,
        median_steps=median,
        role=role,
        reason=reason,
        outlier_seeds=outliers,
        fitted_steps=fit.steps_at(batch),
    )


def _role(choice: RateChoice, seeds: Sequence[Observation]) -> tuple[str, str | None]:
    if choice.winner is None:
        return "excluded", "no learning rate reached the target in every seed that finished"
    if choice.is_upper_bound:
        if any(not item.is_reached for item in seeds):
            return "excluded", "the best rate tried is the grid's edge, and some of its seeds did not reach"
        return "upper bound", "the best rate tried is the grid's edge: the best steps are at most these"
    return "exact", None


def summarise_steps(seeds: Sequence[Observation]) -> tuple[Estimate, float | None]:
    """Mean steps over seeds and its 95 % interval from these seeds alone, and their median.

    A seed that was not reached leaves the mean bounded from below only; the median stays exact as long as
    the middle seeds reached. Intervals are of the geometric mean, back on the steps' own scale.
    """
    if not seeds:
        return Estimate(value=None, low=None, high=None, reason="no seed"), None
    values = sorted(_point(item) for item in seeds)
    middle = sorted(seeds, key=_point)[(len(seeds) - 1) // 2 : len(seeds) // 2 + 1]
    median = math.fsum(_point(item) for item in middle) / len(middle)
    known = median if all(item.is_reached for item in middle) else None
    mean = math.fsum(values) / len(values)
    censored = sum(not item.is_reached for item in seeds)
    if censored:
        reason = f"{censored} of {len(seeds)} seeds did not reach the target"
        return Estimate(value=None, low=mean, high=None, reason=reason), known
    if len(values) == 1:
        return Estimate(value=mean, low=None, high=None), known
    return Estimate(
        value=mean, low=min(mean, _log_interval(values)[0]), high=max(mean, _log_interval(values)[1])
    ), known


def _log_interval(values: Sequence[float]) -> tuple[float, float]:
    logs = np.log(values)
    half = float(student_t.ppf(0.975, len(values) - 1) * logs.std(ddof=1)) / math.sqrt(len(values))
    centre = math.log(math.fsum(values) / len(values))
    return math.exp(centre - half), math.exp(centre + half)


def _point(item: Observation) -> float:
    if item.censored_at is not None:
        return item.censored_at
    if item.steps is not None:
        return item.steps
    return 0.5 * ((item.low or 0.0) + (item.high or 0.0))


def scale(estimate: Estimate, factor: float) -> Estimate:
    """`estimate` times a positive number."""
    ends = [None if end is None else end * factor for end in (estimate.value, estimate.low, estimate.high)]
    return Estimate(value=ends[0], low=ends[1], high=ends[2], reason=estimate.reason)


def _choice_flags(batch: BatchReport) -> list[str]:
    name, proposal = f"batch {batch.batch_size:g}", batch.choice.propose
    advice = f"; try {proposal:g}" if proposal else ""
    if batch.choice.bracket is Bracket.NONE:
        return [f"{name}: {batch.reason}; shown, not fitted"]
    if batch.choice.bracket is Bracket.EDGE:
        rate = batch.choice.winner.learning_rate if batch.choice.winner else None
        return [f"{name}: learning rate {rate:g} is the edge of its grid, not bracketed{advice}"]
    if batch.choice.bracket is Bracket.TIE and proposal:
        return [f"{name}: the grid's edge ties with the best learning rate{advice}"]
    return []


def _seed_dict(item: Observation, is_outlier: bool) -> dict[str, Any]:
    return {
        "seed": item.seed,
        "steps_to_target": item.steps,
        "evaluation_low": item.low,
        "evaluation_high": item.high,
        "censored_at": item.censored_at,
        "outlier": is_outlier,
    }


def _trial_dict(trial: RateTrial) -> dict[str, Any]:
    steps, median = summarise_steps(trial.observations)
    return {
        "learning_rate": trial.learning_rate,
        "num_seeds": len(trial.observations) + trial.num_diverged,
        "num_censored": trial.num_censored,
        "num_diverged": trial.num_diverged,
        "steps_to_target": steps.to_dict(),
        "median_steps_to_target": median,
        "seeds": [_seed_dict(item, False) for item in trial.observations],
    }
