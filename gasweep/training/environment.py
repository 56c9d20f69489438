"""Where a run ran."""

from __future__ import annotations

import functools
import platform
import socket
from pathlib import Path

import numpy
import torch

import gasweep
from gasweep.results.records import Environment


def current_environment(device: torch.device) -> Environment:
    return Environment(
        hostname=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        num_threads=torch.get_num_threads(),
        versions={
            "gasweep": gasweep.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        code_revision=code_revision(),
    )


@functools.cache
def code_revision() -> str | None:
    """The commit of the checkout that gasweep is imported from; None for an installed package."""
    git = Path(gasweep.__file__).resolve().parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text().strip()
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split()[0]
    except OSError:
        return None
    return None
