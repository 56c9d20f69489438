"""Runs sorted into trials: one per batch size and learning rate (or variant), for one target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gasweep.analysis.learning_rate_choice import RateTrial
from gasweep.analysis.likelihood import build_rows
from gasweep.analysis.observation import Observation
from gasweep.analysis.outlier_seeds import OutlierSeed, find_outlier_seeds
from gasweep.analysis.seed_variance import pure_error
from gasweep.analysis.steps_to_target import Points, TargetRule, crossing

DIVERGED = "diverged"
Trials = dict[float, list[RateTrial]]


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
    variant: other settings that were tried at this batch size without being a scan of learning rates; the
        best variant counts.
    warmup_steps: optimizer steps of linear warm-up, for the flag on constant delays.
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
    variant: str | None = None
    warmup_steps: float | None = None


def apply_rule(run: StudyRun, rule: TargetRule) -> StudyRun:
    """`run` with its curve turned into steps to `rule`; one that reached it and then diverged has reached."""
    found = crossing(run.points or (), rule)
    if found.reached:
        return replace(run, steps=found.steps, low=found.low, high=found.high, state="reached")
    state = DIVERGED if run.state == DIVERGED else "censored"
    return replace(run, steps=None, low=None, high=None, last_step=found.last_step, state=state)


def sort_into_trials(runs: Sequence[StudyRun], flags: list[str]) -> Trials:
    """Batch size -> its trials, both ascending. Runs that say nothing are left out, with a flag per reason.

    Raises: ValueError naming the run whose numbers are none.
    """
    left_out: dict[str, list[str]] = {}
    cells: dict[tuple[float, float, str], list[StudyRun]] = {}
    for run in runs:
        key = (run.batch_size, run.learning_rate or 0.0, run.variant or "")
        cells.setdefault(key, []).append(run)
    trials: Trials = {}
    for (batch, _, _), members in sorted(cells.items()):
        kept = [_observation(run, left_out) for run in members if run.state != DIVERGED]
        trial = RateTrial(
            learning_rate=members[0].learning_rate,
            variant=members[0].variant,
            observations=tuple(item for item in kept if item is not None),
            num_diverged=sum(run.state == DIVERGED for run in members),
        )
        trials.setdefault(batch, []).append(trial)
    flags += [f"{listed(names)}: {reason}" for reason, names in left_out.items()]
    return trials


def listed(names: Sequence[str], *, limit: int = 3) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def set_outliers_aside(trials: Trials) -> tuple[Trials, float]:
    """The trials without seeds that disagree with the others of their trial, and the seeds' spread.

    The spread is the standard deviation of log steps between seeds, pooled over all trials; 0 where none has
    two seeds. One corrupt seed would both widen it and make its learning rate lose.
    """
    flat = [trial for group in trials.values() for trial in group]
    cells = [
        (index, item, replace(item, batch_size=1.0 + index))
        for index, trial in enumerate(flat)
        for item in trial.observations
    ]
    kept, outliers = find_outlier_seeds([cell for _, _, cell in cells], use_law=False)
    accused = {id(outlier.observation): outlier for outlier in outliers}
    aside: dict[int, list[OutlierSeed]] = {}
    for index, item, cell in cells:
        if id(cell) in accused:
            aside.setdefault(index, []).append(replace(accused[id(cell)], observation=item))
    cleaned = iter([_without(trial, aside.get(index, [])) for index, trial in enumerate(flat)])
    seed_sd = (pure_error(build_rows(kept)).sigma or 0.0) if kept else 0.0
    return {batch: [next(cleaned) for _ in group] for batch, group in trials.items()}, seed_sd


def _without(trial: RateTrial, outliers: Sequence[OutlierSeed]) -> RateTrial:
    accused = {id(outlier.observation) for outlier in outliers}
    kept = tuple(item for item in trial.observations if id(item) not in accused)
    return replace(trial, observations=kept, set_aside=tuple(outliers))


def _observation(run: StudyRun, left_out: dict[str, list[str]]) -> Observation | None:
    """The run as an observation; None where it says nothing about S(B), with its name under the reason."""
    where = run.source or f"batch {run.batch_size:g}, learning rate {run.learning_rate}, seed {run.seed}"
    reached = run.steps is not None or run.high is not None
    if reached and not (run.steps or run.high):
        left_out.setdefault("the untrained model already meets the target; run left out", []).append(where)
        return None
    if not reached and not run.last_step:
        left_out.setdefault("not reached, and its last step is unknown or 0; run left out", []).append(where)
        return None
    try:
        return Observation(
            batch_size=run.batch_size,
            steps=run.steps,
            low=run.low if reached else None,
            high=run.high,
            censored_at=None if reached else run.last_step,
            learning_rate=run.learning_rate,
            seed=run.seed,
        )
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from None
