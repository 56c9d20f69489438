"""Checks of a config's values beyond their types: one line each, naming field, value, constraint, fix."""

from __future__ import annotations

import math
from typing import Any

from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError, nearest

CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer.name": ("sgd", "adam", "adamw"),
    "learning_rate_scaling.rule": ("none", "linear", "sqrt", "knee"),
    "schedule.name": ("constant", "linear", "cosine"),
    "data.sampling": ("epoch", "replacement"),
    "precision": ("fp32", "bf16", "fp16", "fp64"),
    "determinism": ("fast", "bitwise"),
    "strategy": ("single", "ddp", "fsdp"),
    "target.mode": ("min", "max"),
    "target.rule": ("first_crossing", "smoothed", "stays_below"),
    "sweep.mode": ("factorized", "full"),
    "cluster.backend": ("ray", "inline"),
    "cluster.isolation": ("reuse", "fresh"),
    "tracking.wandb.mode": ("offline", "online", "disabled"),
}

# path -> (lowest, whether the lowest itself is allowed, highest)
RANGES: dict[str, tuple[float, bool, float]] = {
    "optimizer.momentum": (0, True, 1),
    "optimizer.weight_decay": (0, True, math.inf),
    "optimizer.eps": (0, False, math.inf),
    "optimizer.max_grad_norm": (0, False, math.inf),
    "optimizer.betas_base_batch_size": (1, True, math.inf),
    "learning_rate_scaling.base_batch_size": (1, True, math.inf),
    "learning_rate_scaling.base_learning_rate": (0, False, math.inf),
    "learning_rate_scaling.knee_batch_size": (1, True, math.inf),
    "schedule.warmup_optimizer_steps": (0, True, math.inf),
    "schedule.horizon_examples": (1, True, math.inf),
    "schedule.final_fraction": (0, True, 1),
    "data.seed": (0, True, 2**63 - 1),
    "grain": (1, True, math.inf),
    "strategy_options.bucket_cap_mb": (0, False, math.inf),
    "target.window_fraction": (0, True, 0.5),
    "evaluation.spacing_fraction": (0, False, 1),
    "evaluation.every_optimizer_steps": (1, True, math.inf),
    "evaluation.batch_size": (1, True, 2**31 - 1),
    "evaluation.max_examples": (1, True, math.inf),
    "budget.max_examples": (1, True, math.inf),
    "budget.max_optimizer_steps": (1, True, math.inf),
    "budget.divergence_factor": (1, False, math.inf),
    "noise_scale.every_optimizer_steps": (1, True, math.inf),
    "noise_scale.overhead_fraction": (0, False, 1),
    "sweep.max_retries": (0, True, math.inf),
    "sweep.probe_optimizer_steps": (1, True, math.inf),
    "sweep.probe_warmup_optimizer_steps": (0, True, math.inf),
    "cluster.num_workers": (1, True, math.inf),
    "cluster.threads_per_worker": (1, True, math.inf),
    "cluster.attempt_timeout_s": (0, False, math.inf),
    "cluster.lease_idle_s": (0, True, math.inf),
    "checkpoint.every_s": (0, False, math.inf),
    "checkpoint.every_optimizer_steps": (1, True, math.inf),
    "tracking.every_optimizer_steps": (1, True, math.inf),
}


def validate(config: SweepConfig) -> None:
    """Raise ConfigError for the first value that cannot work, alone or together with others."""
    for path, choices in CHOICES.items():
        value = read(config, path)
        if value is not None and value not in choices:
            raise ConfigError(
                f"{path}={value!r} is not one of {', '.join(choices)}; {nearest(value, choices)}"
            )
    for path, (low, closed, high) in RANGES.items():
        _check_range(path, read(config, path), low=low, closed=closed, high=high)
    _check_name(config.name)
    _check_betas(config.optimizer.betas)
    targets(config)
    _check_together(config)


def read(config: SweepConfig, path: str) -> Any:
    """The value at a dotted path; None below an absent section."""
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return value


def targets(config: SweepConfig) -> list[float]:
    """`target.value` as numbers, easiest first; raises ConfigError when it is not a number or several."""
    value = config.target.value
    values = value if isinstance(value, list) else [value]
    if value is None or not values:
        raise ConfigError("target.value is missing: give the value of target.metric to train to, e.g. 0.5")
    for item in values:
        if isinstance(item, bool) or not isinstance(item, (int, float)) or not math.isfinite(item):
            raise ConfigError(f"target.value={value!r} must be a finite number, or a list of them")
    if len(set(values)) != len(values):
        raise ConfigError(f"target.value={value!r} holds a value twice; keep each once")
    return sorted((float(item) for item in values), reverse=config.target.mode == "min")


def _check_range(path: str, value: Any, *, low: float, closed: bool, high: float) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value > high or value < low or (value == low and not closed):
        bound = f"{'>=' if closed else '>'} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
        raise ConfigError(f"{path}={value!r} must be {bound}")


def _check_name(name: str) -> None:
    if not name or name != name.strip() or any(c in name for c in "/\\\0\n") or name in (".", ".."):
        raise ConfigError(f"name={name!r} must be usable as a folder name: not empty, no slash, no newline")


def _check_betas(betas: list[float]) -> None:
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"optimizer.betas={betas!r} must be two numbers >= 0 and < 1")


def _check_together(config: SweepConfig) -> None:
    scaling, schedule, budget = config.learning_rate_scaling, config.schedule, config.budget
    if budget.max_examples is None and budget.max_optimizer_steps is None:
        raise ConfigError(
            "budget.max_examples and budget.max_optimizer_steps are both null: a run that never reaches the "
            "target would never end; set at least one"
        )
    if schedule.name != "constant" and schedule.horizon_examples is None:
        raise ConfigError(f"schedule.name={schedule.name!r} needs schedule.horizon_examples, which is null")
    if scaling.rule != "none" and scaling.base_batch_size is None:
        raise ConfigError(f"learning_rate_scaling.rule={scaling.rule!r} needs base_batch_size, which is null")
    if scaling.rule == "knee" and scaling.knee_batch_size is None:
        raise ConfigError("learning_rate_scaling.rule='knee' needs knee_batch_size, which is null")
    if config.optimizer.nesterov and config.optimizer.momentum == 0:
        raise ConfigError("optimizer.nesterov=true needs optimizer.momentum > 0")
    if config.ramp is not None:
        raise ConfigError(
            f"ramp={config.ramp!r}: a run keeps one effective batch size to its end; use ramp: null"
        )
    if config.cluster.backend == "ray" and config.cluster.address == "":
        raise ConfigError("cluster.address='' must be null (a local cluster), auto, or host:port")
    if "_target_" not in config.task:
        raise ConfigError("task._target_ is missing: name the task, e.g. gasweep.tasks.FashionMnist")
