"""Studies with a planted critical batch size: what tests and `experiments/coverage.py` measure the fit on.

Steps of one run: S(B) * excess(lr / lr_best(B)) * exp(seed_sd * z), with S(B) = S_min (1 + B_crit / B) and z
standard normal. The best rate grows with B; S_min is drawn anew for each study, within a factor of two, so
that no study is lucky in where its evaluations fall.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gasweep.analysis.steps_to_target import TargetRule
from gasweep.analysis.trials import DIVERGED, StudyRun

TARGET = TargetRule(metric="eval_loss", value=1.0)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One kind of study.

    range_below, range_above: batch sizes run from B_crit / range_below to B_crit * range_above.
    seed_sd: of log steps, at every rate; `spread_ratio` times as large at the smallest batch size as at the
        largest, geometric in between. between_sd: of log steps between batch sizes.
    evaluation: "exact"; "interpolated" or "interval": known at evaluations spaced `spacing` of the steps
        taken; "fixed": at evaluations every `spacing` * S_min optimizer steps, interpolated.
    max_steps_over_min: budget in units of S_min; None: unlimited.
    learning_rates: how many rates are tried, a factor `rate_ratio` apart; 1: the best one is known.
    shared_grid: one grid for all batch sizes, around the middle of their best rates, instead of one around
        each best rate; the smallest and largest batch sizes may then find theirs at its edge.
    rate_curve: "parabola": excess exp(curvature * log(r)**2), r = lr / lr_best; "quadratic": 1 / (r (2 - r)),
        the steps of one curvature direction, which diverges from r = 2 on.
    diverges_above: rates this many times the best one diverge; None: never.
    outlier_chance: of a run taking ten times its steps.
    """

    name: str
    num_batches: int = 6
    num_seeds: int = 3
    range_below: float = 16.0
    range_above: float = 16.0
    min_steps: float = 300.0
    critical_batch_size: float = 128.0
    seed_sd: float = 0.05
    spread_ratio: float = 1.0
    seed_correlation: float = 0.0
    between_sd: float = 0.0
    evaluation: str = "exact"
    spacing: float = 0.05
    max_steps_over_min: float | None = None
    learning_rates: int = 1
    rate_ratio: float = 2.0
    shared_grid: bool = False
    rate_curve: str = "parabola"
    curvature: float = 0.3
    diverges_above: float | None = None
    outlier_chance: float = 0.0

    @property
    def batch_sizes(self) -> list[float]:
        low, high = self.critical_batch_size / self.range_below, self.critical_batch_size * self.range_above
        return [float(batch) for batch in np.geomspace(low, high, self.num_batches)]

    def seed_spread(self, index: int) -> float:
        """Standard deviation of log steps between seeds at the batch size of that index."""
        return float(self.seed_sd * self.spread_ratio ** (0.5 - index / (self.num_batches - 1)))


@dataclass(frozen=True, kw_only=True)
class SimulatedStudy:
    """The runs of one study and the truth behind them. targets: what `fit_study` needs beside the runs."""

    runs: list[StudyRun]
    targets: list[TargetRule]
    critical_batch_size: float
    min_steps: float

    @property
    def min_examples(self) -> float:
        return self.critical_batch_size * self.min_steps


def simulate(scenario: Scenario, generator: np.random.Generator) -> SimulatedStudy:
    runs: list[StudyRun] = []
    grid_offset = generator.uniform(-0.5, 0.5)
    min_steps = scenario.min_steps * math.exp(generator.uniform(0.0, math.log(2.0)))
    common = math.sqrt(scenario.seed_correlation) * generator.standard_normal(scenario.num_seeds)
    own = math.sqrt(1.0 - scenario.seed_correlation)
    for index, batch in enumerate(scenario.batch_sizes):
        between = scenario.between_sd * generator.standard_normal()
        spread = scenario.seed_spread(index)
        best_rate = _best_rate(scenario, batch)
        centre = _best_rate(scenario, scenario.critical_batch_size) if scenario.shared_grid else best_rate
        for rate in _rates(scenario, grid_offset, centre):
            excess = _log_excess(scenario, rate / best_rate)
            for seed in range(scenario.num_seeds):
                noise = between + spread * (common[seed] + own * generator.standard_normal())
                if generator.random() < scenario.outlier_chance:
                    noise += math.log(10.0)
                run = StudyRun(batch_size=batch, learning_rate=rate, seed=seed)
                if excess is None:
                    runs.append(replace(run, state=DIVERGED, last_step=10.0))
                    continue
                steps = min_steps * (1.0 + scenario.critical_batch_size / batch) * math.exp(excess + noise)
                runs.append(_measured(run, scenario, steps))
    return SimulatedStudy(
        runs=runs,
        targets=[TARGET] if scenario.evaluation in ("interpolated", "fixed") else [],
        critical_batch_size=scenario.critical_batch_size,
        min_steps=min_steps,
    )


def _best_rate(scenario: Scenario, batch: float) -> float:
    return math.sqrt(batch / (1.0 + batch / scenario.critical_batch_size))


def _log_excess(scenario: Scenario, ratio: float) -> float | None:
    """log(steps at a rate / steps at the best rate), `ratio` being the rates' own; None: diverges."""
    if scenario.diverges_above is not None and ratio > scenario.diverges_above:
        return None
    if scenario.rate_curve == "parabola":
        return scenario.curvature * math.log(ratio) ** 2
    return -math.log(ratio * (2.0 - ratio)) if ratio < 1.95 else None


def _rates(scenario: Scenario, offset: float, centre: float) -> list[float]:
    """Rates on one common log grid, those nearest `centre`, which is off by up to one step."""
    if scenario.learning_rates == 1:
        return [centre]
    step = math.log(scenario.rate_ratio)
    middle = round(math.log(centre) / step - offset)
    half = (scenario.learning_rates - 1) / 2
    return [math.exp(step * (offset + middle + math.ceil(k - half))) for k in range(scenario.learning_rates)]


def _measured(run: StudyRun, scenario: Scenario, steps: float) -> StudyRun:
    """`run` as its evaluations and its budget show it."""
    budget = math.inf
    if scenario.max_steps_over_min is not None:
        budget = scenario.max_steps_over_min * scenario.min_steps
    if scenario.evaluation in ("interpolated", "fixed"):
        return replace(run, points=_curve(scenario, steps, budget), state="censored")
    if steps > budget:
        return replace(run, state="censored", last_step=budget)
    if scenario.evaluation == "interval":
        index = math.floor(math.log(steps) / math.log1p(scenario.spacing))
        low, high = (1.0 + scenario.spacing) ** index, (1.0 + scenario.spacing) ** (index + 1)
        return replace(run, low=low, high=high)
    return replace(run, steps=steps)


def _curve(scenario: Scenario, steps: float, budget: float) -> list[tuple[float, float | None]]:
    """A power-law loss that passes the target at `steps`, at its evaluations up to reaching or the budget."""
    points: list[tuple[float, float | None]] = []
    step = 0.0
    while True:
        growth = scenario.spacing * (step if scenario.evaluation == "interpolated" else scenario.min_steps)
        step = step + max(1.0, math.floor(growth))
        if step > budget:
            return points
        loss = (step / steps) ** -0.3
        points.append((step, loss))
        if loss <= TARGET.value:
            return points
