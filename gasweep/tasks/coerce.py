"""Config values through the type a task declares: "1e-3" becomes a float, 2.0 is no whole number."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from gasweep.errors import ConfigError


def coerce(value: Any, hint: Any, *, field: str) -> Any:
    """`value` as `hint`: int, float, str, bool, None, unions, Literal, list, tuple and dict of these.

    A number written as text is read as a number where one is declared; a whole number is accepted for a
    float; nothing else is converted. Hints of other kinds accept any value.
    Raises ConfigError naming `field`, the value and what is wanted.
    """
    origin = get_origin(hint)
    if hint in _SCALARS:
        return _SCALARS[hint](value, field)
    if origin in (Union, types.UnionType):
        return _coerce_union(value, get_args(hint), hint, field)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in get_args(hint)):
            return value
        raise _wrong(field, value, describe(hint))
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        return _coerce_sequence(value, hint, field)
    if origin in (dict, Mapping) or hint is dict:
        return _coerce_mapping(value, hint, field)
    return value


def describe(hint: Any) -> str:
    """`hint` in the words of an error message."""
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    if hint in names:
        return names[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arm) for arm in arguments)
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        return "a list"
    if origin in (dict, Mapping) or hint is dict:
        return "a mapping"
    return "any value"


def _wrong(field: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{field}={value!r} must be {wanted}")


def _as_int(value: Any, field: str) -> int:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise _wrong(field, value, "a whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(field, value, "a whole number")
    return value


def _as_float(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _wrong(field, value, "a number")
    try:
        number = float(value)
    except ValueError:
        raise _wrong(field, value, "a number") from None
    if not math.isfinite(number):
        raise _wrong(field, value, "a finite number")
    return number


def _as_bool(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(field, value, "true or false")
    return value


def _as_str(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise _wrong(field, value, "text; put it in quotes")
    return value


def _as_none(value: Any, field: str) -> None:
    if value is not None:
        raise _wrong(field, value, "null")


_SCALARS: dict[Any, Any] = {
    int: _as_int,
    float: _as_float,
    bool: _as_bool,
    str: _as_str,
    type(None): _as_none,
}


def _coerce_union(value: Any, arms: tuple[Any, ...], hint: Any, field: str) -> Any:
    """The arm whose own type the value has, else the first that takes it."""
    if value is None and type(None) in arms:
        return None
    for arm in sorted(arms, key=lambda arm: arm is not type(value)):
        try:
            return coerce(value, arm, field=field)
        except ConfigError:
            continue
    raise _wrong(field, value, describe(hint))


def _coerce_sequence(value: Any, hint: Any, field: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _wrong(field, value, "a list")
    arguments = get_args(hint)
    kind = tuple if (get_origin(hint) or hint) is tuple else list
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise _wrong(field, value, f"a list of {len(arguments)} values")
        hints = list(arguments)
    else:
        hints = [arguments[0] if arguments else Any] * len(value)
    return kind(
        coerce(item, item_hint, field=f"{field}[{i}]")
        for i, (item, item_hint) in enumerate(zip(value, hints, strict=True))
    )


def _coerce_mapping(value: Any, hint: Any, field: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(field, value, "a mapping")
    arguments = get_args(hint)
    item_hint = arguments[1] if arguments else Any
    return {key: coerce(item, item_hint, field=f"{field}.{key}") for key, item in value.items()}
