"""What is doubtful about a sizing: a sweep of something else, a budget that is too small for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gasweep.analysis.sizing import Sizing
from gasweep.config.load import config_to_dict, load_sweep_config
from gasweep.config.schema import BudgetConfig, SweepConfig
from gasweep.results.directory import SWEEP_FILE

DECIDES_STEPS = ("task", "data", "optimizer", "precision", "target")
"""Parts of a config that steps to target depend on, beside batch size, rate and seed."""
ELSEWHERE = ("data.root",)
MOST_WARMUP = 0.05  # of the run


def differences(directory: Path, config: SweepConfig) -> list[str]:
    """`path: sweep's value, not config's` where the sweep in `directory` trained something else."""
    stored = config_to_dict(load_sweep_config(directory / SWEEP_FILE))
    mine = config_to_dict(config)
    theirs, own = (_flat({part: data[part] for part in DECIDES_STEPS}) for data in (stored, mine))
    return [
        f"{path}: {theirs.get(path)}, not {own.get(path)}"
        for path in dict.fromkeys([*theirs, *own])
        if theirs.get(path) != own.get(path) and path not in ELSEWHERE
    ]


def budget_doubts(sizing: Sizing, budget: BudgetConfig, *, expected_steps: float | None) -> list[str]:
    """Where `budget` ends the sized run before its warm-up is over or its target can be expected.

    expected_steps: to the target; None where no sweep tells.
    """
    limits = {
        f"budget.max_optimizer_steps={budget.max_optimizer_steps}": budget.max_optimizer_steps,
        f"budget.max_examples={budget.max_examples}": (
            None if budget.max_examples is None else budget.max_examples // sizing.effective_batch_size
        ),
    }
    known = {name: steps for name, steps in limits.items() if steps is not None}
    if not known:
        return []
    name, steps = min(known.items(), key=lambda item: item[1])
    ends = f"{name} ends the run after {steps} optimizer steps of B = {sizing.effective_batch_size}"
    if expected_steps is not None and steps < expected_steps:
        return [f"{ends}, and {expected_steps:.4g} are expected to the target"]
    warmup = sizing.warmup_optimizer_steps
    if warmup > MOST_WARMUP * steps:
        return [f"{ends}, and the warm-up takes {warmup}: raise the one or cut the other"]
    return []


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found
