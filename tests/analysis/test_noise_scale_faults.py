"""What cannot be measured or asked for is one line that names it, never an assertion or a NaN."""

from __future__ import annotations

import math

import pytest

from gasweep.analysis.noise_scale import (
    NOT_FINITE,
    NoiseMeasurement,
    NotMeasured,
    measure_groups,
    measure_two_batches,
)
from gasweep.analysis.noise_scale_fieller import fieller_set
from gasweep.analysis.noise_scale_items import GroupSums, measure_item_groups
from gasweep.analysis.noise_scale_records import noise_measurements
from gasweep.analysis.noise_scale_window import (
    noise_scale,
    noise_scale_at_loss,
    noise_scale_at_step,
    noise_trajectory,
)
from gasweep.errors import MeasurementError
from gasweep.results.records import StepRecord

NAN, INF = math.nan, math.inf


def step(trace: float = 8.0, sq_norm: float = 1.0, **changes) -> NoiseMeasurement:
    fields = {"grad_sq_norm": sq_norm, "grad_noise_trace": trace, "num_groups": 4, "num_examples": 32}
    return NoiseMeasurement(**(fields | changes))


def windows(**changes):
    return noise_trajectory([step()] * 5, **changes)


def groups(sq_norms=(5.0, 4.0), counts=(2, 2), mean=3.0, **changes):
    return measure_groups(sq_norms, counts=counts, mean_sq_norm=mean, **changes)


def two(small=2.0, small_size=1.0, big=1.0, big_size=4.0):
    return measure_two_batches(
        small_sq_norm=small, small_batch_size=small_size, big_sq_norm=big, big_batch_size=big_size
    )


def items(num_examples: int, num_items: float):
    part = GroupSums(
        num_groups=2, group_sq_sum=4.0, cross_sum=1.0, item_rate_sum=2.0, item_sq_sum=2.0, mean_sq_norm=1.0
    )
    return measure_item_groups([part], num_groups=2, num_examples=num_examples, num_items=num_items)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step(NAN), "grad_noise_trace=nan must be a finite number"),
        (lambda: step(1.0, INF), "grad_sq_norm=inf must be a finite number"),
        (lambda: step(num_groups=0), "num_groups=0 must be a whole number >= 1"),
        (lambda: step(num_examples=0), "num_examples=0 must be a whole number >= 1"),
        (lambda: step(num_examples=NAN), "num_examples=nan must be a whole number >= 1"),
        (lambda: noise_scale([step()] * 5, confidence=1.0), r"confidence=1.0 must be in \(0, 1\)"),
        (lambda: noise_scale([step()] * 5, num_blocks=3), "num_blocks=3 must be a whole number >= 4"),
        (lambda: noise_scale([], confidence=NAN), r"confidence=nan must be in \(0, 1\)"),
        (lambda: windows(window_fraction=0.0), r"window_fraction=0.0 must be in \(0, 1\]"),
        (lambda: windows(min_window=0), "min_window=0 must be a whole number >= 1"),
        (lambda: windows(num_points=0), "num_points=0 must be a whole number >= 1"),
        (lambda: noise_scale_at_step([step()], optimizer_step=NAN), "optimizer_step=nan must be a finite"),
        (lambda: noise_scale_at_loss([step()], loss=NAN), "loss=nan must be a finite number"),
        (lambda: groups((5.0, -4.0)), r"sq_norms=\[5.0, -4.0\] and mean_sq_norm=3.0 must be >= 0"),
        (lambda: groups(mean=-3.0), "mean_sq_norm=-3.0 must be >= 0"),
        (lambda: groups(counts=(2, 1.5)), "counts=1.5 must be a whole number >= 0"),
        (lambda: groups(counts=(2, NAN)), "counts=nan must be a whole number >= 0"),
        (lambda: groups(weights=(1.0, NAN)), "weights=nan must be a finite number"),
        (lambda: groups(weights=(1.0, INF)), "weights=inf must be a finite number"),
        (lambda: groups(dataset_size=0), "dataset_size=0 must be a whole number >= 1"),
        (lambda: two(small_size=NAN), "small_batch_size=nan must be a finite number"),
        (lambda: two(big_size=INF), "big_batch_size=inf must be a finite number"),
        (lambda: two(small_size=0.0), "small_batch_size=0.0 must be > 0"),
        (lambda: two(small=-1.0), "small_sq_norm=-1.0 and big_sq_norm=1.0 must be >= 0"),
        (lambda: items(0, 4.0), "num_examples=0 must be a whole number >= 1"),
        (lambda: items(4, 0.0), "num_items=0.0 must be > 0"),
        (lambda: items(4, NAN), "num_items=nan must be a finite number"),
        (lambda: fieller_set([1.0] * 4, [1.0] * 5), "one number per step, 4 steps or more, not 4 and 5"),
        (lambda: fieller_set([1.0] * 3, [1.0] * 3), "4 steps or more, not 3 and 3"),
        (lambda: fieller_set([1.0] * 4, [1.0, NAN, 1.0, 1.0]), "denominator=nan at step 1 must be finite"),
    ],
)
def test_a_fault_is_one_line_that_names_it(call, message):
    with pytest.raises(MeasurementError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_norms_that_are_not_finite_leave_the_step_out():
    assert two(small=NAN) == two(big=INF) == NotMeasured(reason=NOT_FINITE)


def test_estimates_that_overflow_leave_the_step_out():
    assert groups((1.7e308, 1.7e308), counts=(10**6, 10**6), mean=1.0) == NotMeasured(reason=NOT_FINITE)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_very_large_and_small_units_change_no_ratio(scale):
    values = [(8.0 + 0.1 * i, 1.0 + 0.01 * (i % 3)) for i in range(40)]
    plain = noise_scale([step(x, y) for x, y in values]).noise_scale
    scaled = noise_scale([step(x * scale, y * scale) for x, y in values]).noise_scale
    assert scaled.value == pytest.approx(plain.value, rel=1e-9)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high), rel=1e-9)


def test_a_ratio_too_large_for_a_float_is_a_bound_with_a_reason():
    found = noise_scale([step(1e300 * (1 + 0.1 * (i % 2)), 1e-10) for i in range(20)])
    assert found.ratio_of_means is None
    assert found.noise_scale.value is None
    assert found.noise_scale.reason


def test_a_diverged_loss_is_left_out_of_the_mean():
    losses = [1.0, NAN, 3.0, INF]
    points = noise_trajectory([step(loss=loss, optimizer_step=i) for i, loss in enumerate(losses)])
    assert points[-1].loss == pytest.approx(2.0)


def test_a_record_that_lacks_a_part_is_named():
    record = StepRecord(
        optimizer_step=7,
        contributions=56,
        loss=1.0,
        learning_rate=0.1,
        extra={"grad_sq_norm": 1.0, "grad_noise_trace": 2.0},
    )
    with pytest.raises(MeasurementError, match="optimizer_step=7 lacks noise_num_groups"):
        noise_measurements([record])
