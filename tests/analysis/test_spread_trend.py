"""Seeds that scatter more at small batch sizes: recovered from many, not invented from few."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gasweep.analysis.likelihood import build_rows
from gasweep.analysis.observation import Observation
from gasweep.analysis.spread_trend import follow_trend, spread_trend
from tests.analysis.planted import BATCHES, observations, steps


def trending(exponent: float, *, seeds: int, seed: int = 0) -> list[Observation]:
    generator = np.random.default_rng(seed)
    return [
        Observation(
            batch_size=batch,
            steps=steps(batch) * math.exp(0.05 * (batch / 64.0) ** exponent * generator.standard_normal()),
            seed=index,
        )
        for batch in BATCHES
        for index in range(seeds)
    ]


@pytest.mark.parametrize("exponent", [-0.3, 0.0, 0.3])
def test_planted_exponent_is_recovered_from_many_seeds(exponent: float) -> None:
    found = spread_trend(build_rows(trending(exponent, seeds=60)))
    assert found.exponent == pytest.approx(exponent, abs=0.06)
    assert 0.5 < found.degrees_of_freedom <= 1.0


def test_few_seeds_without_a_trend_show_next_to_none() -> None:
    found = [spread_trend(build_rows(observations(seeds=2, seed=seed))).exponent for seed in range(200)]
    assert abs(float(np.mean(found))) < 0.02
    assert float(np.std(found)) < 0.12


def test_units_of_batch_and_steps_do_not_matter() -> None:
    items = trending(-0.3, seeds=5)
    scaled = [replace(one, batch_size=one.batch_size * 7.0, steps=(one.steps or 0.0) * 1e3) for one in items]
    assert spread_trend(build_rows(scaled)).exponent == pytest.approx(
        spread_trend(build_rows(items)).exponent
    )


def test_seeds_that_agree_or_are_censored_say_nothing() -> None:
    exact = [Observation(batch_size=b, steps=steps(b), seed=s) for b in BATCHES for s in range(3)]
    assert spread_trend(build_rows(exact)).exponent == pytest.approx(0.0, abs=1e-6)
    some = [*exact[:6], *(Observation(batch_size=b, censored_at=50.0, seed=9) for b in BATCHES)]
    assert spread_trend(build_rows(some)).degrees_of_freedom == 0.0
    assert spread_trend(build_rows([])).exponent == 0.0


def test_scale_follows_the_exponent() -> None:
    rows = build_rows(trending(-0.3, seeds=5))
    trend = spread_trend(rows)
    scale = follow_trend(rows, trend).scale
    assert scale[0] / scale[-1] == pytest.approx((BATCHES[0] / BATCHES[-1]) ** (2.0 * trend.exponent))
    assert float(np.exp(np.log(scale).mean())) == pytest.approx(1.0)
