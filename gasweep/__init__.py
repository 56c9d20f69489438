"""gasweep: choose a batch size with evidence.

Importing this package loads neither torch nor ray; public names resolve on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "GradientAccumulation": "gasweep.batching.accumulation",
    "run_accumulated_step": "gasweep.batching.accumulation",
    "run_training_steps": "gasweep.batching.accumulation",
    "GasweepError": "gasweep.errors",
    "GradientNoiseScale": "gasweep.training.gradient_noise",
    "MeasurementError": "gasweep.errors",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'gasweep' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return __all__
