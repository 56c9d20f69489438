"""The optimizers, built in one place: one implementation, one rule for betas, one clipping."""

from __future__ import annotations

import torch
from torch import Tensor

from gasweep.config.schema import OptimizerConfig
from gasweep.errors import ConfigError, nearest

IMPLEMENTATION = "foreach"
"""torch's multi-tensor implementation everywhere. Fused ones are faster by a few percent of an optimizer step
and round differently; one choice keeps the strategies comparable and is recorded with each result."""

NAMES = ("sgd", "adam", "adamw")


def build_optimizer(
    parameters: list[Tensor], config: OptimizerConfig, *, learning_rate: float, effective_batch_size: int
) -> torch.optim.Optimizer:
    """The optimizer that `config` names, over `parameters`.

    Weight decay is the coupled L2 term for sgd and adam, decoupled for adamw; it applies to every parameter.
    Raises ConfigError for an unknown name or values the optimizer refuses.
    """
    if config.name not in NAMES:
        raise ConfigError(f"optimizer.name={config.name!r}: {nearest(config.name, NAMES)}")
    if not parameters:
        raise ConfigError("the task's model has no trainable parameter")
    try:
        if config.name == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=learning_rate,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                foreach=True,
            )
        build = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
        return build(
            parameters,
            lr=learning_rate,
            betas=scaled_betas(config, effective_batch_size=effective_batch_size),
            eps=config.eps,
            weight_decay=config.weight_decay,
            foreach=True,
        )
    except ValueError as error:
        raise ConfigError(f"optimizer: {error}") from error


def scaled_betas(config: OptimizerConfig, *, effective_batch_size: int) -> tuple[float, float]:
    """Adam's betas at this batch size: `config.betas`, or, with `betas_base_batch_size` B0, beta ** (B / B0).

    The averages then forget half of what they hold after the same number of *examples* at every batch size;
    with fixed betas small batches look worse than they are.

    Source: Marek et al. 2025 (arXiv 2507.07101), section 3 (for beta2; applied to both here).
    """
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        raise ConfigError(f"optimizer.betas={config.betas!r} must be two numbers in [0, 1)")
    base = config.betas_base_batch_size
    if base is None:
        return config.betas[0], config.betas[1]
    if base < 1:
        raise ConfigError(f"optimizer.betas_base_batch_size={base} must be >= 1")
    exponent = effective_batch_size / base
    return config.betas[0] ** exponent, config.betas[1] ** exponent


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(gradients: list[Tensor], *, norm: Tensor, max_norm: float) -> None:
    """Scale gradients so that their norm, `norm` before, is at most `max_norm`; in place, no device sync."""
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, factor)
