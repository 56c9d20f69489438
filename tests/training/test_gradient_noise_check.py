"""The final gradient against what its groups add up to; and parameters that freeze or thaw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gasweep.analysis.noise_scale import NoiseMeasurement, NotMeasured
from gasweep.errors import MeasurementError
from gasweep.training.gradient_noise import NEWLY_TRAINABLE, GradientNoiseScale
from gasweep.training.gradient_noise_check import check_final
from gasweep.training.gradient_noise_recorded import Sample
from gasweep.training.gradient_noise_sample import HeadSample


def model_of(depth: int = 1, *, width: int = 32) -> nn.Module:
    torch.manual_seed(0)
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(5, width), *inner, nn.Linear(width, 1))


def run(noise, model, *, step: int = 0, change=lambda: None):
    generator = torch.Generator().manual_seed(step)
    model.zero_grad()
    for _ in range(4):
        x = torch.randn(4, 5, generator=generator)
        ((model(x) - x[:, :1]).square().mean() / 4).backward()
    change()
    return noise.step()


def test_one_clipped_weight_is_named_at_once():
    model = model_of()
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1)
    with pytest.raises(MeasurementError, match=r"final gradient of 1\.weight=0\.\d+ times"):
        run(noise, model, change=lambda: model[1].weight.grad.mul_(0.5))


def test_a_mistake_that_comes_later_is_seen_within_sixteen_measured_steps():
    model = model_of(40)
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1)
    assert isinstance(run(noise, model), NoiseMeasurement)

    def sixteen_steps() -> None:
        for step in range(1, 17):
            run(noise, model, step=step, change=lambda: model[41].weight.grad.mul_(0.5))

    with pytest.raises(MeasurementError, match=r"final gradient of 41\.weight=0\.5 times"):
        sixteen_steps()


def test_later_steps_sample_few_parameters_and_all_in_turn():
    tensors = [torch.zeros(10 + i) for i in range(100)]
    sample = HeadSample(tensors, head_sizes=[10] * 99 + [0])
    seen = []
    for _ in range(17):
        sample.begin_step()
        for index, tensor in enumerate(tensors):
            sample.add(index, tensor)
        flat = np.zeros(sample.num_read({}))
        seen.append(sample.read(flat, {}).parameters)
        sample.next_parameters()
    assert seen[0] == list(range(99))
    assert max(len(each) for each in seen[1:]) <= 4 + 7
    assert set().union(*seen[1:]) == set(range(99))


def check(final, terms, *, low: bool, rank_factor: float = 1.0) -> None:
    terms = np.array(terms)
    sample = Sample(
        parameters=[0],
        sizes=[terms.shape[1]],
        total=terms.sum(axis=0),
        magnitude=np.abs(terms).sum(axis=0),
        final=np.array(final),
    )
    check_final(sample, names=["w"], num_groups=len(terms), low_precision=low, rank_factor=rank_factor)


def test_sixteen_bits_round_the_terms_and_fp32_does_not():
    """Two terms that nearly cancel: a bf16 rounding of each is a large one of their sum."""
    terms = [[1.003, 0.011], [-0.903, 0.012]]
    rounded = [0.1 + 0.006, 0.023]
    check(rounded, terms, low=True)
    with pytest.raises(MeasurementError, match="must be 1"):
        check(rounded, terms, low=False)
    with pytest.raises(MeasurementError, match="must be 1"):
        check([0.2, 0.046], terms, low=True)


def test_a_sync_that_does_not_tell_shows_its_precision_in_its_values():
    terms = np.random.default_rng(0).normal(size=(3, 8))
    sent = torch.from_numpy(terms).bfloat16().sum(dim=0)
    check(sent.double().numpy() / 3, terms / 3, low=False, rank_factor=1 / 3)
    with pytest.raises(MeasurementError, match="must be 1"):
        check(terms.sum(axis=0) / 3 * 1.0041, terms / 3, low=False, rank_factor=1 / 3)


def test_a_parameter_frozen_later_is_skipped():
    model = model_of()
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1)
    run(noise, model)
    model[0].requires_grad_(False)
    found = [run(noise, model, step=step) for step in (1, 2)]
    other = GradientNoiseScale(fresh := model_of(), micro_batch_size=4, every=1)
    fresh[0].requires_grad_(False)
    assert found == [
        NoiseMeasurement(**(vars(m) | {"optimizer_step": step}))
        for step in (1, 2)
        if isinstance(m := run(other, fresh, step=step), NoiseMeasurement)
    ]


def test_a_parameter_that_becomes_trainable_is_measured_from_the_next_step():
    model, whole = model_of(), model_of()
    model[:2].requires_grad_(False)
    noise = GradientNoiseScale(model, micro_batch_size=4, every=1, parameter_group=lambda name: name[0])
    other = GradientNoiseScale(whole, micro_batch_size=4, every=1)
    model.requires_grad_(True)
    found = [run(noise, model, step=step) for step in range(2)]
    expected = [run(other, whole, step=step) for step in range(2)]
    assert found == [NotMeasured(reason=NEWLY_TRAINABLE), expected[1]]
    assert len(noise.steps(label="0")) == 1
