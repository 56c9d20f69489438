"""The running sums: small and large gradients alike, parameters that nothing reached, pieces refused."""

import math
from fractions import Fraction

import pytest
import torch

from gasweep.errors import RefusedError
from gasweep.training.bitwise import totals as totals_module
from gasweep.training.bitwise.totals import UNTOUCHED, GradientTotals

SHAPES = [torch.Size([3]), torch.Size([100, 4]), torch.Size([2, 2]), torch.Size([0]), torch.Size([500])]
GRAINS = 6


def added(monkeypatch, *, small, skip=(), spread=20):
    monkeypatch.setattr(totals_module, "SMALL", small)
    generator = torch.Generator().manual_seed(0)
    totals = GradientTotals(SHAPES, device=torch.device("cpu"))
    grains = [
        [
            torch.randn(s, generator=generator) * 2.0 ** torch.randint(-spread, 1, s, generator=generator)
            for s in SHAPES
        ]
        for _ in range(GRAINS)
    ]
    peaks = [
        max(float(g[i].abs().max()) if g[i].numel() else 0.0 for g in grains) for i in range(len(SHAPES))
    ]
    totals.reset(peaks, num_grains=GRAINS)
    for number, grain in enumerate(grains):
        for index in reversed(range(len(SHAPES))):
            if (number, index) not in skip:
                totals.add(index, grain[index])
        totals.end_grain()
    return totals, grains, peaks


def test_gathered_and_single_gradients_give_the_same_integers(monkeypatch):
    skip = {(2, 1), (3, 0)}
    flats = [added(monkeypatch, small=small, skip=skip)[0] for small in (0, 10, 10_000)]
    for index in range(len(SHAPES)):
        assert torch.equal(flats[0].total(index), flats[1].total(index))
        assert torch.equal(flats[0].total(index), flats[2].total(index))
    assert torch.equal(flats[0].peaks, flats[2].peaks)


@pytest.mark.parametrize("small", [0, 10_000])
def test_sums_and_peaks_are_exact_within_the_bound(monkeypatch, small):
    totals, grains, peaks = added(monkeypatch, small=small)
    assert totals.fits(peaks)
    for index in (0, 1, 2, 4):
        assert float(totals.peaks[index]) == peaks[index]
        bound = Fraction(totals.error_bound(index))
        quantum = bound * 2 / GRAINS
        flat = totals.total(index).reshape(-1)
        for element in range(0, flat.numel(), 37):
            exact = sum(Fraction(float(grain[index].reshape(-1)[element])) for grain in grains)
            assert abs(int(flat[element]) * quantum - exact) <= bound
        gradient = totals.gradient(index, dtype=torch.float32)
        assert gradient.shape == SHAPES[index]
        expected = torch.stack([grain[index].double() for grain in grains]).sum(0)
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-6, atol=1e-12)


def test_a_parameter_that_nothing_reached_is_told_from_one_with_zeros():
    totals = GradientTotals([torch.Size([2]), torch.Size([2])], device=torch.device("cpu"))
    totals.reset([0.0, 0.0], num_grains=1)
    totals.add(1, torch.zeros(2))
    totals.end_grain()
    assert totals.peaks.tolist() == [UNTOUCHED, 0.0]
    assert totals.fits([UNTOUCHED, 0.0])


def test_a_non_finite_gradient_has_an_infinite_peak():
    totals = GradientTotals([torch.Size([2])], device=torch.device("cpu"))
    for value in (math.nan, math.inf, -math.inf):
        totals.reset([1.0], num_grains=2)
        totals.add(0, torch.tensor([1.0, value]))
        totals.end_grain()
        totals.add(0, torch.tensor([1.0, 1.0]))
        totals.end_grain()
        assert totals.peaks.tolist() == [math.inf]


def test_a_gradient_in_pieces_is_refused():
    totals = GradientTotals([torch.Size([2])], device=torch.device("cpu"))
    totals.reset([1.0], num_grains=1)
    totals.add(0, torch.ones(2))
    with pytest.raises(RefusedError, match="use_reentrant=False"):
        totals.add(0, torch.ones(2))
