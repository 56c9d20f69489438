"""The pieces of the noise measurement: spacing, norms, shards."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from gasweep.training.gradient_noise_cadence import Cadence
from gasweep.training.gradient_noise_hooks import leading_elements, shard_of
from gasweep.training.gradient_noise_norms import dot, head, norm, norms, weighted_square


def found_spacing(cost: float, *, fraction: float = 0.01, jitter: float = 0.0, seed: int = 0) -> int:
    rng = random.Random(seed)
    cadence = Cadence(every=None, overhead_fraction=fraction)
    for step in itertools.count():
        measured = cadence.is_due(step)
        cadence.add((1.0 + cost * measured) * (1.0 + jitter * rng.gauss(0.0, 1.0)))
        if cadence.cost is not None:
            cadence.settle(cadence.cost)
            break
        assert step < 40
    assert cadence.every is not None
    return cadence.every


@pytest.mark.parametrize(("cost", "every"), [(0.048, 10), (0.098, 20), (0.0, 1), (-0.05, 1), (0.998, 200)])
def test_the_spacing_aims_at_half_the_allowed_share(cost, every):
    assert found_spacing(cost) == every


def test_uncertain_timings_measure_less_often_not_more():
    quiet = found_spacing(0.045)
    noisy = [found_spacing(0.045, jitter=0.02, seed=seed) for seed in range(40)]
    assert sum(every >= quiet for every in noisy) >= 36


@pytest.mark.parametrize("jitter", [0.002, 0.02, 0.05])
def test_the_allowed_share_holds_whatever_the_timings_scatter(jitter):
    cost, allowed = 0.04, 0.01
    shares = [cost / found_spacing(cost, jitter=jitter, seed=seed) for seed in range(400)]
    assert sum(share <= allowed for share in shares) >= 390


def test_a_spacing_has_a_ceiling_and_a_given_one_stays():
    assert found_spacing(100.0) == 1000
    cadence = Cadence(every=4, overhead_fraction=0.01)
    assert [step for step in range(9) if cadence.is_due(step)] == [0, 4, 8]
    cadence.add(1.0)
    assert not cadence.calibrates


def test_long_tensors_are_summed_without_serial_rounding():
    values = torch.randn(3_000_000, generator=torch.Generator().manual_seed(0)) + 1.0
    exact = float(values.double().norm())
    assert float(norm(values)) == pytest.approx(exact, rel=1e-6)
    assert float(norms([values, values[:10]])[0]) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_squared_in_fp32(dtype):
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = float(values.double().norm())
    assert norm(values).dtype == torch.float32
    assert float(norm(values)) == pytest.approx(exact, rel=1e-5)
    assert float(norms([values, values])[1]) == pytest.approx(exact, rel=1e-5)
    weight = torch.full((5000,), 2.0)
    assert float(weighted_square(values, weight)) == pytest.approx(2.0 * exact**2, rel=1e-4)
    assert float(dot(values, values)) == pytest.approx(exact**2, rel=1e-4)


def test_fp64_complex_and_sparse_gradients_have_norms():
    assert norm(torch.full((4,), 0.1, dtype=torch.float64)).dtype == torch.float64
    assert float(norm(torch.tensor([3.0 + 4.0j]))) == pytest.approx(5.0)
    sparse = torch.sparse_coo_tensor([[1, 1]], [[3.0, 0.0], [0.0, 4.0]], (9, 2), check_invariants=True)
    assert float(norm(sparse)) == pytest.approx(5.0)
    assert norms([sparse, torch.ones(4)]).tolist() == pytest.approx([5.0, 2.0])
    assert head(sparse, 5).tolist() == [0.0, 0.0, 3.0, 4.0, 0.0]


def test_the_head_is_the_first_elements_in_row_major_order():
    tensor = torch.arange(24.0).view(2, 3, 4)
    assert head(tensor, 5).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert head(tensor.transpose(0, 2), 3).tolist() == [0.0, 12.0, 4.0]
    assert head(torch.ones(2), 8).tolist() == [1.0, 1.0]
    assert head(torch.zeros(0, 3), 8).tolist() == []


def test_a_whole_parameter_is_its_own_shard():
    parameter = torch.nn.Parameter(torch.ones(3, 2))
    assert shard_of(parameter, parameter) is parameter
    assert leading_elements(parameter) == 6
