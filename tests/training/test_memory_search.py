import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasweep.errors import UserError
from gasweep.training.memory.search import largest_that_fits


def test_c45_powers_return_8_and_bisection_11():
    assert largest_that_fits(lambda size: size <= 11, start=2, powers_only=True).largest == 8
    assert largest_that_fits(lambda size: size <= 11, start=2).largest == 11


def test_a_coarser_answer_takes_fewer_tries():
    exact = largest_that_fits(lambda size: size <= 1000)
    coarse = largest_that_fits(lambda size: size <= 1000, resolution=0.1)
    assert coarse.largest is not None
    assert 900 <= coarse.largest <= 1000
    assert len(coarse.tried) < len(exact.tried)


@given(
    truth=st.integers(0, 5000),
    start=st.integers(1, 300),
    limit=st.integers(1, 4096),
    powers_only=st.booleans(),
)
def test_c45_the_returned_size_was_tried_and_nothing_is_tried_twice(truth, start, limit, powers_only):
    calls = []

    def fits(size):
        calls.append(size)
        return size <= truth

    result = largest_that_fits(fits, start=start, limit=limit, powers_only=powers_only)
    assert len(calls) == len(set(calls))
    assert all(1 <= size <= limit for size in calls)
    if result.largest is None:
        assert truth < 1
    else:
        assert (result.largest, True) in result.tried
        if not powers_only:
            assert result.largest == min(truth, limit)
    assert result.reached_limit == (result.largest == limit)


@pytest.mark.parametrize("start", [0, -1, 1.5, None])
def test_start_must_be_a_whole_number(start):
    with pytest.raises(UserError, match="start"):
        largest_that_fits(lambda _: True, start=start)
