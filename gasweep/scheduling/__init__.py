"""Which run next, where, and the driver: study, scheduler, backends. May import training, never torch itself.

Importing this package loads neither torch nor ray; public names resolve on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "Observer": "gasweep.scheduling.observer",
    "SweepOutcome": "gasweep.scheduling.sweep",
    "run_sweep": "gasweep.scheduling.sweep",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'gasweep.scheduling' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return __all__
