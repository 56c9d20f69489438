"""Observations and runs of a planted law, for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gasweep.analysis.observation import Observation
from gasweep.analysis.study import StudyRun

BATCHES = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


def steps(batch: float, *, min_steps: float = 100.0, critical: float = 128.0) -> float:
    return min_steps * (1.0 + critical / batch)


def observations(
    batches: Sequence[float] = BATCHES,
    *,
    seeds: int = 3,
    seed_sd: float = 0.05,
    seed: int = 0,
    min_steps: float = 100.0,
    critical: float = 128.0,
) -> list[Observation]:
    generator = np.random.default_rng(seed)
    return [
        Observation(
            batch_size=batch,
            steps=steps(batch, min_steps=min_steps, critical=critical)
            * math.exp(seed_sd * generator.standard_normal()),
            seed=index,
        )
        for batch in batches
        for index in range(seeds)
    ]


def runs(
    rates: Sequence[float] = (0.05, 0.1, 0.2), *, best: float = 0.1, seed_sd: float = 0.03
) -> list[StudyRun]:
    """Three seeds at each batch size and rate, a parabola in log rate around `best`."""
    generator = np.random.default_rng(1)
    return [
        StudyRun(
            batch_size=batch,
            learning_rate=rate,
            seed=index,
            steps=steps(batch)
            * math.exp(0.4 * math.log(rate / best) ** 2 + seed_sd * generator.standard_normal()),
        )
        for batch in BATCHES
        for rate in rates
        for index in range(3)
    ]
