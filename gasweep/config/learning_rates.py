"""The learning rates of a grid: absolute ones as they are, multipliers of the rate scaled to each B."""

from __future__ import annotations

import math

from gasweep.analysis.learning_rate_scaling import scaled_learning_rate
from gasweep.config.axes import Axes
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError


def peak_learning_rates(config: SweepConfig, axes: Axes, total: int) -> list[float]:
    """The absolute peak learning rates of the grid at effective batch size `total`.

    Raises ConfigError when multipliers have no base, or make a rate that is not a positive number.
    """
    if axes.learning_rate is not None:
        return axes.learning_rate
    scaling = config.learning_rate_scaling
    if scaling.base_learning_rate is None:
        raise ConfigError(
            "grid.learning_rate_multiplier needs learning_rate_scaling.base_learning_rate, which is null"
        )
    base = scaled_learning_rate(
        scaling.base_learning_rate,
        rule=scaling.rule,
        batch_size=total,
        base_batch_size=scaling.base_batch_size or total,
        knee_batch_size=scaling.knee_batch_size,
    )
    rates = [base * multiplier for multiplier in axes.learning_rate_multiplier or []]
    for rate, multiplier in zip(rates, axes.learning_rate_multiplier or [], strict=True):
        if not 0.0 < rate < math.inf:
            raise ConfigError(
                f"grid.learning_rate_multiplier={multiplier} makes a learning rate of {rate} at effective "
                f"batch size {total}; change it or learning_rate_scaling.base_learning_rate"
            )
    return rates
