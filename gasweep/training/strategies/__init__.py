"""Data-parallel strategies, one per file, behind one contract. May import torch and layers 1 to 3."""

from __future__ import annotations

from gasweep.config.schema import StrategyOptions
from gasweep.errors import ConfigError, nearest
from gasweep.training.meter import CommunicationMeter
from gasweep.training.process import ProcessContext
from gasweep.training.strategies.base import Strategy

NAMES = ("single", "ddp", "fsdp")


def build_strategy(
    name: str,
    *,
    process: ProcessContext,
    options: StrategyOptions,
    accumulation_steps: int,
    syncs_gradients: bool = True,
) -> Strategy:
    """The strategy called `name`; one rank always runs as single.

    Raises ConfigError for an unknown name, or for `single` on several ranks.
    """
    if name not in NAMES:
        raise ConfigError(f"strategy={name!r}: {nearest(name, NAMES)}")
    if process.world_size > 1 and name == "single":
        raise ConfigError(f"strategy='single' cannot run world_size={process.world_size}; use ddp or fsdp")
    return _strategy_class(name if process.world_size > 1 else "single")(
        process=process,
        options=options,
        meter=CommunicationMeter(world_size=process.world_size),
        accumulation_steps=accumulation_steps,
        syncs_gradients=syncs_gradients,
    )


def _strategy_class(name: str) -> type[Strategy]:
    if name == "single":
        from gasweep.training.strategies.single import SingleStrategy

        return SingleStrategy
    if name == "ddp":
        from gasweep.training.strategies.ddp import DdpStrategy

        return DdpStrategy
    from gasweep.training.strategies.fsdp import FsdpStrategy

    return FsdpStrategy
