"""The most memory a run held: of the device where there is one, else of the process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Peak since construction, in bytes.

    On a GPU: memory that torch allocated. On a CPU: the resident set of the whole process, interpreter and
    libraries included; None where the system cannot reset its high-water mark (other than Linux).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_reset = False
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with contextlib.suppress(OSError):
                _RESET.write_text("5")
                self._is_reset = True

    def read(self) -> int | None:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if not self._is_reset:
            return None
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
