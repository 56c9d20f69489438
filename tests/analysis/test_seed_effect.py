"""A seed's effect on all batch sizes at once: found, carried by S_min, not by B_crit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.observation import Observation
from gasweep.analysis.seed_effect import common_seed_effect
from tests.analysis.planted import BATCHES, observations, steps


def shared(effects: list[float], *, noise: float = 0.01, seed: int = 0) -> list[Observation]:
    """Seeds whose log steps differ by `effects` at every batch size."""
    own = observations(seeds=len(effects), seed_sd=noise, seed=seed)
    return [replace(one, steps=(one.steps or 0.0) * math.exp(effects[int(one.seed or 0)])) for one in own]


def test_planted_effect_is_recovered() -> None:
    effects = [0.1, -0.1, 0.05, -0.05]
    found = common_seed_effect(shared(effects, noise=0.001))
    assert found is not None
    assert found.sd == pytest.approx(float(np.std(effects, ddof=1)), rel=0.02)
    assert found.num_seeds == 4
    assert found.p_value < 1e-6


def test_its_interval_is_that_of_a_mean_over_seeds() -> None:
    """With no other noise to speak of S_min is the mean of four draws: t(3) s / 2."""
    effects = [0.1, -0.1, 0.05, -0.05]
    found = common_seed_effect(shared(effects, noise=0.001))
    assert found is not None
    expected = 3.1824463052842633 * float(np.std(effects, ddof=1)) / 2.0
    assert found.half_width == pytest.approx(expected, rel=0.02)


def test_independent_seeds_rarely_show_one() -> None:
    found = [common_seed_effect(observations(seed=seed)) for seed in range(200)]
    assert 0.1 <= sum(one is not None for one in found) / 200 <= 0.3


def test_it_widens_min_steps_and_leaves_the_critical_batch_size_alone() -> None:
    items = shared([0.15, -0.1, -0.05])
    with_names = fit_critical_batch_size(items)
    without = fit_critical_batch_size([replace(one, seed=None) for one in items])
    assert with_names.critical_batch_size == without.critical_batch_size
    for wide, narrow in (
        (with_names.min_steps, without.min_steps),
        (with_names.min_examples, without.min_examples),
        (with_names.steps_at(64.0), without.steps_at(64.0)),
    ):
        assert wide.value == narrow.value
        assert (wide.low or 0.0) < (narrow.low or 0.0)
        assert (wide.high or 0.0) > (narrow.high or 0.0)
    assert any(
        flag.startswith("seeds: a seed moves all batch sizes together by") for flag in with_names.flags
    )


def test_missing_runs_do_not_pass_for_an_effect() -> None:
    """Seed 1 ran at small batch sizes only, where everything takes more steps."""
    items = [one for one in observations(seed=3) if not (one.seed == 1 and one.batch_size > 64)]
    assert common_seed_effect(items) is None
    planted = [one for one in shared([0.1, -0.1, 0.0]) if not (one.seed == 1 and one.batch_size > 64)]
    found = common_seed_effect(planted)
    assert found is not None
    assert found.sd == pytest.approx(0.1, rel=0.1)


def test_nothing_is_said_where_seeds_are_not_crossed_with_batch_sizes() -> None:
    disjoint = [
        Observation(batch_size=batch, steps=steps(batch) * (1.0 + 0.1 * k), seed=f"{batch}-{k}")
        for batch in BATCHES
        for k in range(3)
    ]
    assert common_seed_effect(disjoint) is None
    assert common_seed_effect([replace(one, seed=None) for one in disjoint]) is None
    assert common_seed_effect(observations((64.0,))) is None
    assert common_seed_effect([]) is None


def test_equal_seeds_are_no_effect() -> None:
    exact = [Observation(batch_size=b, steps=steps(b), seed=s) for b in BATCHES for s in range(3)]
    assert common_seed_effect(exact) is None
