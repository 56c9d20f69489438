"""Random words and unit-variance noise as a pure function of a counter: no state, any order, any subset.

Source: Steele, Lea and Flood 2014 (SplitMix64): word c of the stream is its finaliser applied to
seed + (c + 1)·golden ratio, so that words are addressed directly.
"""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
VALUES_PER_WORD = 4
NUM_QUANTILES = 1 << 16


def random_words(counters: Array, *, seed: int) -> Array:
    """uint64 words, one per uint64 counter (any shape)."""
    with np.errstate(over="ignore"):
        z = (counters + np.uint64(1)) * GOLDEN + _finalise(np.uint64(seed) * GOLDEN)
        words: Array = _finalise(z)
    return words


def unit_noise(indices: Array, *, dimension: int, seed: int) -> Array:
    """[n, dimension] float32; row i depends on (indices[i], seed) alone.

    Each value is one of 65,536 equally likely normal quantiles, scaled to have mean 0 and variance 1 exactly.
    """
    words_per_row = -(-dimension // VALUES_PER_WORD)
    with np.errstate(over="ignore"):
        first = np.asarray(indices).astype(np.uint64)[:, None] * np.uint64(words_per_row)
        words = random_words(first + np.arange(words_per_row, dtype=np.uint64), seed=seed)
    ranks = words.view(np.uint16).reshape(len(words), words_per_row * VALUES_PER_WORD)[:, :dimension]
    return _quantiles()[ranks]


def uniform(indices: Array, *, seed: int) -> Array:
    """[n] float64 in [0, 1); value i depends on (indices[i], seed) alone."""
    words = random_words(np.asarray(indices).astype(np.uint64), seed=seed)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _finalise(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@functools.lru_cache(maxsize=1)
def _quantiles() -> Array:
    normal, half = NormalDist(), NUM_QUANTILES // 2
    upper = np.array([normal.inv_cdf((half + i + 0.5) / NUM_QUANTILES) for i in range(half)])
    values = np.concatenate([-upper[::-1], upper])
    table: Array = (values / np.sqrt(np.mean(values**2))).astype(np.float32)
    table.setflags(write=False)
    return table
