"""Token-weighted losses: the example stays the sampling unit."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from gasweep.analysis.noise_scale import (
    NOT_FINITE,
    TOO_FEW_GROUPS,
    NoiseMeasurement,
    NotMeasured,
    measure_groups,
)
from gasweep.analysis.noise_scale_items import GroupSums, measure_item_groups
from gasweep.errors import MeasurementError


def measure(sums, items, counts, *, parts=None):
    """`sums` [m, d] summed gradients, `items` [m], `counts` [m]; `parts`: (groups, coordinates) pairs."""
    mean = sums.sum(axis=0) / items.sum()
    parts = parts or [(slice(None), slice(None))]
    result = measure_item_groups(
        [_part(sums[g][:, c], items[g], counts[g], mean[c]) for g, c in parts],
        num_groups=len(counts),
        num_examples=int(counts.sum()),
        num_items=float(items.sum()),
    )
    assert isinstance(result, NoiseMeasurement)
    return result


def _part(sums, items, counts, mean) -> GroupSums:
    return GroupSums(
        num_groups=len(counts),
        group_sq_sum=float(((sums**2).sum(axis=1) / counts).sum()),
        cross_sum=float((items / counts) @ (sums @ mean)),
        item_rate_sum=float((items / counts).sum()),
        item_sq_sum=float((items**2 / counts).sum()),
        mean_sq_norm=float(mean @ mean),
    )


@pytest.mark.parametrize("counts", [[4, 4, 4], [4, 4, 2, 4, 2]])
def test_equal_items_per_example_is_the_plain_estimate(counts):
    rng = np.random.default_rng(0)
    counts = np.array(counts)
    means = rng.normal(size=(len(counts), 6))
    items = 16.0 * counts
    result = measure(means * items[:, None], items, counts)
    mean = counts @ means / counts.sum()
    plain = measure_groups(list((means**2).sum(axis=1)), counts=list(counts), mean_sq_norm=float(mean @ mean))
    assert isinstance(plain, NoiseMeasurement)
    assert result.grad_noise_trace == pytest.approx(plain.grad_noise_trace)
    assert result.grad_sq_norm == pytest.approx(plain.grad_sq_norm)


def draw(rng, repeats, num_examples, *, dimension=6):
    """Summed gradients and lengths of examples whose per-token gradient depends on the length and whose
    tokens share part of their noise."""
    items = rng.integers(1, 20, size=(repeats, num_examples)).astype(float)
    center = np.zeros(dimension)
    center[:2] = (0.5, 0.3)
    mean = center * (1.0 + 0.08 * (items[..., None] - 10.0))
    shared = 0.6 * rng.normal(size=(repeats, num_examples, dimension))
    independent = rng.normal(size=(repeats, num_examples, dimension))
    return items[..., None] * (mean + shared) + np.sqrt(items)[..., None] * independent, items


def truth(rng):
    sums, items = (x[0] for x in draw(rng, 1, 1_000_000))
    mean = sums.sum(axis=0) / items.sum()
    residual = sums - items[:, None] * mean
    return float(mean @ mean), float((residual**2).sum(axis=1).mean() / items.mean() ** 2)


@pytest.mark.parametrize("by_rank", [False, True])
def test_correlated_tokens_and_unequal_lengths_are_recovered(by_rank):
    rng = np.random.default_rng(1)
    sq_norm, trace = truth(rng)
    sizes = np.full(16, 4)
    sums, items = draw(rng, 1500, int(sizes.sum()))
    starts = np.cumsum([0, *sizes[:-1]])
    sums, items = np.add.reduceat(sums, starts, axis=1), np.add.reduceat(items, starts, axis=1)
    parts = [(slice(0, 8), slice(0, 3)), (slice(8, 16), slice(3, 6))] if by_rank else None
    found = [measure(s, t, sizes, parts=parts) for s, t in zip(sums, items, strict=True)]
    traces = np.array([m.grad_noise_trace for m in found])
    sq_norms = np.array([m.grad_sq_norm for m in found])
    assert traces.mean() == pytest.approx(trace, rel=0.01)
    assert abs(sq_norms.mean() - sq_norm) < 3.5 * sq_norms.std() / math.sqrt(len(found)) + 0.003 * sq_norm


GOOD = GroupSums(
    num_groups=2,
    group_sq_sum=10.0,
    cross_sum=8.0,
    item_rate_sum=2.0,
    item_sq_sum=2.0,
    mean_sq_norm=4.0,
)


def run(*parts: GroupSums, **kwargs):
    return measure_item_groups(
        list(parts), **{"num_groups": 2, "num_examples": 2, "num_items": 2.0, **kwargs}
    )


def test_c02_in_items():
    result = run(GOOD)
    assert isinstance(result, NoiseMeasurement)
    assert (result.grad_sq_norm, result.grad_noise_trace) == pytest.approx((3.0, 2.0))


def test_what_cannot_be_measured_says_why():
    assert run(GOOD, num_groups=1) == NotMeasured(reason=TOO_FEW_GROUPS)
    assert run(dataclasses.replace(GOOD, item_rate_sum=0.0)) == NotMeasured(reason=TOO_FEW_GROUPS)
    assert run(dataclasses.replace(GOOD, group_sq_sum=math.nan)) == NotMeasured(reason=NOT_FINITE)


def test_sums_that_no_groups_can_have_are_an_error():
    with pytest.raises(MeasurementError, match="must be >= 0"):
        run(dataclasses.replace(GOOD, mean_sq_norm=64.0, cross_sum=128.0))


@pytest.mark.parametrize("num_examples", [1, 5, 7, 39])
@pytest.mark.parametrize("items", [1, 29, 71, 199])
def test_one_group_that_holds_all_items_leaves_nothing_to_measure(num_examples: int, items: int) -> None:
    """n (T/n) - T²/n / T is zero only up to rounding: neither a division by it nor a number made of it."""
    gradient = np.array([[0.3, -1.7, 0.1], [0.0, 0.0, 0.0]])
    counts, tokens = np.array([num_examples, num_examples]), np.array([items, 0])
    part = _part(gradient * items, tokens, counts, gradient[0])
    found = measure_item_groups([part], num_groups=2, num_examples=2 * num_examples, num_items=float(items))
    assert found == NotMeasured(reason=TOO_FEW_GROUPS)
