"""What a bitwise run is identified by besides what every run is."""

import copy

from gasweep.config.identity import convergence_id
from gasweep.config.schema import SweepConfig


def identity(**changes):
    config = copy.deepcopy(SweepConfig(determinism=changes.pop("determinism", "bitwise")))
    config.grain = changes.pop("grain", 8)
    config.cluster.threads_per_worker = changes.pop("threads_per_worker", 1)
    return convergence_id(config, effective_batch_size=16, learning_rate=0.1, seed=0)


def test_bits_are_identified_by_grain_and_threads():
    assert len({identity(), identity(grain=4), identity(threads_per_worker=2)}) == 3


def test_fast_runs_are_the_same_whatever_the_grain_and_the_threads():
    ids = {identity(determinism="fast", **change) for change in ({}, {"grain": 4}, {"threads_per_worker": 2})}
    assert len(ids) == 1
