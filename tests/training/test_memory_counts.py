"""C47: a probe must see gradients and the optimizer's state, not the weights alone."""

import pytest
import torch

from gasweep.config import parse_sweep_config, plan_sweep
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.memory import probe
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

NUM_PARAMETERS = 1_000_000
MEGABYTE = 10**6


@pytest.fixture
def stepper():
    config = parse_sweep_config(
        {
            "task": {"_target_": "gasweep.tasks.NoisyQuadratic", "dimension": NUM_PARAMETERS},
            "optimizer": {"name": "adam"},
            "grid": {"micro_batch_size": 1, "accumulation_steps": 2, "learning_rate": 1e-3},
            "target": {"value": 0.0},
            "budget": {"max_optimizer_steps": 10},
        }
    )
    trainer = build_trainer(plan_sweep(config).runs[0], process=ProcessContext())
    return Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))


def held_bytes(stepper):
    trainer = stepper._trainer
    tensors = [tensor for _, tensor in trainer.parts.parameters]
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    state = [
        value
        for slots in trainer.optimizer.state.values()
        for value in slots.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    ]
    return sum(tensor.nbytes for tensor in [*tensors, *gradients, *state])


def test_c47_after_the_first_update_adam_holds_four_times_the_weights(stepper):
    assert held_bytes(stepper) == 4 * MEGABYTE
    stepper.attempt()
    assert held_bytes(stepper) == 16 * MEGABYTE


def test_c47_a_probe_makes_two_updates_with_accumulation():
    assert probe.NUM_UPDATES == 2
    assert probe.probe_largest_micro_batch.__kwdefaults__["accumulation_steps"] == 2
