"""Integer sums: exact, order-independent, within their bound, and honest about overflow."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gasweep.training.bitwise.fixed_point import (
    HEADROOM_BITS,
    Grid,
    add_quantized,
    dequantize,
    grid_for,
    peak_of,
)


def wide_gradients(seed, *, num_grains, numel, spread, dtype=torch.float32):
    """Gradients whose elements span `spread` powers of two."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-spread, 1, (num_grains, numel), generator=generator, dtype=torch.float64)
    return (torch.randn(num_grains, numel, generator=generator, dtype=torch.float64) * 2**exponents).to(dtype)


@given(
    seed=st.integers(0, 2**31),
    num_grains=st.integers(1, 70),
    spread=st.integers(0, 60),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
@settings(deadline=None, max_examples=60)
def test_sum_stays_within_its_bound_of_the_exact_sum(seed, num_grains, spread, dtype):
    grains = wide_gradients(seed, num_grains=num_grains, numel=5, spread=spread, dtype=dtype)
    peak = float(grains.double().abs().max())
    grid = grid_for(peak, num_grains=num_grains)
    total = torch.zeros(5, dtype=torch.int64)
    for grain in grains:
        add_quantized(total, grain.float() if grain.dtype.itemsize < 4 else grain, scale=grid.scale)
    assert grid.holds(peak)
    assert grid.resolves(peak)
    for column in range(5):
        exact = sum(Fraction(float(value)) for value in grains[:, column])
        error = abs(Fraction(int(total[column])) * Fraction(grid.quantum) - exact)
        assert error <= Fraction(grid.sum_error_bound())


def test_sum_has_the_same_bits_in_any_order_and_grouping():
    grains = wide_gradients(0, num_grains=64, numel=101, spread=40)
    grid = grid_for(float(grains.abs().max()), num_grains=64)

    def total(order):
        sums = torch.zeros(101, dtype=torch.int64)
        for index in order:
            add_quantized(sums, grains[index], scale=grid.scale)
        return sums

    forward = total(range(64))
    backward = total(reversed(range(64)))
    split = total(range(20)) + total(range(20, 64))
    assert torch.equal(forward, backward)
    assert torch.equal(forward, split)
    float_forward, float_backward = torch.zeros(101), torch.zeros(101)
    for grain, last_first in zip(grains, grains.flip(0), strict=True):
        float_forward += grain
        float_backward += last_first
    assert not torch.equal(float_forward, float_backward)


def test_one_grain_of_float32_is_exact_down_to_2_to_the_minus_29_of_its_peak():
    gradient = torch.tensor([1.0, 1 / 3, -(2.0**-29) * (1 + 2.0**-23)])
    grid = grid_for(1.0, num_grains=1)
    total = torch.zeros(3, dtype=torch.int64)
    add_quantized(total, gradient, scale=grid.scale)
    assert torch.equal(dequantize(total, scale=grid.scale, dtype=torch.float32), gradient)


@pytest.mark.parametrize("num_grains", [1, 2, 3, 64, 65, 4096])
def test_worst_case_sum_of_the_largest_elements_does_not_wrap(num_grains):
    peak = 1.9999
    grid = grid_for(peak, num_grains=num_grains)
    largest = peak * 2.0**HEADROOM_BITS
    assert grid.holds(largest)
    one = torch.zeros(1, dtype=torch.int64)
    add_quantized(one, torch.tensor([largest], dtype=torch.float64), scale=grid.scale)
    assert int(one) * num_grains < 2**62
    assert not grid.holds(peak * 2.0 ** (HEADROOM_BITS + 1))


def test_a_grid_chosen_for_a_much_larger_peak_says_it_is_too_coarse():
    grid = grid_for(1.0, num_grains=8)
    assert grid.resolves(2.0**-16)
    assert not grid.resolves(2.0**-17)
    assert grid.resolves(0.0)


@pytest.mark.parametrize("peak", [0.0, 1e-45, 1e-38, 1.0, 3e38])
def test_every_float32_peak_has_a_grid_that_fits_it(peak):
    grid = grid_for(peak, num_grains=1000)
    assert grid.holds(peak)
    assert grid.resolves(peak)
    assert torch.isfinite(torch.tensor(grid.scale, dtype=torch.float32))


def test_grid_depends_on_the_power_of_two_alone():
    assert grid_for(1.0, num_grains=4) == grid_for(1.9, num_grains=4) == Grid(exponent=51, num_grains=4)


def test_peak_tells_a_non_finite_gradient():
    assert float(peak_of(torch.tensor([1.0, -3.0]))) == 3.0
    assert float(peak_of(torch.tensor([1.0, float("-inf")]))) == float("inf")
    assert torch.isnan(peak_of(torch.tensor([1.0, float("nan")])))
    assert float(peak_of(torch.empty(0))) == 0.0
