"""The Pareto front against brute force, and the two questions asked of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasweep.analysis.cost import GridPoint, PointCost, StepTime, point_cost
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.pareto import (
    Standing,
    cheapest_within,
    fastest_within,
    pareto_front,
    pareto_mask,
    standings,
)
from gasweep.errors import ConfigError


def within(value: float, factor: float = 1.0) -> Estimate:
    return Estimate(value=value, low=value / factor, high=value * factor)


def cost(
    batch: int, ranks: int, *, steps: Estimate | float, seconds: Estimate | float | None, rate: float = 0.1
) -> PointCost:
    steps = steps if isinstance(steps, Estimate) else within(steps)
    seconds = within(seconds) if isinstance(seconds, int | float) else seconds
    point = GridPoint(
        micro_batch_size=batch // ranks,
        world_size=ranks,
        accumulation_steps=1,
        effective_batch_size=batch,
        learning_rate=rate,
    )
    timed = None if seconds is None else StepTime(seconds=seconds, source="measured")
    return point_cost(point, optimizer_steps=steps, step_time=timed)


def brute_force(rows: np.ndarray) -> list[bool]:
    """The definition, pair by pair."""
    return [
        not any(
            all(p <= q for p, q in zip(other, row, strict=True))
            and any(p < q for p, q in zip(other, row, strict=True))
            for other in rows
        )
        for row in rows
    ]


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(0, 5).map(float), min_size=width, max_size=width), min_size=1, max_size=25
        )
    )
)
def test_front_equals_brute_force_with_ties(rows: list[list[float]]) -> None:
    array = np.array(rows)
    assert pareto_mask(array).tolist() == brute_force(array)


def test_front_equals_brute_force_on_continuous_costs() -> None:
    rows = np.random.default_rng(0).lognormal(size=(300, 3))
    assert pareto_mask(rows).tolist() == brute_force(rows)


def test_equal_points_are_all_kept() -> None:
    assert pareto_mask(np.ones((3, 2))).tolist() == [True, True, True]


def test_single_point_is_the_front() -> None:
    only = cost(8, 1, steps=100, seconds=1.0)
    assert pareto_front([only]) == [only]
    assert pareto_front([]) == []


def test_missing_measurement_is_unresolved_and_beats_nothing() -> None:
    known, unknown = cost(8, 1, steps=100, seconds=1.0), cost(8, 2, steps=100, seconds=None)
    assert standings([unknown, known]) == [Standing.UNRESOLVED, Standing.FRONT]
    assert standings([unknown]) == [Standing.UNRESOLVED]


def test_same_steps_share_their_error_so_a_small_difference_in_seconds_decides() -> None:
    uncertain = within(100.0, 1.5)
    slow = cost(64, 1, steps=uncertain, seconds=within(1.10, 1.01))
    fast = cost(64, 1, steps=uncertain, seconds=within(1.00, 1.01))
    assert standings([slow, fast]) == [Standing.DOMINATED, Standing.FRONT]


def test_another_batch_within_the_intervals_is_close_not_dominated() -> None:
    fast = cost(64, 1, steps=within(100.0, 1.3), seconds=within(1.0, 1.01))
    near = cost(128, 1, steps=within(110.0, 1.3), seconds=within(1.0, 1.01))
    far = cost(256, 1, steps=within(400.0, 1.3), seconds=within(1.0, 1.01))
    assert standings([fast, near, far]) == [Standing.FRONT, Standing.CLOSE, Standing.DOMINATED]


def test_without_an_upper_bound_nothing_is_surely_better() -> None:
    open_ended = cost(8, 1, steps=Estimate(value=10.0, low=5.0, high=None), seconds=1.0)
    worse = cost(16, 1, steps=within(1000.0), seconds=2.0)
    assert standings([open_ended, worse]) == [Standing.FRONT, Standing.CLOSE]


GRID = [
    cost(64, 1, steps=1000, seconds=1.0),  # 1000 s, 0.278 GPU-hours
    cost(64, 4, steps=1000, seconds=0.4),  # 400 s, 0.444 GPU-hours
    cost(256, 4, steps=400, seconds=0.8),  # 320 s, 0.356 GPU-hours
    cost(256, 8, steps=400, seconds=0.5),  # 200 s, 0.444 GPU-hours
]


@given(st.floats(1.0, 2000.0))
def test_cheapest_within_a_deadline_equals_a_scan(deadline: float) -> None:
    choice = cheapest_within(GRID, deadline_s=deadline)
    allowed = [c for c in GRID if (c.wall_clock_s.value or math.inf) <= deadline]
    if not allowed:
        assert choice.expected is None
        assert choice.reason is not None
        return
    assert choice.expected is not None
    assert choice.expected.gpu_hours.value == min(c.gpu_hours.value or math.inf for c in allowed)


def test_fastest_within_a_budget() -> None:
    choice = fastest_within(GRID, budget_gpu_hours=0.4)
    assert choice.expected is GRID[2]
    assert choice.safe is GRID[2]


def test_safe_choice_keeps_the_upper_limit_inside() -> None:
    risky = cost(64, 1, steps=within(100.0, 1.5), seconds=1.0)
    sure = cost(64, 2, steps=within(100.0, 1.5), seconds=0.6)
    choice = cheapest_within([risky, sure], deadline_s=110.0)
    assert choice.expected is risky
    assert choice.safe is sure


def test_no_point_is_within_says_the_least() -> None:
    choice = cheapest_within(GRID, deadline_s=100.0)
    assert choice.expected is None
    assert choice.reason == "no grid point is within wall_clock_s=100; the least is 200"


def test_ties_are_named() -> None:
    twin = cost(64, 1, steps=1000, seconds=1.0, rate=0.2)
    choice = cheapest_within([GRID[0], twin, cost(8, 1, steps=9, seconds=None)], deadline_s=5000.0)
    assert choice.ties == (twin,)
    assert choice.num_unresolved == 1


def test_all_unresolved_says_what_is_missing() -> None:
    choice = fastest_within([cost(8, 1, steps=9, seconds=None)], budget_gpu_hours=1.0)
    assert choice.reason == "no grid point has both steps to target and seconds per step"


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_must_be_a_positive_number(limit: float) -> None:
    with pytest.raises(ConfigError, match=r"deadline_s=.* must be a positive number"):
        cheapest_within(GRID, deadline_s=limit)
