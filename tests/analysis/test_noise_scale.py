"""One step's |G|² and tr Σ: published cases, algebra, and recovery of planted truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gasweep.analysis.noise_scale import (
    NOT_FINITE,
    TOO_FEW_GROUPS,
    NoiseMeasurement,
    NotMeasured,
    measure_groups,
    measure_two_batches,
)
from gasweep.analysis.noise_scale_window import noise_scale
from gasweep.errors import MeasurementError


def two_batches(small: float, big: float, *, b: float = 8, total: float = 32) -> NoiseMeasurement:
    result = measure_two_batches(
        small_sq_norm=small, small_batch_size=b, big_sq_norm=big, big_batch_size=total
    )
    assert isinstance(result, NoiseMeasurement)
    return result


def groups(*args, **kwargs) -> NoiseMeasurement:
    result = measure_groups(*args, **kwargs)
    assert isinstance(result, NoiseMeasurement)
    return result


def test_c01_single_steps_are_signed_and_the_window_is_a_ratio_of_means():
    first, second = two_batches(3.0, 1.5), two_batches(3.0, 0.6)
    assert (first.grad_sq_norm, first.grad_noise_trace) == pytest.approx((1.0, 16.0))
    assert (second.grad_sq_norm, second.grad_noise_trace) == pytest.approx((-0.2, 25.6))
    assert second.grad_noise_trace / second.grad_sq_norm == pytest.approx(-128.0)
    window = noise_scale([first, second])
    assert window.ratio_of_means == pytest.approx(52.0)
    assert window.noise_scale.value == pytest.approx(52.0)
    assert "too few for an interval" in str(window.noise_scale.reason)


def test_c01_a_negative_mean_is_undefined_with_its_count():
    window = noise_scale([two_batches(3.0, 0.6), two_batches(3.0, 0.5)])
    assert window.ratio_of_means is None
    assert window.noise_scale.value is None
    assert "2 measured steps" in str(window.noise_scale.reason)
    assert window.grad_sq_norm is not None
    assert window.grad_sq_norm < 0


def test_c02_scalar_parameter_with_two_micro_gradients():
    result = groups([1.0, 9.0], counts=[1, 1], mean_sq_norm=4.0)
    assert (result.grad_sq_norm, result.grad_noise_trace) == pytest.approx((3.0, 2.0))
    assert noise_scale([result]).ratio_of_means == pytest.approx(2.0 / 3.0)


def test_c02_the_accumulated_buffer_gives_another_answer_and_negative_g():
    wrong = two_batches((1.0 + 16.0) / 2.0, 4.0, b=1, total=2)
    assert (wrong.grad_sq_norm, wrong.grad_noise_trace) == pytest.approx((-0.5, 9.0))


def test_c02_a_summed_big_gradient_is_an_error():
    summed = two_batches(3.0, 1.5 * 16)
    assert (summed.grad_sq_norm, summed.grad_noise_trace) == pytest.approx((31.0, -224.0))
    with pytest.raises(MeasurementError, match=r"grad_noise_trace=-224 must be >= 0"):
        noise_scale([summed])
    with pytest.raises(MeasurementError, match="must be >= 0"):
        measure_groups([3.0] * 4, counts=[8] * 4, mean_sq_norm=24.0)


@pytest.mark.parametrize("factor", [65536.0**2, 1.01**2, 4.0])
def test_a_scaled_step_gradient_is_an_error_once_it_is_longer_than_its_groups(factor):
    with pytest.raises(MeasurementError, match="unscaled, before clipping and sync"):
        measure_groups([1.0, 1.0], counts=[4, 4], mean_sq_norm=factor)


def test_c02_one_group_is_not_measurable():
    assert measure_groups([4.0], counts=[8], mean_sq_norm=4.0) == NotMeasured(reason=TOO_FEW_GROUPS)
    assert measure_groups([4.0, 0.0], counts=[8, 0], mean_sq_norm=4.0) == NotMeasured(reason=TOO_FEW_GROUPS)
    assert measure_groups([], counts=[], mean_sq_norm=0.0) == NotMeasured(reason=TOO_FEW_GROUPS)
    assert measure_groups([4.0, 1.0], counts=[4, 4], weights=[1, 1e-17], mean_sq_norm=4.0) == NotMeasured(
        reason=TOO_FEW_GROUPS
    )
    same = measure_two_batches(small_sq_norm=1.0, small_batch_size=8, big_sq_norm=1.0, big_batch_size=8)
    assert same == NotMeasured(reason=TOO_FEW_GROUPS)
    window = noise_scale([NotMeasured(reason=TOO_FEW_GROUPS)])
    assert window.noise_scale.value is None
    assert "not measurable: fewer than 2 groups" in str(window.noise_scale.reason)


def test_c29_the_definition_is_trace_over_squared_norm():
    result = two_batches(1.0 + 16.0 / 8, 1.0 + 16.0 / 32)
    assert noise_scale([result]).ratio_of_means == pytest.approx(16.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_norm_leaves_the_step_out(bad):
    assert measure_groups([1.0, bad], counts=[4, 4], mean_sq_norm=1.0) == NotMeasured(reason=NOT_FINITE)
    assert measure_groups([1.0, 1.0], counts=[4, 4], mean_sq_norm=bad) == NotMeasured(reason=NOT_FINITE)


def test_an_empty_group_with_a_nan_norm_is_left_out_alone():
    result = measure_groups([1.0, 9.0, math.nan], counts=[1, 1, 0], mean_sq_norm=4.0)
    assert result == measure_groups([1.0, 9.0], counts=[1, 1], mean_sq_norm=4.0)


def test_lengths_that_differ_and_negative_counts_are_refused():
    with pytest.raises(MeasurementError, match="one entry per group, not 2, 1 and 1"):
        measure_groups([1.0, 1.0], counts=[4], mean_sq_norm=1.0)
    with pytest.raises(MeasurementError, match="must be >= 0"):
        measure_groups([1.0, 1.0], counts=[4, -4], mean_sq_norm=1.0)
    with pytest.raises(MeasurementError, match="small_batch_size=64 must be"):
        two_batches(1.0, 1.0, b=64, total=32)


def test_identical_groups_have_no_noise_rather_than_an_error():
    result = groups([1.0, 1.0], counts=[4, 4], mean_sq_norm=1.0 + 1e-7)
    assert result.grad_noise_trace == pytest.approx(0.0, abs=1e-5)
    steps = [result] * 8
    assert noise_scale(steps).noise_scale.value is None
    assert "tr Σ is 0 within rounding" in str(noise_scale(steps).noise_scale.reason)


@pytest.mark.parametrize("counts", [[4, 4, 4, 4], [4, 4, 2, 4, 4, 2], [1, 7], [5, 0, 3, 1]])
def test_unequal_and_empty_groups_match_the_residual_form(counts):
    rng = np.random.default_rng(3)
    sizes = [n for n in counts if n]
    gradients = rng.normal(size=(len(sizes), 5))
    n = np.array(sizes)
    mean = n @ gradients / n.sum()
    result = groups([g @ g for g in gradients], counts=sizes, mean_sq_norm=float(mean @ mean))
    trace = float((n * ((gradients - mean) ** 2).sum(axis=1)).sum() / (len(sizes) - 1))
    assert result.grad_noise_trace == pytest.approx(trace)
    assert result.grad_sq_norm == pytest.approx(float(mean @ mean) - trace / n.sum())


def planted(rng, *, sizes, repeats, weights=None, dimension=12, population=None):
    """z-scores of (|G|², tr Σ) over `repeats` steps of gradients with known mean and covariance."""
    scales = np.linspace(0.5, 2.0, dimension)
    center = np.full(dimension, 0.3)
    if population is not None:
        examples = center + rng.normal(size=(population, dimension)) * scales
        center, trace = examples.mean(axis=0), float(examples.var(axis=0, ddof=1).sum())
    else:
        trace = float((scales**2).sum())
    share = np.array(sizes if weights is None else weights, dtype=float)
    results = []
    for _ in range(repeats):
        if population is None:
            drawn = center + rng.normal(size=(sum(sizes), dimension)) * scales
        else:
            drawn = examples[rng.permutation(population)[: sum(sizes)]]
        means = np.array([part.mean(axis=0) for part in np.split(drawn, np.cumsum(sizes)[:-1])])
        mean = share @ means / share.sum()
        result = groups(
            [g @ g for g in means],
            counts=sizes,
            weights=weights,
            mean_sq_norm=float(mean @ mean),
            dataset_size=population,
        )
        results.append((result.grad_sq_norm, result.grad_noise_trace))
    errors = np.array(results) - [float(center @ center), trace]
    return errors.mean(axis=0) / (errors.std(axis=0, ddof=1) / math.sqrt(repeats))


@pytest.mark.parametrize(
    ("sizes", "weights"),
    [([4] * 4, None), ([4, 4, 2, 4, 4, 2], None), ([1] * 8, None), ([8, 8, 3], [1, 1, 1])],
)
def test_planted_noise_is_recovered_without_bias(sizes, weights):
    z = planted(np.random.default_rng(11), sizes=sizes, weights=weights, repeats=2000)
    assert np.abs(z).max() < 3.5


def test_a_finite_data_set_is_corrected_and_would_be_biased_otherwise():
    rng = np.random.default_rng(5)
    z = planted(rng, sizes=[8] * 4, repeats=3000, population=64)
    assert np.abs(z).max() < 3.5
    uncorrected = groups([1.0, 9.0], counts=[1, 1], mean_sq_norm=4.0)
    corrected = groups([1.0, 9.0], counts=[1, 1], mean_sq_norm=4.0, dataset_size=4)
    assert corrected.grad_sq_norm - uncorrected.grad_sq_norm == pytest.approx(2.0 / 4)


def test_more_examples_than_the_data_set_holds_are_refused():
    with pytest.raises(MeasurementError, match="dataset_size=1 is smaller than the step's 2 examples"):
        measure_groups([1.0, 9.0], counts=[1, 1], mean_sq_norm=4.0, dataset_size=1)
