"""Exact training of one run, torch only: strategies, loop, evaluation, checkpoints. No ray, no SQLite.

Importing this package loads no torch; public names resolve on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Interrupted": "gasweep.training.process",
    "ProcessContext": "gasweep.training.process",
    "coupling_modules": "gasweep.training.coupling",
    "train_run": "gasweep.training.run",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'gasweep.training' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return __all__
