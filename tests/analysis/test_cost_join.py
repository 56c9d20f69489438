"""The join of steps and seconds: exact values, interval propagation, missing factors."""

import math

import numpy as np
import pytest

from gasweep.analysis.cost import GridPoint, StepTime, join, point_cost, product
from gasweep.analysis.cost_interpolation import StepTimeTable
from gasweep.analysis.cost_law import SampledLaw, sample_law
from gasweep.analysis.estimate import Estimate


def exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def lognormal(centre: float, sigma: float) -> Estimate:
    half = 1.959964 * sigma
    return Estimate(value=centre, low=centre * math.exp(-half), high=centre * math.exp(half))


def point(b: int, n: int, g: int, batch: int | None = None) -> GridPoint:
    total = b * n * g if batch is None else batch
    return GridPoint(micro_batch_size=b, world_size=n, accumulation_steps=g, effective_batch_size=total)


def test_exact_factors_multiply_exactly() -> None:
    cost = point_cost(
        point(8, 4, 2), optimizer_steps=exact(900), step_time=StepTime(seconds=exact(2.0), source="measured")
    )
    assert cost.wall_clock_s == exact(1800)
    assert cost.gpu_hours == exact(2.0)
    assert cost.examples == exact(57600)
    assert cost.step_time_source == "measured"


def test_incomplete_groups_count_the_true_effective_batch() -> None:
    cost = point_cost(
        point(4, 2, 3, batch=20),
        optimizer_steps=exact(10),
        step_time=StepTime(seconds=exact(1.0), source="measured"),
    )
    assert cost.examples == exact(200)


def test_interval_of_a_product_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(4000):
        steps, seconds = np.exp(rng.normal(np.log([300, 0.2]), [0.08, 0.05]))
        result = product(lognormal(steps, 0.08), lognormal(seconds, 0.05))
        assert result.low is not None
        assert result.high is not None
        hits += result.low <= 60.0 <= result.high
    assert 0.94 < hits / 4000 < 0.96


def test_a_bounded_factor_gives_a_bounded_product() -> None:
    censored = Estimate(value=None, low=200.0, high=None, reason="target not reached")
    result = product(censored, Estimate(value=0.5, low=0.4, high=0.6))
    assert result == Estimate(value=None, low=80.0, high=None, reason="target not reached")


def test_a_one_sided_factor_leaves_that_side_open() -> None:
    result = product(Estimate(value=10.0, low=5.0, high=None), exact(2.0))
    assert result.value == 20.0
    assert result.low == pytest.approx(10.0)
    assert result.high is None


def test_missing_step_time_is_a_reason_not_a_number() -> None:
    cost = point_cost(point(1, 1, 1), optimizer_steps=exact(100), step_time=None)
    assert not cost.resolved
    assert cost.gpu_hours.value is None
    assert cost.reason == "seconds per optimizer step were not measured here"
    assert cost.examples == exact(100)


def test_both_missing_gives_both_reasons_once() -> None:
    unknown = Estimate(value=None, low=None, high=None, reason="diverged")
    assert product(unknown, unknown).reason == "diverged"
    other = Estimate(value=None, low=None, high=None, reason="not timed")
    assert product(unknown, other).reason == "diverged; not timed"


def test_join_keeps_the_grid_order_and_shares_steps_between_factorisations() -> None:
    points = [point(8, 1, 4), point(8, 2, 2), point(32, 1, 1)]
    seconds = {points[0]: 0.4, points[1]: 0.3}
    costs = join(
        points,
        optimizer_steps=lambda p: exact(6400 / p.effective_batch_size),
        step_time=lambda p: StepTime(seconds=exact(seconds[p]), source="predicted") if p in seconds else None,
    )
    assert [c.wall_clock_s.value for c in costs] == [80.0, 60.0, None]
    assert costs[1].gpu_hours.value == pytest.approx(60 * 2 / 3600)


def hyperbola(batch: float) -> Estimate:
    steps = 100 + 6400 / batch
    return Estimate(value=steps, low=0.9 * steps, high=1.2 * steps)


def sampled() -> SampledLaw:
    samples = sample_law(hyperbola, [8, 64, 512])
    return SampledLaw([(s["effective_batch_size"], Estimate(**s["steps"])) for s in samples])


def test_sampled_law_is_exact_where_it_was_sampled() -> None:
    assert sampled().steps(64) == hyperbola(64)
    assert sampled().examples(64).value == 12800


@pytest.mark.parametrize("batch", [2.7, 31.0, 77.7, 500.0, 2000.0])
def test_sampled_law_between_samples_is_off_by_less_than_it_states(batch: float) -> None:
    steps, truth = sampled().steps(batch), hyperbola(batch)
    for found, planted in [(steps.value, truth.value), (steps.low, truth.low), (steps.high, truth.high)]:
        assert found == pytest.approx(planted, rel=5e-4)


def test_sampled_law_covers_the_measured_range_and_some_more() -> None:
    assert sampled().range == (2.0, 2048.0)
    steps = sampled().steps(4096)
    assert steps.value is None
    assert steps.reason == "B = 4096 is outside 2..2048, where the law was fitted"


def test_a_law_without_a_fit_has_no_samples() -> None:
    unknown = Estimate(value=None, low=None, high=None, reason="no run reached the target")
    assert sample_law(lambda batch: unknown, [8, 16]) == []
    assert sample_law(hyperbola, []) == []


def timed(b: int, n: int, g: int, seconds: float) -> tuple[GridPoint, StepTime]:
    interval = Estimate(value=seconds, low=0.9 * seconds, high=1.1 * seconds)
    return point(b, n, g), StepTime(seconds=interval, source="measured")


def test_seconds_between_two_measured_accumulation_steps_are_interpolated_linearly() -> None:
    table = StepTimeTable([timed(8, 2, 1, 0.10), timed(8, 2, 9, 0.50), timed(4, 2, 1, 0.07)])
    middle = table.at(point(8, 2, 3))
    assert middle is not None
    assert middle.source == "interpolated"
    assert middle.seconds.value == pytest.approx(0.2)
    assert middle.seconds.low == pytest.approx(0.18)
    measured = table.at(point(8, 2, 9))
    assert measured is not None
    assert measured.source == "measured"


@pytest.mark.parametrize("unknown", [point(8, 2, 10), point(4, 2, 2), point(8, 1, 1)])
def test_seconds_are_never_extrapolated(unknown: GridPoint) -> None:
    table = StepTimeTable([timed(8, 2, 1, 0.10), timed(8, 2, 9, 0.50), timed(4, 2, 1, 0.07)])
    assert table.at(unknown) is None
