"""What `precision` means: parameter dtype, autocast, loss scaling.

fp32, fp64: everything in that dtype. bf16, fp16: fp32 parameters and gradients, the forward under autocast
(matrix products in the low dtype); fp16 also scales the loss, so that small gradients do not vanish.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from gasweep.errors import ConfigError, nearest

_DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """One run's precision and its loss scaler."""

    def __init__(self, name: str, *, device: torch.device) -> None:
        if name not in _DTYPES:
            raise ConfigError(f"precision={name!r}: {nearest(name, _DTYPES)}")
        self.name = name
        self.compute_dtype = _DTYPES[name]
        self.parameter_dtype = torch.float64 if name == "fp64" else torch.float32
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16":
            self.scaler = torch.amp.GradScaler(device.type)
        self.device = device
        self._autocasts = name in ("bf16", "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Entered around every forward, training and evaluation alike."""
        if not self._autocasts:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss as it goes into backward."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def loss_scale(self) -> float:
        """The factor that `.grad` carries until the unscale; 1 but for fp16."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())
