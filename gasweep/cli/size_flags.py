"""Flags of `size` that contradict the config, and those that another flag leaves nothing to decide."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gasweep.analysis.sizing import Baseline, Sizing
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SizeContext:
    """What flags, sweep and config together say of the rate. rule: None where the recipe chooses one."""

    optimizer: str
    rule: str | None
    baseline: Baseline | None

    def scales_to_a_knee(self, total: int) -> bool:
        """Whether the rate at B = `total` depends on B_crit."""
        if self.baseline is None or self.baseline.effective_batch_size == total:
            return False
        return self.rule == "knee" or (self.rule is None and self.optimizer == "sgd")


def refuse_contradictions(arguments: argparse.Namespace, config: SweepConfig | None) -> None:
    """Raises ConfigError where the config to be written would not be what the flags ask for."""
    if arguments.out and config and arguments.optimizer not in (None, config.optimizer.name):
        raise ConfigError(
            f"--optimizer={arguments.optimizer} contradicts the config's optimizer.name="
            f"{config.optimizer.name}, which --out writes; give optimizer.name={arguments.optimizer} instead"
        )


def unused_flags(arguments: argparse.Namespace, context: SizeContext, sizing: Sizing) -> list[str]:
    """One line per flag given in vain, and why."""
    unused = {
        "--critical-batch-size": (arguments.critical_batch_size, _why_no_knee(arguments, context, sizing)),
        "--noise-scale": (arguments.noise_scale, _why_no_noise_scale(arguments)),
        "--probe-memory": (
            arguments.probe_memory or None,
            "--micro-batch-size says what fits" if arguments.micro_batch_size is not None else None,
        ),
        "--dataset-examples": (arguments.dataset_examples, _why_no_epochs(context, sizing)),
    }
    return [
        f"{flag}{'' if value is True else f'={value:g}'} is not used: {why}"
        for flag, (value, why) in unused.items()
        if value is not None and why is not None
    ]


def _why_no_knee(arguments: argparse.Namespace, context: SizeContext, sizing: Sizing) -> str | None:
    if arguments.effective_batch_size is None or context.scales_to_a_knee(sizing.effective_batch_size):
        return None
    return "--effective-batch-size gives B, and the learning rate is not scaled up to a B_crit"


def _why_no_noise_scale(arguments: argparse.Namespace) -> str | None:
    if arguments.effective_batch_size is not None:
        return "--effective-batch-size gives B"
    if arguments.critical_batch_size is not None:
        return "--critical-batch-size gives B; the noise scale is only a proxy for it"
    return None


def _why_no_epochs(context: SizeContext, sizing: Sizing) -> str | None:
    if context.optimizer != "sgd":
        return f"the warm-up of {context.optimizer} follows β2, not the data set"
    if context.baseline is None or sizing.learning_rate is None:
        return "without a learning rate known to be good, nothing tells whether a warm-up is needed"
    if sizing.learning_rate <= context.baseline.learning_rate:
        return "the rate is not above the baseline's, which keeps its warm-up"
    return None
