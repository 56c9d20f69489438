"""Where a run ran."""

from __future__ import annotations

import functools
import platform
import socket
from pathlib import Path

import numpy
import torch

import gasweep
from gasweep.checkout import git_revision
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
        code_revision=_code_revision(),
    )


@functools.cache
def _code_revision() -> str | None:
    return git_revision(Path(gasweep.__file__).resolve().parent.parent)
