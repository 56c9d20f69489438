"""Which seeds cannot belong to the rest: corrupt, restarted or mistyped runs.

A seed is compared with the other seeds of its batch size through the pooled spread of all the others
(externally studentised, so an outlier cannot hide behind the spread it causes). Two seeds that disagree are
told apart, and a batch's only seed is judged, by the hyperbola through the other batch sizes. A seed that did
not reach is judged by the step it was stopped at: one that is still running at many times the others' steps
is not their seed either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from gasweep.analysis.hyperbola import fit_hyperbola
from gasweep.analysis.likelihood import Array
from gasweep.analysis.observation import Observation

SIGNIFICANCE = 0.01
"""Chance of naming any seed of a clean study, all seeds together."""
TIED_SPREAD = 0.1
"""Spread assumed where all the other seeds agree to the last digit: coarse evaluations, not certainty."""
MAX_SHARE = 0.2
"""At most this share of the seeds is ever set aside; more is not a stray seed but another spread."""


@dataclass(frozen=True, kw_only=True)
class OutlierSeed:
    """A seed set aside.

    factor: its steps over what the other observations say; at least that, where it did not reach.
    """

    observation: Observation
    factor: float
    p_value: float

    def to_dict(self) -> dict[str, float | int | str | None]:
        item = self.observation
        return {
            "effective_batch_size": item.batch_size,
            "learning_rate": item.learning_rate,
            "seed": item.seed,
            "steps_to_target": math.exp(item.log_interval[1]) if item.is_reached else None,
            "censored_at": item.censored_at,
            "factor": self.factor,
            "p_value": self.p_value,
        }

    def __str__(self) -> str:
        item = self.observation
        name = "a seed" if item.seed is None else f"seed {item.seed}"
        rate = "" if item.learning_rate is None else f", learning rate {item.learning_rate:g},"
        steps = (
            f"had not reached after {item.censored_at:.6g} steps, more than"
            if item.censored_at is not None
            else f"took {math.exp(item.log_interval[1]):.6g} steps,"
        )
        return (
            f"outlier: {name} at batch {item.batch_size:g}{rate} {steps} "
            f"{self.factor:.3g} times the others' (p = {self.p_value:.1g}); set aside"
        )


def find_outlier_seeds(
    observations: Sequence[Observation], *, use_law: bool = True
) -> tuple[list[Observation], list[OutlierSeed]]:
    """The observations to keep, and the seeds set aside, worst first.

    use_law: whether the hyperbola may speak where the seeds of a batch size cannot.
    Assumes: log-normal seeds of one relative spread; judged against at least two degrees of freedom.
    """
    kept = list(observations)
    outliers: list[OutlierSeed] = []
    limit = int(MAX_SHARE * len(kept))
    while len(outliers) < limit:
        worst = _worst(kept, use_law)
        if worst is None or worst.p_value >= SIGNIFICANCE:
            break
        outliers.append(worst)
        kept = [item for item in kept if item is not worst.observation]
    return kept, outliers


def _worst(observations: Sequence[Observation], use_law: bool) -> OutlierSeed | None:
    reached = [item for item in observations if item.is_reached and not item.is_upper_bound]
    log_steps = np.array([_centre(item) for item in reached])
    groups: dict[float, list[int]] = {}
    for index, item in enumerate(reached):
        groups.setdefault(item.batch_size, []).append(index)
    stopped = [item for item in observations if not item.is_reached and not item.is_upper_bound]
    candidates = _within_groups(reached, log_steps, groups, use_law)
    candidates += _still_running(stopped, log_steps, groups)
    if use_law:
        candidates += _single_seeds(reached, log_steps, groups)
    return min(candidates, key=lambda outlier: outlier.p_value, default=None)


def _centre(item: Observation) -> float:
    low, high = item.log_interval
    return 0.5 * (low + high) if math.isfinite(low) else high


def _within_groups(
    reached: Sequence[Observation], log_steps: Array, groups: dict[float, list[int]], use_law: bool
) -> list[OutlierSeed]:
    """The most deviant seed of each batch size that has several."""
    squares = {batch: float(((log_steps[m] - log_steps[m].mean()) ** 2).sum()) for batch, m in groups.items()}
    total = sum(squares.values())
    freedom = len(reached) - len(groups) - 1
    if freedom < 2:
        return []
    found = []
    for batch, members in groups.items():
        if len(members) < 2:
            continue
        index = _suspect(batch, members, log_steps, groups, use_law)
        if index is None:
            continue
        others = log_steps[[m for m in members if m != index]]
        rest = total - squares[batch] + float(((others - others.mean()) ** 2).sum())
        resolution = max(reached[m].log_spacing for m in members)
        floor = TIED_SPREAD if rest < 1e-12 else resolution / math.sqrt(12.0)
        spread = max(math.sqrt(rest / freedom), floor, 1e-4) * math.sqrt(1.0 + 1.0 / len(others))
        deviation = float(log_steps[index] - others.mean())
        found.append(_judge(reached[index], deviation, spread, freedom, len(reached)))
    return found


def _still_running(
    stopped: Sequence[Observation], log_steps: Array, groups: dict[float, list[int]]
) -> list[OutlierSeed]:
    """Seeds that had not reached, against two or more of their batch size that had."""
    squares = math.fsum(float(((log_steps[m] - log_steps[m].mean()) ** 2).sum()) for m in groups.values())
    freedom = len(log_steps) - len(groups)
    if freedom < 2:
        return []
    spread = max(math.sqrt(squares / freedom), TIED_SPREAD if squares < 1e-12 else 1e-4)
    found = []
    for item in stopped:
        others = log_steps[groups.get(item.batch_size, [])]
        deviation = item.log_interval[0] - float(others.mean()) if len(others) > 1 else 0.0
        if deviation > 0.0:
            error = spread * math.sqrt(1.0 + 1.0 / len(others))
            found.append(_judge(item, deviation, error, freedom, len(log_steps) + len(stopped)))
    return found


def _suspect(
    batch: float,
    members: Sequence[int],
    log_steps: Array,
    groups: dict[float, list[int]],
    use_law: bool,
) -> int | None:
    """The seed furthest from the middle of its group; of two, the one further from the others' curve."""
    if len(members) > 2:
        steps = log_steps[list(members)]
        return members[int(np.argmax(np.abs(steps - np.median(steps))))]
    expected = _from_the_others(batch, log_steps, groups) if use_law else None
    if expected is None:
        return None
    return max(members, key=lambda m: abs(float(log_steps[m]) - expected[0]))


