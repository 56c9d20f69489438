"""The grid's axes: their names, their values, and how an extra axis changes the config."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gasweep.config.identity import PROBE_SECTIONS, affects_convergence
from gasweep.config.keys import NAMED_AXES, all_keys
from gasweep.config.load import to_config
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError, nearest

COUNT_AXES = ("micro_batch_size", "world_size", "accumulation_steps", "effective_batch_size")
RATE_AXES = ("learning_rate", "learning_rate_multiplier")
NOT_AXES = ("name", "grid", "sweep", "cluster", "tracking", "checkpoint", "learning_rate_scaling", "ramp")


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The grid, read: each axis a list of distinct values of the right type.

    Exactly one of `accumulation_steps` and `effective_batch_size` is None, and one of the two rates.
    """

    micro_batch_size: list[int]
    world_size: list[int]
    accumulation_steps: list[int] | None
    effective_batch_size: list[int] | None
    learning_rate: list[float] | None
    learning_rate_multiplier: list[float] | None
    seed: list[int]
    extra: dict[str, list[Any]] = field(default_factory=dict)


def read_axes(config: SweepConfig) -> Axes:
    """Check `config.grid` and give its axes; a scalar is an axis of one value.

    Absent axes default to world_size 1, accumulation_steps 1 and seed 0. Raises ConfigError for an unknown
    axis, an empty one, a repeated value, a value of the wrong type, or axes that say the same thing twice.
    """
    grid = {name: _as_list(name, value) for name, value in config.grid.items()}
    for name in grid:
        _check_axis_name(name)
    _check_combination(grid)
    counts = {name: _counts(name, grid[name]) if name in grid else None for name in COUNT_AXES}
    rates = {name: _rates(name, grid[name]) if name in grid else None for name in RATE_AXES}
    solved = counts["effective_batch_size"] is not None
    return Axes(
        micro_batch_size=counts["micro_batch_size"] or [],
        world_size=counts["world_size"] or [1],
        accumulation_steps=None if solved else counts["accumulation_steps"] or [1],
        effective_batch_size=counts["effective_batch_size"],
        learning_rate=rates["learning_rate"],
        learning_rate_multiplier=rates["learning_rate_multiplier"],
        seed=_whole("seed", grid.get("seed", [0]), lowest=0),
        extra={name: _distinct(name, values) for name, values in grid.items() if name not in NAMED_AXES},
    )


def apply_axes(config: SweepConfig, values: dict[str, Any]) -> SweepConfig:
    """The config of one grid point: `values` (dotted path -> value) applied and checked, `grid` emptied."""
    node = OmegaConf.structured(config)
    node.grid = {}
    for path, value in values.items():
        try:
            if path.startswith("task."):
                OmegaConf.update(node, path, value, force_add=True)
            else:
                OmegaConf.update(node, path, value)
        except OmegaConfBaseException as error:
            raise ConfigError(f"grid.{path}={value!r}: {str(error).splitlines()[0]}") from error
    return to_config(node, where="grid")


def _check_axis_name(name: str) -> None:
    if name in NAMED_AXES or name.startswith("task."):
        return
    section = name.split(".", 1)[0]
    if section in NOT_AXES:
        raise ConfigError(f"grid.{name} cannot be an axis: it does not change what a run computes")
    valid = [key for key in all_keys() if key.split(".", 1)[0] not in NOT_AXES]
    if name not in valid:
        close = nearest(name, [*NAMED_AXES, *valid])
        if not close.startswith("did you mean"):
            close = f"valid: {', '.join(NAMED_AXES)}, or a dotted config path such as task.hidden"
        raise ConfigError(f"unknown grid axis {name!r}; {close}")
    if section not in PROBE_SECTIONS and not affects_convergence(name, mode="full"):
        raise ConfigError(
            f"grid.{name} cannot be an axis: it is no part of what makes a run (see its identity in "
            "docs/design.md), so its values would fall together; set it for the whole sweep"
        )


def _check_combination(grid: dict[str, list[Any]]) -> None:
    if "micro_batch_size" not in grid:
        raise ConfigError(
            "grid.micro_batch_size is missing: give the micro-batch sizes to sweep, e.g. [8, 32]"
        )
    if "accumulation_steps" in grid and "effective_batch_size" in grid:
        raise ConfigError(
            "grid.accumulation_steps and grid.effective_batch_size are both given: G is solved from "
            "(B, b, N); keep one of them (grid.accumulation_steps=null leaves it out)"
        )
    if "learning_rate" in grid and "learning_rate_multiplier" in grid:
        raise ConfigError(
            "grid.learning_rate (absolute) and grid.learning_rate_multiplier are both given; keep one "
            "(grid.learning_rate_multiplier=null leaves it out)"
        )
    if "learning_rate" not in grid and "learning_rate_multiplier" not in grid:
        raise ConfigError("grid.learning_rate is missing: give the learning rates to sweep, e.g. [0.1, 0.3]")


def _as_list(name: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError(f"grid.{name}=[] is empty: give at least one value, or leave the axis out")
    return values


def _distinct(name: str, values: list[Any]) -> list[Any]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ConfigError(f"grid.{name}={values!r} holds {value!r} twice; keep each value once")
    return values


def _whole(name: str, values: list[Any], *, lowest: int) -> list[int]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ConfigError(f"grid.{name}={value!r} must be a whole number >= {lowest}")
    return _distinct(name, values)


def _counts(name: str, values: list[Any]) -> list[int]:
    return _whole(name, values, lowest=1)


def _rates(name: str, values: list[Any]) -> list[float]:
    for value in values:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"grid.{name}={value!r} must be a finite number > 0")
    return _distinct(name, [float(value) for value in values])
