"""How a run adds its gradients up and who syncs them: decided before the model is wrapped."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gasweep.config.schema import SweepConfig
from gasweep.training.accumulator import Accumulator
from gasweep.training.bitwise.accumulator import BitwiseAccumulator
from gasweep.training.fast_accumulator import FastAccumulator, MainGradientAccumulator
from gasweep.training.main_parameters import MainParameters, has_low_precision
from gasweep.training.parts import TrainingParts


@dataclass(frozen=True, kw_only=True)
class AccumulationChoice:
    """strategy_syncs: whether the strategy reduces gradients during the backward; else the accumulator does.
    has_main: whether the optimizer steps main parameters apart from the model's.
    main_syncs: see `MainGradientAccumulator`.
    """

    bitwise: bool
    strategy_syncs: bool
    has_main: bool
    main_syncs: str

    def main_parameters(self, module: nn.Module) -> MainParameters | None:
        if not self.has_main:
            return None
        return MainParameters([p for p in module.parameters() if p.requires_grad])

    def build(self, parts: TrainingParts, main: MainParameters | None) -> Accumulator:
        if self.bitwise:
            return BitwiseAccumulator(parts)
        if main is None:
            return FastAccumulator(parts)
        return MainGradientAccumulator(parts, main=main, syncs=self.main_syncs)


def choose_accumulation(config: SweepConfig, *, module: nn.Module, world_size: int) -> AccumulationChoice:
    """FSDP shards in fp32 and adds up by itself; elsewhere low-precision parameters need fp32 gradients of
    their own, which DDP's buckets (in the parameters' dtype) cannot reduce."""
    bitwise = config.determinism == "bitwise"
    is_ddp = config.strategy == "ddp" and world_size > 1
    is_fsdp = config.strategy == "fsdp" and world_size > 1
    low = has_low_precision(module) and not is_fsdp
    each = is_ddp and config.strategy_options.sync_every_micro_step
    if world_size == 1:
        main_syncs = "never"
    elif low:
        main_syncs = "every_group" if each else "last"
    else:
        main_syncs = "strategy"
    return AccumulationChoice(
        bitwise=bitwise,
        strategy_syncs=not (bitwise or (low and is_ddp)),
        has_main=low or (each and not bitwise),
        main_syncs=main_syncs,
    )
