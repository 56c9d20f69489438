from __future__ import annotations

import numpy as np
import pytest

from gasweep.batching import partition_step
from gasweep.data import IndexStream
from gasweep.errors import ConfigError, TaskError


def indices_of_update(stream: IndexStream, update: int, layout: tuple[int, int, int]) -> list[list[int]]:
    """Per rank, the indices of optimizer step `update` under (b, N, G)."""
    b, n, g = layout
    total = b * n * g
    partition = partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n)
    drawn = stream.take(update * total, total)
    return [[int(i) for start, stop in ranges for i in drawn[start:stop]] for ranges in partition.bounds]


@pytest.mark.parametrize("layout", [(8, 1, 1), (4, 1, 2), (2, 2, 2), (1, 4, 2), (1, 1, 8), (2, 4, 1)])
def test_c10_same_examples_in_every_update_whatever_the_layout(layout: tuple[int, int, int]) -> None:
    stream = IndexStream(num_examples=16, seed=0)
    epoch = stream.take(0, 16).tolist()
    for update, expected in enumerate((epoch[:8], epoch[8:])):
        by_rank = indices_of_update(stream, update, layout)
        assert [i for rank in by_rank for i in rank] == expected
        assert len(by_rank) == layout[1]


@pytest.mark.parametrize("stopped_after", [3, 11])
def test_c11_position_is_counted_in_examples(stopped_after: int) -> None:
    """64 samples, b=2, G=4: a resumed stream continues with sample 24, also in the second epoch."""
    whole = IndexStream(num_examples=64, seed=5).take(0, 16 * 8)
    resumed = IndexStream(num_examples=64, seed=5)
    log = [whole[: 8 * stopped_after], *(resumed.take(8 * u, 8) for u in range(stopped_after, 16))]
    np.testing.assert_array_equal(np.concatenate(log), whole)


def test_c60_order_differs_between_epochs_and_ranks_stay_disjoint() -> None:
    stream = IndexStream(num_examples=12, seed=0)
    first, second = stream.take(0, 12), stream.take(12, 12)
    assert first.tolist() != second.tolist()
    assert sorted(first) == sorted(second) == list(range(12))
    np.testing.assert_array_equal(IndexStream(num_examples=12, seed=0).take(12, 12), second)
    left, right = indices_of_update(stream, 0, (3, 2, 2))
    assert not set(left) & set(right)


def test_take_is_a_pure_function_of_position() -> None:
    for sampling in ("epoch", "replacement"):
        stream = IndexStream(num_examples=7, seed=3, sampling=sampling)
        whole = stream.take(0, 10_000)
        for start, count in ((9_000, 500), (0, 3), (6, 2), (4_095, 2), (13, 0), (20, 41)):
            np.testing.assert_array_equal(stream.take(start, count), whole[start : start + count])


def test_what_is_taken_may_be_changed() -> None:
    stream = IndexStream(num_examples=8, seed=0)
    first = stream.take(0, 8)
    first[:] = -1
    assert stream.take(0, 8).min() == 0


def test_a_ramp_neither_replays_nor_skips() -> None:
    stream = IndexStream(num_examples=32, seed=1)
    position, taken = 0, []
    for size in (2, 2, 4, 8, 16):
        taken.append(stream.take(position, size))
        position += size
    assert sorted(np.concatenate(taken)) == list(range(32))


def test_pinned_values() -> None:
    """The stream may not change between versions of gasweep or NumPy."""
    assert IndexStream(num_examples=8, seed=0).take(0, 8).tolist() == PINNED_EPOCH
    replacement = IndexStream(num_examples=1000, seed=0, sampling="replacement")
    assert replacement.take(0, 5).tolist() == PINNED_REPLACEMENT


PINNED_EPOCH = [0, 5, 1, 7, 4, 2, 3, 6]
PINNED_REPLACEMENT = [4, 133, 701, 843, 282]


def test_permutation_and_draws_are_uniform() -> None:
    firsts = np.array([IndexStream(num_examples=5, seed=s).take(0, 5) for s in range(2000)])
    for column in firsts.T:  # chi-square with 4 degrees of freedom; 18.5 is its 99.9 % point
        assert ((np.bincount(column, minlength=5) - 400) ** 2 / 400).sum() < 18.5
    draws = IndexStream(num_examples=5, seed=0, sampling="replacement").take(0, 10_000)
    assert ((np.bincount(draws, minlength=5) - 2000) ** 2 / 2000).sum() < 18.5


def test_contributions_and_distinct_examples() -> None:
    stream = IndexStream(num_examples=10, seed=0)
    assert stream.num_distinct(0, 7) == 7
    assert stream.num_distinct(3, 7) == 7
    assert stream.num_distinct(0, 10) == stream.num_distinct(0, 35) == 10
    assert stream.num_distinct(5, 8) == len(set(stream.take(5, 8).tolist()))
    drawn = IndexStream(num_examples=10, seed=0, sampling="replacement")
    assert drawn.num_distinct(3, 9) == len(set(drawn.take(3, 9).tolist())) < 9


def test_says_when_a_step_straddles_an_epoch_or_repeats_an_example() -> None:
    stream = IndexStream(num_examples=10, seed=0)
    assert not stream.straddles_epoch(0, 10)
    assert not stream.has_duplicates(0, 10)
    assert stream.straddles_epoch(5, 6)
    assert stream.straddles_epoch(0, 25)
    assert stream.has_duplicates(0, 11)
    drawn = IndexStream(num_examples=10, seed=0, sampling="replacement")
    assert not drawn.straddles_epoch(5, 100)
    assert drawn.has_duplicates(0, 11)


def test_a_step_may_be_larger_than_the_data_set() -> None:
    stream = IndexStream(num_examples=3, seed=0)
    assert sorted(stream.take(0, 9).tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_one_example() -> None:
    assert IndexStream(num_examples=1, seed=0).take(5, 3).tolist() == [0, 0, 0]


def test_refuses_what_has_no_meaning() -> None:
    with pytest.raises(TaskError, match="hold 0 examples"):
        IndexStream(num_examples=0, seed=0)
    with pytest.raises(ConfigError, match=r"data\.sampling='shuffle' must be epoch or replacement"):
        IndexStream(num_examples=3, seed=0, sampling="shuffle")
    with pytest.raises(ValueError, match="must be >= 0"):
        IndexStream(num_examples=3, seed=0).take(-1, 2)
