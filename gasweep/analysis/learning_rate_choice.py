"""One learning rate per batch size and target, for all seeds: the least mean, and how sure that is.

The minimum is taken over seed means, never per seed: a per-seed minimum is biased low by the number of rates
tried. A rate at which any seed diverged is not usable. Runs not reached count as longer than they ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gasweep.analysis.observation import Observation


class Bracket(StrEnum):
    """What the neighbours of the chosen learning rate say about it."""

    BRACKETED = "bracketed"  # both neighbours were tried and are worse
    EDGE = "edge"  # first or last of the rates tried: a better one may lie outside
    BOUNDED_BY_DIVERGENCE = "bounded by divergence"  # the next higher rate diverged
    TIE = "tie"  # another rate does as well
    ONLY = "only"  # a single rate was given: taken as already chosen
    NONE = "none"  # no rate reached the target


@dataclass(frozen=True, kw_only=True)
class RateTrial:
    """All seeds of one learning rate at one batch size."""

    learning_rate: float | None
    observations: tuple[Observation, ...]
    num_diverged: int = 0

    @property
    def num_censored(self) -> int:
        return sum(not item.is_reached for item in self.observations)

    @property
    def is_usable(self) -> bool:
        """Every seed that finished can be averaged, and one at least reached the target."""
        return self.num_diverged == 0 and any(item.is_reached for item in self.observations)


@dataclass(frozen=True, kw_only=True)
class RateChoice:
    """The chosen trial and its standing among the others.

    tied_with: rates whose mean cannot be told from the winner's. propose: the rate to try next, where the
    grid does not bracket the optimum. is_upper_bound: its steps only bound the best steps from above.
    """

    winner: RateTrial | None
    bracket: Bracket
    tied_with: tuple[float, ...] = ()
    propose: float | None = None
    is_upper_bound: bool = False


def choose_learning_rate(trials: Sequence[RateTrial], *, seed_sd: float) -> RateChoice:
    """The trial with the least mean log steps, labelled by its neighbours.

    seed_sd: standard deviation of log steps between seeds, pooled over the study.
    """
    ordered = sorted(trials, key=lambda trial: trial.learning_rate or 0.0)
    usable = [trial for trial in ordered if trial.is_usable]
    if not usable:
        return RateChoice(winner=None, bracket=Bracket.NONE)
    means = mean_log_steps(usable, seed_sd=seed_sd)
    best = int(np.argmin(means))
    winner = usable[best]
    if len(ordered) == 1:
        return RateChoice(winner=winner, bracket=Bracket.ONLY)
    ties = [
        trial
        for trial, mean in zip(usable, means, strict=True)
        if trial is not winner and mean - means[best] <= _tie_margin(winner, trial, seed_sd)
    ]
    return _label(ordered, winner, ties)


def mean_log_steps(trials: Sequence[RateTrial], *, seed_sd: float) -> list[float]:
    """Mean log steps of each trial as if all had run the same seeds.

    Where seeds are missing from some rates, a rate must not win by the luck of its seeds: rate and seed
    effects are fitted together, so that rates are compared over the seeds they share. Censored seeds enter
    by their expectation beyond the step at which they were stopped.
    """
    values = [[_expected(item, trial, seed_sd) for item in trial.observations] for trial in trials]
    seeds = [[item.seed for item in trial.observations] for trial in trials]
    plain = [float(np.mean(value)) for value in values]
    names = sorted({seed for row in seeds for seed in row if seed is not None}, key=str)
    balanced = all(sorted(row, key=str) == sorted(seeds[0], key=str) for row in seeds)
    if balanced or any(seed is None for row in seeds for seed in row):
        return plain
    return _additive(values, seeds, names, plain)


def _additive(
    values: list[list[float]],
    seeds: list[list[int | str | None]],
    names: list[int | str],
    plain: list[float],
) -> list[float]:
    """Rate effects of a rate + seed model; the plain means where no seed links the rates."""
    size = len(values) + len(names)
    rows, right = [], []
    for rate, (value, row) in enumerate(zip(values, seeds, strict=True)):
        for number, seed in zip(value, row, strict=True):
            if seed is None:
                continue
            line = np.zeros(size)
            line[rate] = line[len(values) + names.index(seed)] = 1.0
            rows.append(line)
            right.append(number)
    matrix = np.array(rows)
    if np.linalg.matrix_rank(matrix) < size - 1:
        return plain
    solution = np.linalg.lstsq(matrix, np.array(right), rcond=None)[0]
    return [float(effect + solution[len(values) :].mean()) for effect in solution[: len(values)]]


def _expected(item: Observation, trial: RateTrial, seed_sd: float) -> float:
    """log steps of one seed; of a censored one, its mean beyond the censoring."""
    low, high = item.log_interval
    if item.is_reached:
        return 0.5 * (low + high) if math.isfinite(low) else high
    others = [one.log_interval[1] for one in trial.observations if one.is_reached]
    return max(low, float(np.mean(others))) + 0.8 * seed_sd


def _tie_margin(first: RateTrial, second: RateTrial, seed_sd: float) -> float:
    """One standard error of the difference of two means; at least rounding."""
    return seed_sd * math.sqrt(1 / len(first.observations) + 1 / len(second.observations)) + 1e-9


def _label(ordered: Sequence[RateTrial], winner: RateTrial, ties: Sequence[RateTrial]) -> RateChoice:
    position = ordered.index(winner)
    above = ordered[position + 1] if position + 1 < len(ordered) else None
    below = ordered[position - 1] if position else None
    tied = tuple(trial.learning_rate for trial in ties if trial.learning_rate is not None)
    at_edge = above is None or below is None
    if at_edge:
        proposal = _beyond(ordered, upper=above is None)
        return RateChoice(
            winner=winner, bracket=Bracket.EDGE, tied_with=tied, propose=proposal, is_upper_bound=True
        )
    if ties:
        edge = ordered[-1] if ordered[-1] in ties else ordered[0] if ordered[0] in ties else None
        proposal = None if edge is None else _beyond(ordered, upper=edge is ordered[-1])
        return RateChoice(winner=winner, bracket=Bracket.TIE, tied_with=tied, propose=proposal)
    if above is not None and above.num_diverged:
        return RateChoice(winner=winner, bracket=Bracket.BOUNDED_BY_DIVERGENCE)
    return RateChoice(winner=winner, bracket=Bracket.BRACKETED)


def _beyond(ordered: Sequence[RateTrial], *, upper: bool) -> float | None:
    """The next rate outside the grid: the grid's last ratio again, to one significant digit."""
    rates = [trial.learning_rate for trial in ordered if trial.learning_rate]
    if len(rates) < 2:
        return None
    edge, inner = (rates[-1], rates[-2]) if upper else (rates[0], rates[1])
    return float(f"{edge * edge / inner:.0e}")
