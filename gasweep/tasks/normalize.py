"""One way to write a `task:` section, so that a run's identity does not depend on how it was written."""

from __future__ import annotations

import inspect
import json
from typing import Any

from gasweep.tasks.resolve import check_arguments, import_task_class


def normalize_task(section: dict[str, Any]) -> dict[str, Any]:
    """A task section with its defaults written out and its values typed: equal tasks read equal."""
    task_class = import_task_class(section["_target_"])
    given = check_arguments(task_class, {k: v for k, v in section.items() if k != "_target_"})
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(task_class).parameters.items()
        if parameter.default is not parameter.empty and _is_plain(parameter.default)
    }
    return {"_target_": section["_target_"], **_plain({**defaults, **given})}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain
