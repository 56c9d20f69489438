"""The matrix of `experiments/bitwise_matrix.py` on text_lm: a short form here, the whole under `long`."""

import pytest

from experiments.bitwise_matrix import LAYOUTS, matrix
from gasweep.training.local_ranks import LocalRanks


def distinct_bits(*, steps, every):
    with LocalRanks(timeout_s=3000) as ranks:
        runs = list(matrix(ranks, steps=steps, every=every))
    assert {strategy for strategy, *_ in runs} == {"single", "ddp", "fsdp"}
    return {bits for _, _, bits, _ in runs}


def test_the_matrix_holds_twelve_layouts_per_strategy():
    assert {strategy: len(set(layouts)) for strategy, layouts in LAYOUTS.items()} == {
        "single": 12,
        "ddp": 12,
        "fsdp": 12,
    }


@pytest.mark.multiprocess
def test_twelve_runs_of_text_lm_have_one_set_of_bits():
    assert len(distinct_bits(steps=4, every=3)) == 1


@pytest.mark.multiprocess
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thirty_six_runs_of_200_steps_have_one_set_of_bits():
    assert len(distinct_bits(steps=200, every=1)) == 1
