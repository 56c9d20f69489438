"""Windows of steps: ratio of means, intervals that cover, trajectories."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gasweep.analysis.noise_scale import DUPLICATES, STRADDLES_EPOCH, NoiseMeasurement, NotMeasured
from gasweep.analysis.noise_scale_ema import SmoothedNoise
from gasweep.analysis.noise_scale_fieller import FiellerSet, fieller_set
from gasweep.analysis.noise_scale_records import noise_fields, noise_labels, noise_measurements
from gasweep.analysis.noise_scale_window import (
    noise_scale,
    noise_scale_at_loss,
    noise_scale_at_step,
    noise_trajectory,
)
from gasweep.results.records import StepRecord


def step(trace: float, sq_norm: float, *, at: int = 0, loss: float | None = None) -> NoiseMeasurement:
    return NoiseMeasurement(
        grad_sq_norm=sq_norm,
        grad_noise_trace=trace,
        num_groups=4,
        num_examples=32,
        optimizer_step=at,
        contributions=32 * at,
        loss=loss,
    )


def simulate(rng, trace, sq_norm, *, groups=4, b=8, dimension=100):
    """Exact draws of the two estimates for isotropic Gaussian gradients; `trace` and `sq_norm` per step."""
    trace, sq_norm = np.broadcast_arrays(np.asarray(trace, float), np.asarray(sq_norm, float))
    n = groups * b
    freedom = dimension * (groups - 1)
    x = trace * rng.chisquare(freedom, trace.shape) / freedom
    along = np.sqrt(sq_norm) + np.sqrt(trace / (n * dimension)) * rng.standard_normal(trace.shape)
    across = trace / (n * dimension) * rng.chisquare(dimension - 1, trace.shape)
    return x, along**2 + across - x / n


def covers(found: FiellerSet, truth: float) -> bool:
    if found.shape == "negative":
        return False
    return (found.low is None or found.low <= truth) and (found.high is None or truth <= found.high)


@pytest.mark.parametrize(
    ("num_steps", "start", "end", "scale"),
    [(400, 1.0, 1.0, 1e4), (400, 1.0, 1.0, 200.0), (400, 1.0, 0.05, 100.0), (24, 1.0, 1.0, 20.0)],
    ids=["hard", "resolved", "drifting", "short"],
)
def test_the_set_covers_the_true_ratio_of_means(num_steps, start, end, scale):
    rng = np.random.default_rng(7)
    sq_norm = np.geomspace(start, end, num_steps)
    trace = np.full(num_steps, scale)
    sets = [fieller_set(*simulate(rng, trace, sq_norm)) for _ in range(400)]
    covered = np.mean([covers(found, trace.sum() / sq_norm.sum()) for found in sets])
    assert covered >= 0.925
    resolved = np.mean([found.shape == "interval" for found in sets])
    assert resolved < 0.2 if scale == 1e4 else resolved > 0.95


def test_the_hard_case_gives_a_lower_bound_instead_of_a_number():
    rng = np.random.default_rng(0)
    x, y = simulate(rng, np.full(400, 1e4), 1.0)
    window = noise_scale([step(a, b, at=i) for i, (a, b) in enumerate(zip(x, y, strict=True))])
    assert window.noise_scale.value is None
    assert window.noise_scale.high is None
    assert window.noise_scale.low is not None
    assert 500 < window.noise_scale.low < 1e4
    assert "not resolved" in str(window.noise_scale.reason)


def test_drift_does_not_widen_the_interval_as_it_would_about_the_mean():
    rng = np.random.default_rng(1)
    x, y = simulate(rng, np.full(400, 100.0), np.geomspace(1.0, 0.01, 400))
    found = fieller_set(x, y)
    assert found.low is not None
    assert found.high is not None
    about_mean = 2 * 2.13 * np.std([b.mean() for b in np.split(y, 16)], ddof=1) / 4 / y.mean()
    assert (found.high - found.low) / (x.mean() / y.mean()) < 0.7 * about_mean


@pytest.mark.parametrize(
    ("numerator", "denominator", "shape"),
    [
        ([10, 11, 10, 11, 10, 11], [1.0, 1.1, 1.0, 1.1, 1.0, 1.1], "interval"),
        ([10, 11, 10, 11, 10, 11], [-1.0, -1.1, -1.0, -1.1, -1.0, -1.1], "negative"),
        ([10, 11, 10, 11, 10, 11], [1.0, -1.1, 1.0, -1.1, 1.0, -1.0], "at_least"),
        ([10, -11, 10, -11, 10, -11], [1.0, -1.1, 1.0, -1.1, 1.0, -1.0], "anything"),
    ],
)
def test_every_shape_of_the_set(numerator, denominator, shape):
    assert fieller_set(numerator, denominator).shape == shape


def test_an_exact_ratio_has_an_interval_of_no_width():
    found = fieller_set([20.0, 22.0, 19.0, 21.0], [1.0, 1.1, 0.95, 1.05])
    assert (found.low, found.high) == pytest.approx((20.0, 20.0), rel=1e-5)


def test_scaling_both_parts_changes_nothing():
    rng = np.random.default_rng(2)
    x, y = simulate(rng, np.full(64, 50.0), 1.0)
    one, two = fieller_set(x, y), fieller_set(x * 1e-12, y * 1e-12)
    assert (one.low, one.high) == pytest.approx((two.low, two.high))


def test_examples_drawn_twice_show_as_a_negative_g_rather_than_a_number():
    rng = np.random.default_rng(3)
    x, y = simulate(rng, np.full(64, 50.0), 0.1)
    window = noise_scale([step(a, b - 1.0) for a, b in zip(x, y, strict=True)])
    assert window.noise_scale.value is None
    assert "negative beyond its noise" in str(window.noise_scale.reason)


def test_steps_left_out_are_counted_by_reason():
    steps = [step(16.0, 1.0), NotMeasured(reason=DUPLICATES), NotMeasured(reason=STRADDLES_EPOCH)] * 2
    window = noise_scale(steps)
    assert window.num_measured == 2
    assert window.left_out == {DUPLICATES: 2, STRADDLES_EPOCH: 2}
    assert noise_scale([]).noise_scale.reason == "no step was measured"


def test_smoothing_divides_averages_and_corrects_the_start():
    smoothed = SmoothedNoise(decay=0.9)
    assert smoothed.noise_scale is None
    assert smoothed.grad_sq_norm is None
    assert smoothed.update(step(16.0, 1.0)) == pytest.approx(16.0)
    smoothed.update(step(25.6, -0.2))
    assert smoothed.grad_sq_norm == pytest.approx((0.9 * 1.0 - 0.2) / 1.9)
    assert smoothed.grad_noise_trace == pytest.approx((0.9 * 16.0 + 25.6) / 1.9)
    assert smoothed.update(step(10.0, -50.0)) is None
    with pytest.raises(ValueError, match=r"decay=1\.0 must be in"):
        SmoothedNoise(decay=1.0)


def growing(num_steps: int = 400) -> list[NoiseMeasurement]:
    """tr Σ 100, |G|² falling so that the noise scale at step s is s; loss 1000 / s."""
    rng = np.random.default_rng(4)
    at = np.arange(1, num_steps + 1) * 10
    x, y = simulate(rng, np.full(num_steps, 100.0), 100.0 / at, groups=16, b=256)
    return [step(a, b, at=int(s), loss=1000.0 / s) for a, b, s in zip(x, y, at, strict=True)]


def test_the_trajectory_follows_a_growing_noise_scale():
    points = noise_trajectory(growing(), num_points=20)
    assert 15 <= len(points) <= 21
    assert points[-1].optimizer_step == 4000
    assert points[-1].contributions == 4000 * 32
    for point in points[5:]:
        estimate = point.window.noise_scale
        assert estimate.value is not None
        assert estimate.value == pytest.approx(0.9 * point.optimizer_step, rel=0.35)
    assert [p.loss for p in points] == sorted((p.loss for p in points), reverse=True)
    assert noise_trajectory([]) == []
    assert len(noise_trajectory([step(1.0, 1.0, at=1)])) == 1


def test_the_noise_scale_at_a_step_and_at_a_loss():
    steps = growing()
    at_step = noise_scale_at_step(steps, optimizer_step=2000)
    assert at_step.noise_scale.value == pytest.approx(2000, rel=0.1)
    assert at_step.num_measured == 41
    early = noise_scale_at_step(steps, optimizer_step=30)
    assert early.num_measured == 16
    at_loss = noise_scale_at_loss(steps, loss=0.5)
    assert at_loss.noise_scale.value == pytest.approx(2200, rel=0.15)
    assert "no window" in str(noise_scale_at_loss(steps, loss=0.01).noise_scale.reason)


def test_at_a_step_without_any_measurement_the_reason_survives():
    window = noise_scale_at_step([NotMeasured(reason=DUPLICATES, optimizer_step=5)], optimizer_step=100)
    assert DUPLICATES in str(window.noise_scale.reason)


def test_records_carry_measurements_there_and_back():
    one = step(16.0, -0.2, at=10, loss=0.5)
    fields = noise_fields(one) | noise_fields(step(2.0, 3.0), metric="adam")
    fields |= noise_fields(step(4.0, 5.0), label="head")
    assert all(math.isfinite(value) for value in fields.values())
    records = [
        StepRecord(optimizer_step=9, contributions=288, loss=0.6, learning_rate=0.1),
        StepRecord(optimizer_step=10, contributions=320, loss=0.5, learning_rate=0.1, extra=fields),
        StepRecord(
            optimizer_step=11,
            contributions=352,
            loss=0.5,
            learning_rate=0.1,
            extra=noise_fields(NotMeasured(reason=DUPLICATES)),
        ),
    ]
    assert noise_measurements(records) == [one, NotMeasured(reason=DUPLICATES, optimizer_step=11)]
    adam = noise_measurements(records, metric="adam")[0]
    assert isinstance(adam, NoiseMeasurement)
    assert (adam.grad_noise_trace, adam.grad_sq_norm) == (2.0, 3.0)
    assert noise_labels(records) == ["head"]
    head = noise_measurements(records, label="head")[0]
    assert isinstance(head, NoiseMeasurement)
    assert head.grad_noise_trace == 4.0
