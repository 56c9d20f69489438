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
from gasweep.analysis.outlier_seeds import OutlierSeed


class Bracket(StrEnum):
    """What the neighbours of the chosen learning rate say about it."""

    BRACKETED = "bracketed"  # both neighbours were tried and are worse
    EDGE = "edge"  # first or last of the rates tried: a better one may lie outside
    BOUNDED_BY_DIVERGENCE = "bounded by divergence"  # the next higher rate diverged
    TIE = "tie"  # another rate does as well
    ONLY = "only"  # a single rate was given: taken as already chosen
    BEST_GIVEN = "best given"  # alternatives that are no scan, e.g. several reference settings
    NONE = "none"  # no rate reached the target


@dataclass(frozen=True, kw_only=True)
class RateTrial:
    """All seeds of one learning rate (or one variant of the settings) at one batch size.

    set_aside: outlier seeds, not among `observations`.
    """

    learning_rate: float | None
    observations: tuple[Observation, ...]
    num_diverged: int = 0
    variant: str | None = None
    set_aside: tuple[OutlierSeed, ...] = ()

    @property
    def says_something(self) -> bool:
        return bool(self.observations) or self.num_diverged > 0

    @property
    def num_censored(self) -> int:
        return sum(not item.is_reached for item in self.observations)

    @property
    def is_usable(self) -> bool:
        """No seed diverged, and one at least reached the target."""
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
    ordered = [trial for trial in trials if trial.says_something]
    ordered.sort(key=lambda trial: trial.learning_rate or 0.0)
    usable = [trial for trial in ordered if trial.is_usable]
    if not usable:
        return _without_usable(ordered)
    means = mean_log_steps(usable, seed_sd=seed_sd)
    best = int(np.argmin(means))
    winner = usable[best]
    if len(ordered) == 1:
        return RateChoice(winner=winner, bracket=Bracket.ONLY)
    if any(trial.learning_rate is None for trial in ordered):
        return RateChoice(winner=winner, bracket=Bracket.BEST_GIVEN)
    margins = [mean - means[best] for mean in means]
    ties = [
        trial
        for trial, margin in zip(usable, margins, strict=True)
        if trial is not winner and margin <= _standard_error(winner, trial, seed_sd)
    ]
    equals = [trial for trial, margin in zip(usable, margins, strict=True) if margin <= 1e-9]
    return _label(_known_worse(ordered, winner, means[best]), winner, ties, equals)


def _known_worse(ordered: Sequence[RateTrial], winner: RateTrial, best_mean: float) -> list[RateTrial]:
    """The winner and the rates known to be no better; one stopped before the winner's steps is not known."""
    return [
        trial
        for trial in ordered
        if trial is winner
        or trial.is_usable
        or trial.num_diverged
        or float(np.mean([item.log_interval[0] for item in trial.observations])) > best_mean
    ]


def _without_usable(ordered: Sequence[RateTrial]) -> RateChoice:
    """One rate whose seeds were all stopped early still bounds the steps from below; a scan of them does not.

    With several rates the best one is unknown, and one outside the grid might have reached.
    """
    if len(ordered) == 1 and ordered[0].num_diverged == 0 and ordered[0].observations:
        return RateChoice(winner=ordered[0], bracket=Bracket.ONLY)
    return RateChoice(winner=None, bracket=Bracket.NONE)


def mean_log_steps(trials: Sequence[RateTrial], *, seed_sd: float) -> list[float]:
    """Mean log steps of each trial as if all had run the same seeds.

    Where seeds are missing from some rates, a rate must not win by the luck of its seeds: rate and seed
    effects are fitted together, so that rates are compared over the seeds they share. Censored seeds enter
    by their expectation beyond the step at which they were stopped.
    """
    values = [[_expected(item, trial, seed_sd) for item in trial.observations] for trial in trials]
    seeds = [[item.seed for item in trial.observations] for trial in trials]
    plain = [float(np.mean(value)) for value in values]
    if any(seed is None for row in seeds for seed in row):
        return plain
    if all(sorted(row, key=str) == sorted(seeds[0], key=str) for row in seeds):
        return plain
    return _additive(values, seeds, plain)


def _additive(
    values: list[list[float]], seeds: list[list[int | str | None]], plain: list[float]
) -> list[float]:
    """Rate effects of a rate + seed model by least squares; the plain means where no seeds link the rates."""
    names = sorted({seed for row in seeds for seed in row}, key=str)
    size = len(values) + len(names)
    lines, right = [], []
    for rate, (value, row) in enumerate(zip(values, seeds, strict=True)):
        for number, seed in zip(value, row, strict=True):
            line = np.zeros(size)
            line[rate] = line[len(values) + names.index(seed)] = 1.0
            lines.append(line)
            right.append(number)
    matrix = np.array(lines)
    if np.linalg.matrix_rank(matrix) < size - 1:
        return plain
    solution = np.linalg.lstsq(matrix, np.array(right), rcond=None)[0]
    return [float(effect + solution[len(values) :].mean()) for effect in solution[: len(values)]]


def _expected(item: Observation, trial: RateTrial, seed_sd: float) -> float:
    """log steps of one seed; of a censored one, its mean beyond the censoring.

    0.8 sigma is the mean excess of a normal beyond its own mean, sqrt(2 / pi).
    """
    low, high = item.log_interval
    if item.is_reached:
        return 0.5 * (low + high) if math.isfinite(low) else high
    others = [one.log_interval[1] for one in trial.observations if one.is_reached]
    return max(low, float(np.mean(others))) + 0.8 * seed_sd


def _standard_error(first: RateTrial, second: RateTrial, seed_sd: float) -> float:
    """Of the difference of two means; at least rounding."""
    return seed_sd * math.sqrt(1 / len(first.observations) + 1 / len(second.observations)) + 1e-9


def _label(
    ordered: Sequence[RateTrial],
    winner: RateTrial,
    ties: Sequence[RateTrial],
    equals: Sequence[RateTrial],
) -> RateChoice:
    """equals: trials whose mean equals the winner's exactly, the winner among them."""
    first, last = ordered[0], ordered[-1]
    tied = tuple(trial.learning_rate for trial in ties if trial.learning_rate is not None)
    at_edge = any(trial is first or trial is last for trial in equals)
    upper = any(trial is last for trial in equals) or (not at_edge and any(trial is last for trial in ties))
    lower = any(trial is first for trial in (*equals, *ties))
    proposal = _beyond(ordered, upper=upper) if upper or lower else None
    if len(equals) > 1:
        return RateChoice(
            winner=winner, bracket=Bracket.TIE, tied_with=tied, propose=proposal, is_upper_bound=at_edge
        )
    if at_edge:
        return RateChoice(
            winner=winner, bracket=Bracket.EDGE, tied_with=tied, propose=proposal, is_upper_bound=True
        )
    if ordered[ordered.index(winner) + 1].num_diverged:
        return RateChoice(winner=winner, bracket=Bracket.BOUNDED_BY_DIVERGENCE, tied_with=tied)
    bracket = Bracket.TIE if ties else Bracket.BRACKETED
    return RateChoice(winner=winner, bracket=bracket, tied_with=tied, propose=proposal)


def _beyond(ordered: Sequence[RateTrial], *, upper: bool) -> float | None:
    """The next rate outside the grid: the grid's last ratio again, to one significant digit."""
    rates = [trial.learning_rate for trial in ordered if trial.learning_rate]
    if len(rates) < 2:
        return None
    edge, inner = (rates[-1], rates[-2]) if upper else (rates[0], rates[1])
    return float(f"{edge * edge / inner:.0e}")
