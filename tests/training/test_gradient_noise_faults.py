"""What `GradientNoiseScale` cannot be asked for is one line that names it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from gasweep.errors import MeasurementError
from gasweep.training.gradient_noise import GradientNoiseScale


def measuring(**changes) -> GradientNoiseScale:
    return GradientNoiseScale(nn.Linear(2, 1), **({"micro_batch_size": 2, "every": 1} | changes))


def in_group(**changes):
    with measuring().group(**changes):
        pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measuring(micro_batch_size=0), "micro_batch_size=0 must be a whole number >= 1"),
        (lambda: measuring(micro_batch_size=2.5), "micro_batch_size=2.5 must be a whole number >= 1"),
        (lambda: measuring(dataset_size=-3), "dataset_size=-3 must be a whole number >= 1"),
        (lambda: measuring(overhead_fraction=math.nan), r"overhead_fraction=nan must be in \(0, 1\]"),
        (lambda: in_group(num_examples=-1), "num_examples=-1 must be a whole number >= 0"),
        (lambda: in_group(num_examples=1, num_items=math.nan), "num_items=nan must be a finite number"),
        (lambda: in_group(num_examples=1, num_items=-1.0), "num_items=-1.0 must be >= 0"),
        (lambda: measuring().step(loss_divisor=0.0), "loss_divisor=0.0 must be a finite number > 0"),
        (lambda: measuring().step(loss_divisor=math.nan), "loss_divisor=nan must be a finite number > 0"),
        (lambda: measuring().step(loss_scale=math.inf), "loss_scale=inf must be a finite number > 0"),
        (lambda: measuring().estimate(last=0), "last=0 must be a whole number >= 1"),
        (lambda: measuring().estimate(metric="adamw"), "metric='adamw' must be 'plain' or 'adam'"),
        (lambda: measuring().estimate(metric="adam"), r"needs GradientNoiseScale\(optimizer=\.\.\.\)"),
        (lambda: measuring().steps(label="head"), "label='head' is not measured; labels: none without param"),
        (
            lambda: measuring(parameter_group=lambda name: name[0]).trajectory(label="x"),
            "label='x' is not measured; labels: b, w",
        ),
        (
            lambda: measuring(optimizer=SGD([torch.zeros(1)], lr=0.1)),
            "optimizer=SGD: only an Adam has second moments",
        ),
        (lambda: measuring().estimate(last=-1), "last=-1 must be a whole number >= 1"),
    ],
)
def test_a_fault_is_one_line_that_names_it(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_nothing_measured_is_an_estimate_with_a_reason():
    found = measuring().estimate()
    assert found.noise_scale.reason == "no step was measured"


def test_adams_metric_before_its_first_update_says_so():
    model = nn.Linear(2, 1)
    noise = GradientNoiseScale(model, micro_batch_size=2, every=1, optimizer=Adam(model.parameters()))
    for _ in range(2):
        (model(torch.ones(2, 2)).mean() / 2).backward()
    noise.step()
    reason = noise.estimate(metric="adam").noise_scale.reason
    assert reason == "the optimizer had made no update before any measured step"


def test_an_object_that_failed_leaves_no_hook_behind():
    model = nn.Linear(2, 1)
    GradientNoiseScale(model, every=1)
    with pytest.raises(MeasurementError, match="micro_batch_size=None"):
        model(torch.ones(2, 2)).mean().backward()
    model.zero_grad()
    noise = GradientNoiseScale(model, micro_batch_size=1, every=1)
    for row in torch.eye(2):
        (model(row).mean() / 2).backward()
    assert noise.step() is not None


def test_one_measured_step_has_no_interval_and_says_why():
    noise = measuring()
    assert str(noise.estimate().noise_scale) == "unknown (no step was measured)"
    model = nn.Linear(2, 1, bias=False)
    noise = GradientNoiseScale(model, micro_batch_size=1, every=1)
    for row in (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.1])):
        (model(row).mean() / 2).backward()
    noise.step()
    assert "without an interval (" in str(noise.estimate().noise_scale)
