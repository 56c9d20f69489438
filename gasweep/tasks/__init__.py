"""What is trained: the Task contract and the shipped tasks. May import batching, config and analysis.

Importing this package, or a shipped task's module, loads no torch; names resolve on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

SHIPPED_TASKS = {
    "Digits": "gasweep.tasks.digits",
    "FashionMnist": "gasweep.tasks.fashion_mnist",
    "NoisyQuadratic": "gasweep.tasks.noisy_quadratic",
    "TextLm": "gasweep.tasks.text_lm",
}
_PUBLIC = {
    **SHIPPED_TASKS,
    "Data": "gasweep.tasks.base",
    "MeanLoss": "gasweep.tasks.base",
    "SummedLoss": "gasweep.tasks.base",
    "Task": "gasweep.tasks.base",
    "check_task": "gasweep.tasks.check",
    "resolve_task": "gasweep.tasks.resolve",
}

__all__ = ["SHIPPED_TASKS", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'gasweep.tasks' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return __all__
