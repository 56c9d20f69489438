"""What `GradientNoiseScale` cannot be asked for is one line that names it."""

from __future__ import annotations

import math

import pytest
from torch import nn

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
