"""Read a config: a plain YAML file plus dotlist overrides, checked against the schema.

OmegaConf is imported here and in `axes` only; everything else sees plain dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gasweep.config.keys import NAMED_AXES, check_known_keys
from gasweep.config.pipeline import refuse_pipeline
from gasweep.config.schema import SweepConfig
from gasweep.config.validate import validate
from gasweep.errors import ConfigError

_REPLACES = {
    "learning_rate": "learning_rate_multiplier",
    "learning_rate_multiplier": "learning_rate",
    "accumulation_steps": "effective_batch_size",
    "effective_batch_size": "accumulation_steps",
}


def load_sweep_config(path: str | Path, overrides: Sequence[str] = ()) -> SweepConfig:
    """The resolved config of `path` with `key=value` overrides applied, frozen as plain dataclasses.

    `grid.AXIS=null` leaves an axis out; an override of one of two axes that exclude each other (the two
    learning rates; G and B) replaces the file's other one.

    Raises ConfigError, in one line that names the field, its value, the constraint and the nearest valid
    key, for anything the schema does not allow. `1e-3` is a number, in files and in overrides.
    """
    return parse_sweep_config(_read_yaml(Path(path)), overrides, where=str(path))


def parse_sweep_config(
    data: dict[str, Any], overrides: Sequence[str] = (), *, where: str = "config"
) -> SweepConfig:
    """Like `load_sweep_config`, from data already read (a stored `sweep.yaml`, a test)."""
    changes = _parse_overrides(overrides)
    refuse_pipeline(data, changes)
    check_known_keys(data, where=where)
    check_known_keys(changes, where="override")
    where = f"{where} with its overrides" if overrides else where
    try:
        kept = _without_replaced_axes(data, changes)
        merged = OmegaConf.merge(OmegaConf.structured(SweepConfig), kept, changes)
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from error
    return to_config(cast(DictConfig, merged), where=where)


def to_config(node: DictConfig, *, where: str) -> SweepConfig:
    """Freeze an OmegaConf node: interpolations resolved, plain containers, every value checked."""
    try:
        plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
        typed = OmegaConf.merge(OmegaConf.structured(SweepConfig), plain)
        config = cast(SweepConfig, OmegaConf.to_object(typed))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from error
    config.grid = _flatten(config.grid)
    validate(config)
    return config


def config_to_dict(config: SweepConfig) -> dict[str, Any]:
    """JSON-ready form of a config; `parse_sweep_config` is its inverse."""
    return dataclasses.asdict(config)


def config_to_yaml(config: SweepConfig) -> str:
    """The text of `sweep.yaml`: the resolved config, which reproduces the sweep."""
    return OmegaConf.to_yaml(OmegaConf.create(config_to_dict(config)))


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"config file {str(path)!r} does not exist; give the path of a YAML file")
    try:
        node = OmegaConf.load(path)
    except YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}") from error
    except (OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {_one_line(error)}") from error
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{path} must hold a mapping of config keys at its top level, not a list")
    return cast(dict[str, Any], OmegaConf.to_container(node, resolve=False))


def _parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"override {text!r} must have the form key=value, e.g. strategy=single")
    try:
        node = OmegaConf.from_dotlist(list(overrides))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"override {' '.join(overrides)!r} cannot be read: {_one_line(error)}") from error
    return cast(dict[str, Any], OmegaConf.to_container(node, resolve=False))


def _without_replaced_axes(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """An override of an axis replaces the file's, however either is written, and of one of two axes that say
    the same thing the other."""
    given = changes.get("grid") or {}
    for name in NAMED_AXES:
        if isinstance(given.get(name), dict):
            raise ConfigError(f"grid.{name}={given[name]!r} must be a list of values, not a mapping")
    replaced = {old for new, old in _REPLACES.items() if given.get(new) is not None and old not in given}
    replaced |= _axis_names(given)
    grid = {key: value for key, value in (data.get("grid") or {}).items() if key not in replaced}
    return {**data, "grid": grid} if "grid" in data else data


def _axis_names(grid: dict[str, Any], prefix: str = "") -> set[str]:
    """The dotted names of a nested grid's axes, those left out by null included."""
    names: set[str] = set()
    for key, value in grid.items():
        name = f"{prefix}{key}"
        names |= _axis_names(value, f"{name}.") if isinstance(value, dict) else {name}
    return names


def _flatten(grid: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{task: {width: [..]}}` and `{"task.width": [..]}` are the same axis; null leaves an axis out."""
    flat: dict[str, Any] = {}
    for key, value in grid.items():
        if value is None:
            continue
        name = f"{prefix}{key}"
        new = _flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
        repeated = flat.keys() & new.keys()
        if repeated:
            raise ConfigError(f"grid.{min(repeated)} is given twice; keep one")
        flat |= new
    return flat


def _one_line(error: Exception) -> str:
    if isinstance(error, OmegaConfBaseException):
        key = error.full_key or error.key
        text = (error.msg or str(error)).splitlines()[0]
        return f"{key}: {text}" if key else text
    return " ".join(str(error).split())
