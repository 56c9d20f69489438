"""The settings bits depend on: made, put back, recorded, and compared when a run resumes."""

import contextlib
import re

import pytest
import torch

from gasweep.errors import RefusedError
from gasweep.training.bitwise.environment import (
    deterministic_kernels,
    kernel_fingerprint,
    kernels_of,
    refuse_other_kernels,
)
from gasweep.training.bitwise.optimizer_check import refuse_inexact_shards
from gasweep.training.bitwise.randomness import seed_grain
from gasweep.training.optimizer import build_optimizer
from tests.training.toys import toy_spec

CPU = torch.device("cpu")


def settings():
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


def test_kernels_are_fixed_inside_and_put_back_even_after_an_error():
    before = settings()
    with contextlib.suppress(KeyError), deterministic_kernels(num_threads=1, device=CPU):
        assert settings() == (1, True, False, False)
        raise KeyError
    assert settings() == before


def test_fast_mode_leaves_the_settings_alone():
    before = settings()
    with kernels_of(toy_spec(), device=CPU):
        assert settings() == before
    with kernels_of(toy_spec(determinism="bitwise", cluster={"threads_per_worker": 1}), device=CPU):
        assert settings() == (1, True, False, False)


def test_a_checkpoint_of_other_kernels_is_refused_naming_what_changed():
    here = kernel_fingerprint(device=CPU)
    refuse_other_kernels(here, device=CPU)
    other = {**here, "threads": "64", "cpu": "NONE"}
    expected = rf"cpu NONE -> {here['cpu']}, threads 64 -> {here['threads']}\): a resumed run would"
    with pytest.raises(RefusedError, match=expected):
        refuse_other_kernels(other, device=CPU)


def draws(**key):
    seed_grain(**{"seed": 0, "optimizer_step": 3, "grain_index": 2, "device": CPU, **key})
    return torch.rand(4)


def test_random_numbers_are_keyed_by_seed_step_and_grain_and_by_nothing_else():
    reference = draws()
    torch.rand(17)
    assert torch.equal(draws(), reference)
    for key in ({"seed": 1}, {"optimizer_step": 4}, {"grain_index": 3}):
        assert not torch.equal(draws(**key), reference), key


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_optimizers_update_a_shard_as_they_update_the_whole(name, dtype):
    config = toy_spec(optimizer={"name": name, "momentum": 0.9 if name == "sgd" else 0.0}).config.optimizer

    def build(parameters):
        return build_optimizer(parameters, config, learning_rate=0.1, effective_batch_size=8)

    refuse_inexact_shards(build, device=CPU, dtype=dtype)


class RoundsByPosition(torch.optim.SGD):
    """Its last elements, as in a remainder loop, get one rounding more."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                tail = parameter.grad[len(parameter) // 8 * 8 :]
                tail.copy_(tail.half())
        super().step(closure)


def test_an_optimizer_that_rounds_by_position_is_refused():
    with pytest.raises(RefusedError, match=re.escape("RoundsByPosition on cpu updates a shard")):
        refuse_inexact_shards(lambda p: RoundsByPosition(p, lr=0.1), device=CPU, dtype=torch.float32)
