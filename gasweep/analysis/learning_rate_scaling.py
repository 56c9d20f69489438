"""How the learning rate follows the batch size: the published rules, with where each holds."""

from __future__ import annotations

import math


def scaled_learning_rate(
    base_learning_rate: float,
    *,
    rule: str,
    batch_size: int,
    base_batch_size: int,
    knee_batch_size: int | None = None,
) -> float:
    """The rate at `batch_size` given one known to be good at `base_batch_size`.

    none: unchanged.
    linear: x B/B0. Source: Goyal et al. 2017 (arXiv 1706.02677), section 2.1.
        Assumes: SGD, B well below the critical batch size, a warm-up at large B.
    sqrt: x sqrt(B/B0). Source: Malladi et al. 2022 (arXiv 2205.10287), for Adam-family optimizers.
        Assumes: gradient noise dominates the update.
    knee: linear up to `knee_batch_size`, sqrt above it, continuous at the knee.

    Raises ValueError for another rule, or for knee without `knee_batch_size`.
    """
    ratio = batch_size / base_batch_size
    if rule == "none":
        return base_learning_rate
    if rule == "linear":
        return base_learning_rate * ratio
    if rule == "sqrt":
        return base_learning_rate * math.sqrt(ratio)
    if rule == "knee" and knee_batch_size is not None:
        return (
            base_learning_rate * _knee(batch_size, knee_batch_size) / _knee(base_batch_size, knee_batch_size)
        )
    raise ValueError(f"rule={rule!r} is not none, linear, sqrt or knee (which needs knee_batch_size)")


def noise_limited_learning_rate(max_learning_rate: float, *, noise_scale: float, batch_size: float) -> float:
    """The optimal rate eps(B) = eps_max / (1 + B_noise / B).

    Source: McCandlish et al. 2018 (arXiv 1812.06162), eq. 2.6.
    Assumes: SGD on a loss well approximated by its quadratic expansion; `noise_scale` in examples.
    """
    return max_learning_rate / (1 + noise_scale / batch_size)


def _knee(batch_size: float, knee: float) -> float:
    return batch_size if batch_size <= knee else math.sqrt(batch_size * knee)
