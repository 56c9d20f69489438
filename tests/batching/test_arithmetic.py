import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasweep.batching import effective_batch_size, partition_step, solve_accumulation_steps
from gasweep.errors import BatchError

counts = st.integers(1, 64)


def test_product():
    assert effective_batch_size(micro_batch_size=4, world_size=2, accumulation_steps=3) == 24


def test_solve_the_published_example():
    assert solve_accumulation_steps(effective_batch_size=4096, micro_batch_size=8, world_size=64) == 8


@given(b=counts, n=counts, g=counts)
def test_solve_inverts_the_product(b, n, g):
    total = effective_batch_size(micro_batch_size=b, world_size=n, accumulation_steps=g)
    assert solve_accumulation_steps(effective_batch_size=total, micro_batch_size=b, world_size=n) == g


@pytest.mark.parametrize(
    ("total", "b", "n", "text"),
    [
        (48, 4, 8, "use 32 or 64"),
        (16, 1, 32, "smaller than world_size=32"),
        (16, 32, 1, "use 32"),
    ],
)
def test_c26_no_truncation(total, b, n, text):
    with pytest.raises(BatchError, match=text):
        solve_accumulation_steps(effective_batch_size=total, micro_batch_size=b, world_size=n)


def test_c26_a_total_of_40_on_two_ranks_is_20_each():
    assert solve_accumulation_steps(effective_batch_size=40, micro_batch_size=1, world_size=2) == 20


def test_incomplete_groups_make_every_batch_exact():
    g = solve_accumulation_steps(
        effective_batch_size=1000, micro_batch_size=48, world_size=7, incomplete_groups=True
    )
    partition = partition_step(effective_batch_size=1000, micro_batch_size=48, world_size=7)
    assert g == partition.accumulation_steps == 3
    assert sum(partition.group_counts()) == 1000


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", True, None])
def test_only_whole_numbers(value):
    with pytest.raises(BatchError, match="micro_batch_size"):
        effective_batch_size(micro_batch_size=value, world_size=1, accumulation_steps=1)


def test_partition_4_4_2_on_two_ranks():
    partition = partition_step(effective_batch_size=20, micro_batch_size=4, world_size=2)
    assert partition.counts(0) == partition.counts(1) == [4, 4, 2]
    assert partition.accumulation_steps == 3


def test_a_rank_that_runs_out_holds_an_empty_group():
    partition = partition_step(effective_batch_size=5, micro_batch_size=2, world_size=2)
    assert partition.counts(0) == [2, 1]
    assert partition.counts(1) == [2, 0]
    assert partition.group_counts() == [2, 1, 2]


@given(total=st.integers(1, 500), b=counts, n=st.integers(1, 9), unit=st.sampled_from([1, 2, 8]))
def test_partition_covers_every_position_once_in_order(total, b, n, unit):
    if total < n or b % unit:
        with pytest.raises(BatchError):
            partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n, unit=unit)
        return
    partition = partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n, unit=unit)
    flat = [p for r in range(n) for start, stop in partition.bounds[r] for p in range(start, stop)]
    assert flat == list(range(total))
    assert all(len(rank) == partition.accumulation_steps for rank in partition.bounds)
    assert all(stop - start <= b for rank in partition.bounds for start, stop in rank)
    inner = [edge for rank in partition.bounds for group in rank for edge in group if edge < total]
    assert all(edge % unit == 0 for edge in inner)
    shares = [partition.rank_count(r) for r in range(n)]
    assert max(shares) - min(shares) <= 2 * unit - 1


@given(total=st.integers(1, 500), b=counts, n=st.integers(1, 9))
def test_solved_steps_are_the_partitions_steps(total, b, n):
    if total >= n:
        g = solve_accumulation_steps(
            effective_batch_size=total, micro_batch_size=b, world_size=n, incomplete_groups=True
        )
        partition = partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n)
        assert g == partition.accumulation_steps


def test_fewer_examples_than_ranks_is_refused():
    with pytest.raises(BatchError, match="effective_batch_size=3 is smaller than world_size=4"):
        partition_step(effective_batch_size=3, micro_batch_size=1, world_size=4)
