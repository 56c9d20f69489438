"""What one run is: plain data that a worker can rebuild from JSON."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from gasweep.config.schema import SweepConfig

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One factorisation (b, N, G) of an effective batch."""

    micro_batch_size: int
    world_size: int
    accumulation_steps: int

    def __str__(self) -> str:
        return f"{self.micro_batch_size}x{self.world_size}x{self.accumulation_steps}"


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A convergence run or a throughput probe, complete: no default is looked up elsewhere.

    config: the resolved config of this run, extra grid axes already applied and `grid` empty.
    layout: how the run is executed. For a convergence run of a factorized sweep it is one of several
        equivalent ones and no part of its identity.
    learning_rate: the absolute peak rate at this effective batch size.
    axes: values of the extra grid axes (dotted path -> value), for tables and W&B.
    """

    run_id: str
    kind: Literal["convergence", "probe"]
    effective_batch_size: int
    layout: Layout
    learning_rate: float
    seed: int
    config: SweepConfig
    axes: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunSpec:
        return build_dataclass(cls, data)


def build_dataclass(cls: type[T], data: dict[str, Any]) -> T:
    """Rebuild a (nested) dataclass from `dataclasses.asdict` output or its JSON."""
    hints = typing.get_type_hints(cls)
    return cls(**{name: _build(hints[name], value) for name, value in data.items()})


def _build(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType) and value is not None:
        hint = next(arm for arm in hint.__args__ if arm is not type(None))
    if isinstance(value, dict) and dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build_dataclass(hint, value)
    return value
