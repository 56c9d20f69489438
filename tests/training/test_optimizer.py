from __future__ import annotations

import pytest
import torch

from gasweep.config.schema import OptimizerConfig
from gasweep.errors import ConfigError
from gasweep.training.optimizer import build_optimizer, clip_gradients, scaled_betas


def betas(value: float, *, base: int, at: int) -> float:
    config = OptimizerConfig(betas=[0.9, value], betas_base_batch_size=base)
    return scaled_betas(config, effective_batch_size=at)[1]


def test_c64_half_life_in_examples_is_kept() -> None:
    assert betas(0.95, base=512, at=64) == pytest.approx(0.993609, abs=1e-6)
    assert betas(0.95, base=512, at=1) == pytest.approx(0.9998998, abs=1e-7)
    assert betas(0.999, base=512, at=2048) == pytest.approx(0.996006, abs=1e-6)
    assert scaled_betas(OptimizerConfig(), effective_batch_size=7) == (0.9, 0.999)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_one_step_equals_torchs_own(name: str) -> None:
    """The choice of implementation changes no more than rounding."""
    torch.manual_seed(0)
    start, gradient = torch.randn(7), torch.randn(7)
    ours = start.clone()
    config = OptimizerConfig(name=name, momentum=0.9 if name == "sgd" else 0.0, weight_decay=0.1)
    optimizer = build_optimizer([ours], config, learning_rate=0.1, effective_batch_size=1)
    theirs = start.clone().requires_grad_()
    plain = {
        "sgd": lambda: torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.1, foreach=False),
        "adam": lambda: torch.optim.Adam([theirs], lr=0.1, weight_decay=0.1, foreach=False),
        "adamw": lambda: torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.1, foreach=False),
    }[name]()
    for _ in range(3):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        plain.step()
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OptimizerConfig(name="sdg"), "did you mean 'sgd'"),
        (OptimizerConfig(name="adam", betas=[0.9, 1.0]), r"optimizer.betas=\[0.9, 1.0\] must be two numbers"),
        (OptimizerConfig(name="adam", betas_base_batch_size=0), "betas_base_batch_size=0 must be >= 1"),
        (OptimizerConfig(momentum=-1.0), "Invalid momentum value"),
        (OptimizerConfig(nesterov=True), "Nesterov momentum requires"),
    ],
)
def test_refuses_what_has_no_meaning(config: OptimizerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer([torch.zeros(1)], config, learning_rate=0.1, effective_batch_size=1)


def test_refuses_a_model_without_parameters() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        build_optimizer([], OptimizerConfig(), learning_rate=0.1, effective_batch_size=1)


def test_clipping_leaves_small_gradients_alone() -> None:
    small, large = torch.tensor([0.3, 0.4]), torch.tensor([3.0, 4.0])
    clip_gradients([small], norm=small.norm(), max_norm=1.0)
    clip_gradients([large], norm=large.norm(), max_norm=1.0)
    torch.testing.assert_close(small, torch.tensor([0.3, 0.4]), rtol=0, atol=0)
    torch.testing.assert_close(large, torch.tensor([0.6, 0.8]))
