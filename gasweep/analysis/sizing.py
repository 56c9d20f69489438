"""The sizing recipe: from a target batch and what fits, to (b, N, G), a learning rate and a warm-up.

Pure arithmetic with its reasons spelled out; measuring (B_crit, the largest b, the cluster) is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from gasweep.analysis.learning_rate_scaling import scaled_learning_rate
from gasweep.errors import BatchError

LARGE_BATCH = 2048  # examples; Goyal et al. 2017 needed a warm-up from about here


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A learning rate known to be good, and the effective batch size it is known at.

    source: how it is known, for the reasons; may be empty. caution: what is doubtful about it, warned of.
    """

    learning_rate: float
    effective_batch_size: int
    warmup_optimizer_steps: int = 0
    source: str = ""
    caution: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """A choice of (b, N, G), rate and warm-up, with the reason of each.

    effective_batch_size: exactly what the optimizer step uses; b·N·G, or less when the last groups are
        incomplete (`incomplete_groups`).
    learning_rate: None without a baseline.
    """

    effective_batch_size: int
    micro_batch_size: int
    world_size: int
    accumulation_steps: int
    learning_rate: float | None
    warmup_optimizer_steps: int
    incomplete_groups: bool
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    alternatives: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The JSON shape of `gasweep size`."""
        return {
            "effective_batch_size": self.effective_batch_size,
            "micro_batch_size": self.micro_batch_size,
            "world_size": self.world_size,
            "accumulation_steps": self.accumulation_steps,
            "learning_rate": self.learning_rate,
            "warmup_optimizer_steps": self.warmup_optimizer_steps,
            "incomplete_groups": self.incomplete_groups,
            "reasons": self.reasons,
            "warnings": self.warnings,
            "alternatives": self.alternatives,
        }


def size_run(
    *,
    effective_batch_size: int,
    largest_micro_batch_size: int,
    world_size: int,
    allow_incomplete_groups: bool = True,
    optimizer: str = "sgd",
    baseline: Baseline | None = None,
    critical_batch_size: float | None = None,
    rule: str | None = None,
    beta2: float = 0.999,
    epoch_examples: int | None = None,
    planned_optimizer_steps: float | None = None,
) -> Sizing:
    """Choose b, N, G, the learning rate and the warm-up for B examples per optimizer step.

    largest_micro_batch_size: the largest b that fits one rank's memory.
    allow_incomplete_groups: True keeps B exact with smaller last groups when b·N does not divide it; False
        moves B to the nearest multiple of b·N, and says so.
    critical_batch_size: where linear scaling of the rate ends (SGD); None leaves it linear throughout.
    rule: how the user scales rates (see `scaled_learning_rate`); None chooses by the optimizer.
    epoch_examples: D, for the warm-up of SGD.
    planned_optimizer_steps: how long the run will be; a warm-up beyond 5 % of it would show in the steps.

    Raises BatchError naming the numbers when B < N.
    """
    total = effective_batch_size
    reasons: list[str] = []
    if total < world_size:
        raise BatchError(
            f"effective_batch_size={total} is smaller than world_size={world_size}: every rank needs at "
            f"least one example per optimizer step; use world_size <= {total}"
        )
    b = _micro_batch(total, largest_micro_batch_size, world_size, reasons)
    reasons.append(f"N = {world_size} ranks: all that may be used")
    total, steps, incomplete = _accumulation(total, b, world_size, allow_incomplete_groups, reasons)
    moved = "" if total == effective_batch_size else f" (asked for: {effective_batch_size})"
    reasons.insert(0, f"B = {total} contributions per optimizer step{moved}")
    rate = _learning_rate(total, optimizer, baseline, critical_batch_size, rule, reasons)
    warmup = _warmup(rate, optimizer, baseline, beta2, epoch_examples, total, reasons)
    warmup = _at_most_5_percent(warmup, planned_optimizer_steps, reasons)
    warnings = list(baseline.caution) if baseline else []
    warnings += [] if warmup else _large_batch_warning(total, rate, baseline)
    return Sizing(
        effective_batch_size=total,
        micro_batch_size=b,
        world_size=world_size,
        accumulation_steps=steps,
        learning_rate=rate,
        warmup_optimizer_steps=warmup,
        incomplete_groups=incomplete,
        reasons=reasons,
        warnings=warnings,
        alternatives=_alternatives(total, b, world_size, steps),
    )


def _micro_batch(total: int, largest: int, world_size: int, reasons: list[str]) -> int:
    share = math.ceil(total / world_size)
    if largest <= share:
        reasons.append(f"b = {largest}: as large as allowed, so that G is small")
        return largest
    reasons.append(f"b = {share}: {largest} would be allowed, but a rank's share of B is {share}")
    return share


def _accumulation(
    total: int, b: int, world_size: int, allow_incomplete: bool, reasons: list[str]
) -> tuple[int, int, bool]:
    per_pass = b * world_size
    if total % per_pass == 0:
        steps = total // per_pass
        reasons.append(f"G = B / (b·N) = {total} / ({b}·{world_size}) = {steps}")
        return total, steps, False
    if allow_incomplete:
        steps = math.ceil(math.ceil(total / world_size) / b)
        reasons.append(
            f"G = {steps}: b·N = {per_pass} does not divide B = {total}, so some groups are smaller and "
            f"weighted by their true counts; B stays exactly {total}"
        )
        return total, steps, True
    steps = max(1, round(total / per_pass))
    reasons.append(
        f"G = {steps}: b·N = {per_pass} does not divide B = {total}; B moved to the nearest multiple, "
        f"{steps * per_pass}"
    )
    return steps * per_pass, steps, False


def _learning_rate(
    total: int,
    optimizer: str,
    baseline: Baseline | None,
    critical_batch_size: float | None,
    rule: str | None,
    reasons: list[str],
) -> float | None:
    if baseline is None:
        reasons.append("learning rate: no baseline given (a rate known to be good, with its batch size)")
        return None
    if rule is not None:
        why = f"{rule} scaling, as the config's learning_rate_scaling says"
    elif optimizer != "sgd":
        rule, why = "sqrt", f"{optimizer}: square-root scaling (Malladi et al. 2022)"
    elif critical_batch_size is not None:
        rule = "knee"
        why = f"linear up to B_crit = {critical_batch_size:.4g}, square root above (Goyal et al. 2017)"
    else:
        rule, why = "linear", "linear scaling (Goyal et al. 2017); no B_crit given, so no end to it is known"
    rate = scaled_learning_rate(
        baseline.learning_rate,
        rule=rule,
        batch_size=total,
        base_batch_size=baseline.effective_batch_size,
        knee_batch_size=None if critical_batch_size is None else max(1, round(critical_batch_size)),
    )
    start = f"{baseline.learning_rate:g} at B = {baseline.effective_batch_size}"
    if baseline.source:
        start += f" ({baseline.source})"
    how = "unscaled" if rate == baseline.learning_rate else why
    reasons.append(f"learning rate = {rate:.4g}: {how}, from {start}")
    return rate


def _warmup(
    rate: float | None,
    optimizer: str,
    baseline: Baseline | None,
    beta2: float,
    epoch_examples: int | None,
    total: int,
    reasons: list[str],
) -> int:
    """Source: Ma & Yarats 2021 (arXiv 1910.04209), 2/(1-beta2) steps for Adam; Goyal et al. 2017 (arXiv
    1706.02677), 5 epochs for SGD whose rate was scaled up."""
    if optimizer != "sgd":
        steps = math.ceil(round(2 / (1 - beta2), 6))
        reasons.append(
            f"warm-up = {steps} optimizer steps: 2 / (1 − β2) with β2 = {beta2:g} (Ma & Yarats 2021)"
        )
        return steps
    if baseline is None or rate is None:
        reasons.append("warm-up = 0 optimizer steps: no baseline to tell how far the rate is scaled up")
        return 0
    kept = baseline.warmup_optimizer_steps
    if rate <= baseline.learning_rate:
        reasons.append(f"warm-up = {kept} optimizer steps: the rate is not above the baseline's")
        return kept
    if epoch_examples is None:
        reasons.append(f"warm-up = {kept} optimizer steps: the baseline's; the data set's size is not given")
        return kept
    steps = math.ceil(5 * epoch_examples / total)
    reasons.append(f"warm-up = {steps} optimizer steps: 5 epochs of {epoch_examples} (Goyal et al. 2017)")
    return steps


def _at_most_5_percent(warmup: int, planned: float | None, reasons: list[str]) -> int:
    if planned is None or warmup <= 0.05 * planned:
        return warmup
    capped = math.floor(0.05 * planned)
    reasons.append(
        f"warm-up cut to {capped} optimizer steps: 5 % of the {planned:.4g} that the run is expected to "
        "take; more would delay every batch size alike and bias B_crit"
    )
    return capped


def _large_batch_warning(total: int, rate: float | None, baseline: Baseline | None) -> list[str]:
    """For a batch far above what is known to train without a warm-up."""
    if baseline is None:
        large, how = total >= LARGE_BATCH, f"B = {total} is a large batch"
    else:
        large = rate is not None and rate > 2 * baseline.learning_rate
        how = f"the rate is {(rate or 0) / baseline.learning_rate:.3g}x the baseline's"
    text = "large batches without a warm-up often diverge at first (Goyal et al. 2017)"
    return [f"{how} and there is no warm-up: {text}"] if large else []


MOST_FEWER = 65536
"""How many smaller world sizes are looked at; a cluster has fewer ranks."""


def _alternatives(total: int, b: int, world_size: int, steps: int) -> list[str]:
    if steps == 1:
        return ["G = 1: nothing accumulates; fewer ranks with G > 1 use fewer workers for longer"]
    found = [
        f"larger b rather than G where memory allows (small models: passes of b = {b} may leave the device "
        "idle); dropping activation checkpointing costs memory and saves recomputation"
    ]
    candidates = range(min(world_size - 1, total // b), max(0, world_size - MOST_FEWER), -1)
    fewer = next((n for n in candidates if total % (b * n) == 0), None)
    if fewer is not None:
        found.append(
            f"N = {fewer}, G = {total // (b * fewer)}: fewer ranks, less communication, more wall-clock"
        )
    return found
