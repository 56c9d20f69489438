"""What is doubtful about a sizing: a sweep of something else, a budget that is too small for it."""

from __future__ import annotations

from pathlib import Path

from gasweep.analysis.sizing import Sizing
from gasweep.config.load import config_to_dict, load_sweep_config
from gasweep.config.schema import BudgetConfig, SweepConfig
from gasweep.results.directory import SWEEP_FILE
from gasweep.results.stored import config_changes

DECIDES_STEPS = ("task", "data", "optimizer", "precision", "target")
"""Parts of a config that steps to target depend on, beside batch size, rate and seed."""
MOST_WARMUP = 0.05  # of the run


def differences(directory: Path, config: SweepConfig) -> list[str]:
    """`path: sweep's value -> config's` where the sweep in `directory` trained something else."""
    stored, given = (
        {part: data[part] for part in DECIDES_STEPS}
        for data in map(config_to_dict, (load_sweep_config(directory / SWEEP_FILE), config))
    )
    for one in (stored, given):
        one["data"].pop("root", None)  # where the data lie
    return config_changes(stored, given)


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
