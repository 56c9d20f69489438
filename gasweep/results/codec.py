"""Records to plain JSON data and back, without losing a bit and without a NaN."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gasweep.results.records import (
    CommunicationRecord,
    Environment,
    EvalRecord,
    RunResult,
    StepRecord,
    Throughput,
)
from gasweep.results.states import RunState

Record = StepRecord | EvalRecord | RunResult


def to_json_dict(record: Record) -> dict[str, Any]:
    """Plain data of `record` (floats keep all their bits through JSON's shortest repr).

    Raises AssertionError when a number in it is not finite.
    """
    check_finite(record)
    return dataclasses.asdict(record)


def result_from_dict(data: dict[str, Any]) -> RunResult:
    """The inverse of `to_json_dict`; raises TypeError, KeyError or ValueError on data of no RunResult."""
    throughput = data["throughput"]
    data = _known(RunResult, data)
    return RunResult(
        **{
            **data,
            "state": RunState(data["state"]),
            "evaluations": [EvalRecord(**record) for record in data["evaluations"]],
            "throughput": None if throughput is None else _throughput(throughput),
            "environment": Environment(**_known(Environment, data["environment"])),
        }
    )


def _throughput(data: dict[str, Any]) -> Throughput:
    sent = [CommunicationRecord(**_known(CommunicationRecord, one)) for one in data.get("communication", [])]
    return Throughput(**{**_known(Throughput, data), "communication": sent})


def _known(record: type, data: dict[str, Any]) -> dict[str, Any]:
    """Without what a later version may have added, so that its journals can still be read."""
    names = {field.name for field in dataclasses.fields(record)}
    return {key: value for key, value in data.items() if key in names}


def check_finite(record: Record) -> None:
    """Assert an invariant: what cannot be measured is None, never NaN or infinity."""
    path = _non_finite(record, type(record).__name__)
    if path is not None:
        raise AssertionError(f"{path} is not finite: a record holds finite numbers or None")


def _non_finite(value: Any, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if dataclasses.is_dataclass(value):
        items = [(f"{path}.{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    return next((bad for name, item in items if (bad := _non_finite(item, name)) is not None), None)
