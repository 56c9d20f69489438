"""Where grains fall: the same ones for every layout of one effective batch."""

import itertools

import pytest

from gasweep.batching import partition_step
from gasweep.errors import RefusedError
from gasweep.training.bitwise.grains import check_grain, cut, most_grains, num_grains


def all_grains(partition, grain):
    return sorted(
        (piece.index, piece.start, piece.stop)
        for rank_bounds in partition.bounds
        for start, stop in rank_bounds
        for piece in cut(start, stop, grain=grain)
    )


@pytest.mark.parametrize("total", [8, 24, 27, 61])
def test_every_layout_runs_the_same_grains(total):
    grain = 4
    seen = set()
    for b, n in itertools.product((4, 8, 16), (1, 2, 4)):
        partition = partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n, unit=grain)
        pieces = all_grains(partition, grain)
        assert len(pieces) == num_grains(total, grain=grain)
        seen.add(tuple(pieces))
    assert len(seen) == 1


def test_most_grains_is_what_a_sharded_model_must_run():
    partition = partition_step(effective_batch_size=12, micro_batch_size=8, world_size=2, unit=4)
    assert partition.bounds == (((0, 8),), ((8, 12),))
    assert most_grains(partition, micro_step=0, grain=4) == 2


def test_a_micro_batch_that_cuts_a_grain_is_refused_with_the_nearest_that_does_not():
    with pytest.raises(RefusedError, match=r"micro_batch_size=12 is not a multiple of grain=8.*=8 or 16"):
        check_grain(grain=8, micro_batch_size=12)
    with pytest.raises(RefusedError, match=r"micro_batch_size=4 .* use micro_batch_size=8,"):
        check_grain(grain=8, micro_batch_size=4)
    with pytest.raises(RefusedError, match="grain=0 must be >= 1"):
        check_grain(grain=0, micro_batch_size=4)


def test_a_group_off_the_grain_boundaries_is_refused():
    with pytest.raises(RefusedError, match="starts at position 6"):
        cut(6, 10, grain=4)
    assert cut(6, 6, grain=4) == []
