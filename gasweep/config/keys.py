"""Which dotted keys the schema has; a key it does not have is refused with the nearest one."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError, nearest

FREE_FORM = ("task", "grid")
NAMED_AXES = (
    "micro_batch_size",
    "world_size",
    "accumulation_steps",
    "effective_batch_size",
    "learning_rate",
    "learning_rate_multiplier",
    "seed",
)


def check_known_keys(data: dict[str, Any], *, where: str) -> None:
    """Raise ConfigError naming the first key of `data` that the schema does not have."""
    _check(data, SweepConfig, prefix="", where=where)


@functools.cache
def all_keys() -> tuple[str, ...]:
    """Every dotted path of the schema, sections included."""
    return tuple(_walk(SweepConfig, ""))


def section_type(hint: Any) -> type | None:
    """The dataclass behind a field's type, through `X | None`; None for a leaf."""
    for arm in (hint, *typing.get_args(hint)):
        if isinstance(arm, type) and dataclasses.is_dataclass(arm):
            return arm
    return None


def _walk(cls: type, prefix: str) -> list[str]:
    keys: list[str] = []
    for name, hint in typing.get_type_hints(cls).items():
        keys.append(prefix + name)
        section = section_type(hint)
        if section is not None:
            keys += _walk(section, f"{prefix}{name}.")
    return keys


def _check(data: dict[str, Any], cls: type, *, prefix: str, where: str) -> None:
    hints = typing.get_type_hints(cls)
    for key, value in data.items():
        path = f"{prefix}{key}"
        if key not in hints:
            raise ConfigError(f"{where}: unknown key {path!r}; {_suggest(path, hints, prefix)}")
        section = section_type(hints[key])
        needs_mapping = path in FREE_FORM or (section is not None and value is not None)
        if needs_mapping and not isinstance(value, dict):
            raise ConfigError(f"{where}: {path}={value!r} must be a mapping of keys to values")
        if section is not None and value is not None:
            _check(value, section, prefix=f"{path}.", where=where)


def _suggest(path: str, siblings: dict[str, Any], prefix: str) -> str:
    if path in NAMED_AXES:
        return f"did you mean 'grid.{path}'?"
    close = nearest(path.removeprefix(prefix), siblings)
    if close.startswith("did you mean"):
        return close.replace("'", f"'{prefix}", 1)
    elsewhere = [key for key in all_keys() if key.rsplit(".", 1)[-1] == path.rsplit(".", 1)[-1]]
    return f"did you mean '{elsewhere[0]}'?" if elsewhere else close
