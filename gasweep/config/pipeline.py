"""Pipeline parallelism: why a config that asks for it beside accumulation is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gasweep.errors import RefusedError

_STRATEGIES = ("pipeline", "pipeline_parallel", "pp", "gpipe", "1f1b")
_KEYS = (
    "pipeline",
    "pipeline_parallel",
    "pipeline_parallel_size",
    "pipeline_parallel_degree",
    "pipeline_stages",
    "num_pipeline_stages",
    "pp",
    "pp_size",
)
_PLACES = ("", "strategy_options", "grid")

EXPLANATION = (
    "a pipeline schedule's micro-batches are the accumulation: GPipe and 1F1B run all G of an optimizer step "
    "through the stages and add their gradients up, so accumulation_steps on top of it would accumulate twice"
)


def refuse_pipeline(*layers: Mapping[str, Any]) -> None:
    """Raises RefusedError for a config that asks for a pipeline; layers: as read from YAML, then overrides.

    With accumulation beside it the two are the same thing asked for twice, and the message says so; alone it
    is something gasweep does not run, whose numbers it can still plan: G is the schedule's micro-batches.
    """
    data = _merged(layers)
    asked = next(_asked(data), None)
    if asked is None:
        return
    if _accumulates(data):
        raise RefusedError(f"{asked} cannot be combined with accumulation_steps: {EXPLANATION}; remove one")
    raise RefusedError(
        f"{asked} is not run by gasweep; sweep over data-parallel layouts (single, ddp or fsdp), and "
        f"read accumulation_steps as your schedule's micro-batches: {EXPLANATION}"
    )


def _merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if both else value
    return merged


def _asked(data: Mapping[str, Any]) -> Iterator[str]:
    if str(data.get("strategy", "")).lower() in _STRATEGIES:
        yield f"strategy={data['strategy']!r}"
    for place in _PLACES:
        section = data.get(place, {}) if place else data
        for key in _KEYS if isinstance(section, Mapping) else ():
            if key in section and section[key] not in (None, False, 0, 1):
                yield f"{place}.{key}={section[key]!r}" if place else f"{key}={section[key]!r}"


def _accumulates(data: Mapping[str, Any]) -> bool:
    """Whether the grid can hold a layout of more than one micro-batch per rank."""
    grid = data.get("grid", {})
    if not isinstance(grid, Mapping):
        return False
    steps = grid.get("accumulation_steps", 1)
    values = steps if isinstance(steps, (list, tuple)) else [steps]
    return "effective_batch_size" in grid or any(value != 1 for value in values)
