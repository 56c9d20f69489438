"""The order-independent gradient norm: the exact value, and the same bits however it is sharded."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gasweep.training.bitwise import norm as norm_module
from gasweep.training.bitwise.norm import exact_norm


def exact_square(tensors):
    return sum(Fraction(float(value)) ** 2 for tensor in tensors for value in tensor.reshape(-1))


def sharded_norm(tensors, cuts):
    """The norm as ranks that hold shards compute it: their collectives are played by this function."""
    shards = [
        [
            tensor.reshape(-1)[start:stop]
            for tensor, bounds in zip(tensors, cuts, strict=True)
            for start, stop in [(bounds[rank], bounds[rank + 1])]
        ]
        for rank in range(len(cuts[0]) - 1)
    ]
    recorded = {"max": [], "sum": []}

    def record(kind):
        return lambda values: recorded[kind].append(values.clone())

    for own in shards:
        exact_norm(own, reduce_max=record("max"), reduce_sum=None)
    peaks = torch.stack(recorded["max"]).amax(0)
    limbs = []
    for own in shards:
        exact_norm(
            own, reduce_max=lambda values: values.copy_(peaks), reduce_sum=lambda v: limbs.append(v.clone())
        )
    total = torch.stack(limbs).sum(0)
    return [
        exact_norm(own, reduce_max=lambda v: v.copy_(peaks), reduce_sum=lambda v: v.copy_(total))
        for own in shards
    ]


@given(seed=st.integers(0, 2**31), spread=st.integers(0, 40), scale=st.integers(-100, 100))
@settings(deadline=None, max_examples=50)
def test_norm_is_the_exact_one_to_float64_rounding(seed, spread, scale):
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(n, generator=generator) * 2.0 ** torch.randint(-spread, 1, (n,), generator=generator)
        for n in (1, 7, 64)
    ]
    tensors = [(tensor.double() * 2.0**scale).float() for tensor in tensors]
    truth = math.sqrt(exact_square(tensors))
    assert float(exact_norm(tensors)) == pytest.approx(truth, rel=1e-14)


@given(seed=st.integers(0, 2**31), data=st.data())
@settings(deadline=None, max_examples=30)
def test_norm_has_the_same_bits_however_it_is_sharded(seed, data):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=generator).exp() for n in (5, 1000)]
    cuts = [
        [0, *sorted(data.draw(st.lists(st.integers(0, t.numel()), min_size=2, max_size=2))), t.numel()]
        for t in tensors
    ]
    whole = exact_norm(tensors)
    for value in sharded_norm(tensors, cuts):
        assert torch.equal(value, whole)


def test_norm_does_not_depend_on_the_chunk_size(monkeypatch):
    tensor = torch.randn(10_000)
    whole = exact_norm([tensor])
    monkeypatch.setattr(norm_module, "_CHUNK", 37)
    assert torch.equal(exact_norm([tensor]), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_leaves_the_gradient_as_it_was(dtype):
    gradient = torch.randn(100, dtype=dtype)
    before = gradient.clone()
    exact_norm([gradient])
    assert torch.equal(gradient, before)


def test_norm_of_nothing_of_zeros_and_of_non_finite():
    assert float(exact_norm([])) == 0.0
    assert float(exact_norm([torch.zeros(3), torch.empty(0)])) == 0.0
    assert math.isnan(exact_norm([torch.tensor([1.0, float("inf")])]))
    assert math.isnan(exact_norm([torch.tensor([float("nan")])]))


def test_norm_names_a_tensor_too_large_to_add(monkeypatch):
    monkeypatch.setattr(norm_module, "_MAX_ELEMENTS", 3)
    with pytest.raises(ValueError, match="4 elements"):
        exact_norm([torch.ones(4)])
