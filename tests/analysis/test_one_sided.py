"""Evidence bounded from one side: harmless where it is true, never a tight wrong answer where it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.fit import FitResult, fit_critical_batch_size
from gasweep.analysis.hyperbola import fit_hyperbola
from gasweep.analysis.observation import Observation
from gasweep.analysis.study import StudyRun, fit_study
from tests.analysis.planted import observations, steps

REACHED = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


def censored(batch: float, stopped: float, seeds: int = 3) -> list[Observation]:
    return [Observation(batch_size=batch, censored_at=stopped, seed=seed) for seed in range(seeds)]


def bounded(batch: float, best_tried: float, seeds: int = 3) -> list[Observation]:
    return [
        Observation(batch_size=batch, steps=best_tried, seed=seed, is_upper_bound=True)
        for seed in range(seeds)
    ]


def log_width(estimate: Estimate) -> float:
    return math.log((estimate.high or math.inf) / (estimate.low or math.ulp(0.0)))


def contradictions(fit: FitResult) -> list[str]:
    return [flag for flag in fit.flags if flag.startswith("contradiction")]


@pytest.mark.parametrize(
    ("evidence", "batch"),
    [
        (censored(4.0, 20000.0), 4),
        (censored(1024.0, 300.0), 1024),
        (censored(1024.0, 150.0, seeds=1), 1024),
        (bounded(2048.0, 50.0), 2048),
        (bounded(8.0, 400.0), 8),
        ([Observation(batch_size=8.0, low=0.0, high=400.0, seed=s) for s in range(3)], 8),
    ],
)
def test_planted_contradiction_is_named_and_widens(evidence: list[Observation], batch: int) -> None:
    base = observations(REACHED)
    clean = fit_critical_batch_size(base)
    fit = fit_critical_batch_size([*base, *evidence])
    assert contradictions(clean) == []
    assert len(contradictions(fit)) == 1
    assert f"batch {batch} takes" in contradictions(fit)[0]
    for wide, narrow in (
        (fit.critical_batch_size, clean.critical_batch_size),
        (fit.min_steps, clean.min_steps),
        (fit.min_examples, clean.min_examples),
    ):
        assert (wide.low or 0.0) <= (narrow.low or 0.0)
        assert (wide.high or math.inf) >= (narrow.high or 0.0)
    assert log_width(fit.critical_batch_size) > 2.0 * log_width(clean.critical_batch_size)


def test_gross_contradiction_is_not_identifiable() -> None:
    fit = fit_critical_batch_size([*observations(REACHED), *censored(4.0, 1e6), *bounded(2048.0, 1.0)])
    assert fit.critical_batch_size.value is None
    assert "contradict the law" in (fit.critical_batch_size.reason or "")


@pytest.mark.parametrize(
    "evidence",
    [censored(4.0, 3000.0), censored(1024.0, 80.0), bounded(2048.0, 130.0), bounded(8.0, 2000.0)],
)
def test_true_one_sided_evidence_is_not_accused(evidence: list[Observation]) -> None:
    fit = fit_critical_batch_size([*observations(REACHED), *evidence])
    assert contradictions(fit) == []
    assert fit.critical_batch_size.value == pytest.approx(128.0, rel=0.15)


def test_true_limits_at_the_law_itself_are_rarely_accused() -> None:
    """A seed stopped exactly at S(B) is the least lucky honest budget there is."""
    accused = 0
    for seed in range(60):
        fit = fit_critical_batch_size([*observations(REACHED, seed=seed), *censored(4.0, steps(4.0), 1)])
        accused += bool(contradictions(fit))
    assert accused <= 3


def test_two_limits_that_contradict_each_other_alone() -> None:
    """Each by itself agrees with two noisy batch sizes; together they cannot both be true."""
    base = observations((64.0, 256.0), seed_sd=0.2)
    low, high = censored(4.0, 5000.0), bounded(8.0, 1000.0)
    both = contradictions(fit_critical_batch_size([*base, *low, *high]))
    assert contradictions(fit_critical_batch_size([*base, *low])) == []
    assert len(both) == 1
    assert "batch 4 takes more" in both[0]
    assert "batch 8 takes fewer" in both[0]


def test_seeds_stopped_early_do_not_hide_what_the_others_say() -> None:
    late = censored(4.0, 20000.0)
    early = [Observation(batch_size=4.0, censored_at=10.0, seed=10 + seed) for seed in range(20)]
    assert contradictions(fit_critical_batch_size([*observations(REACHED), *late, *early]))


def test_single_seeds_per_batch_still_see_a_contradiction() -> None:
    fit = fit_critical_batch_size([*observations(REACHED, seeds=1), *censored(4.0, 20000.0)])
    assert contradictions(fit)


def test_an_unbracketed_rate_that_beats_the_law_is_named_by_the_study() -> None:
    """The edge of the rates at B = 2048 takes half the steps that the law leaves."""
    runs = [
        StudyRun(batch_size=item.batch_size, seed=item.seed, steps=item.steps, learning_rate=0.1)
        for item in observations(REACHED)
    ]
    runs += [
        StudyRun(batch_size=2048.0, seed=seed, steps=value, learning_rate=rate)
        for rate, value in ((0.1, 90.0), (0.2, 50.0))
        for seed in range(3)
    ]
    report = fit_study(runs).targets[0]
    assert any(flag.startswith("contradiction: batch 2048 takes fewer") for flag in report.flags)
    assert report.to_dict()["spread"]["contradiction_p_value"] < 1e-6


def test_seed_still_running_at_many_times_the_others_steps_is_set_aside() -> None:
    base = observations(REACHED)
    fit = fit_critical_batch_size([*base, Observation(batch_size=64.0, censored_at=10000.0, seed=7)])
    assert "seed 7 at batch 64 had not reached after 10000 steps" in fit.flags[0]
    assert fit.outliers[0].to_dict()["steps_to_target"] is None
    assert fit.critical_batch_size == fit_critical_batch_size(base).critical_batch_size


def test_seed_stopped_among_the_others_is_kept() -> None:
    base = observations(REACHED)
    fit = fit_critical_batch_size([*base, Observation(batch_size=64.0, censored_at=310.0, seed=7)])
    assert fit.outliers == []


def test_hyperbola_with_inequalities_meets_those_that_can_be_met() -> None:
    """Exact points on a law, one true limit, and one false limit that pulls against them by weight."""
    batches = np.array([8.0, 32.0, 128.0, 512.0, 2.0, 4096.0])
    log_steps = np.log([*(steps(batch) for batch in batches[:4]), 3000.0, 90.0])
    side = np.array([0.0, 0.0, 0.0, 0.0, 1.0, -1.0])
    true = fit_hyperbola(np.log(batches[:5]), log_steps[:5], np.ones(5), side=side[:5])
    assert true.theta == pytest.approx(math.log(128.0), abs=1e-3)
    assert true.residual == pytest.approx(np.zeros(5), abs=1e-3)
    false = fit_hyperbola(np.log(batches), log_steps, np.ones(6), side=side)
    assert false.residual[4] == 0.0
    assert false.residual[5] < 0.0
    assert float((false.residual**2).sum()) < (math.log(steps(4096.0)) - math.log(90.0)) ** 2