def _single_seeds(
    reached: Sequence[Observation], log_steps: Array, groups: dict[float, list[int]]
) -> list[OutlierSeed]:
    """Only seeds of their batch, against the curve through the others, when no batch has several seeds."""
    if len(groups) < 6 or len(groups) != len(reached):
        return []
    found = []
    for batch, members in groups.items():
        expected = _from_the_others(batch, log_steps, groups)
        if expected is not None:
            mean, spread = expected
            deviation = float(log_steps[members[0]]) - mean
            found.append(_judge(reached[members[0]], deviation, spread, len(groups) - 3, len(reached)))
    return found


def _from_the_others(
    batch: float, log_steps: Array, groups: dict[float, list[int]]
) -> tuple[float, float] | None:
    """log S at `batch` by the hyperbola through the other batches' medians, and its standard deviation.

    None when fewer than three others, or when `batch` lies outside them: extrapolating accuses the innocent.
    """
    others = sorted(other for other in groups if other != batch)
    if len(others) < 3 or not others[0] < batch < others[-1]:
        return None
    log_batch = np.log(np.array(others))
    median = np.array([float(np.median(log_steps[groups[other]])) for other in others])
    fit = fit_hyperbola(log_batch, median, np.ones(len(others)))
    freedom = max(len(others) - 2, 1)
    spread = math.sqrt(float((fit.residual**2).sum()) / freedom * (1.0 + 2.0 / len(others)))
    return float(fit.log_steps(np.log(np.array([batch])))[0]), max(spread, 1e-4)


def _judge(item: Observation, deviation: float, spread: float, freedom: int, tests: int) -> OutlierSeed:
    p_value = min(1.0, 2.0 * tests * float(student_t.sf(abs(deviation) / spread, freedom)))
    return OutlierSeed(observation=item, factor=math.exp(min(deviation, 700.0)), p_value=p_value)
