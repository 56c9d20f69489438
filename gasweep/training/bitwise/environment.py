"""The settings under which equal inputs give equal bits, and what the bits further depend on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from gasweep.config.run_spec import RunSpec
from gasweep.errors import RefusedError

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")


def kernels_of(spec: RunSpec, *, device: torch.device) -> AbstractContextManager[None]:
    """Entered around a whole run: what its `determinism` asks of kernels and threads."""
    if spec.config.determinism != "bitwise":
        return contextlib.nullcontext()
    return deterministic_kernels(num_threads=spec.config.cluster.threads_per_worker, device=device)


@contextlib.contextmanager
def deterministic_kernels(*, num_threads: int, device: torch.device) -> Iterator[None]:
    """In the block: `num_threads` intra-op threads and only deterministic kernels; restored afterwards.

    A matrix product may be cut over threads, so its bits depend on their number. Without deterministic
    kernels, scatter-like operations add with atomics in no fixed order.

    Raises RefusedError when cuBLAS may use several work spaces and was already started, naming the variable.
    """
    if device.type == "cuda":
        _require_workspace()
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    benchmark = torch.backends.cudnn.benchmark
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = benchmark


def kernel_fingerprint(*, device: torch.device) -> dict[str, str]:
    """What the bits depend on besides the run's settings: kept in checkpoints, compared on resume."""
    fingerprint = {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": "cpu",
    }
    if device.type == "cuda":
        fingerprint["device"] = torch.cuda.get_device_name(device)
        fingerprint["cuda"] = str(torch.version.cuda)
        fingerprint["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        fingerprint["tf32"] = str(torch.backends.cuda.matmul.allow_tf32)
    return fingerprint


def refuse_other_kernels(saved: dict[str, str], *, device: torch.device) -> None:
    """Raises RefusedError when a checkpoint was made where the same operations may give other bits."""
    here = kernel_fingerprint(device=device)
    differing = sorted(key for key in saved.keys() | here.keys() if saved.get(key) != here.get(key))
    if differing:
        told = ", ".join(f"{key} {saved.get(key)} -> {here.get(key)}" for key in differing)
        raise RefusedError(
            f"determinism=bitwise: the checkpoint was made with other kernels ({told}): a resumed run would "
            f"not have the bits of an undisturbed one; resume on an equal machine, or start the run afresh"
        )


def _require_workspace() -> None:
    if os.environ.get(_WORKSPACE) in _WORKSPACES:
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RefusedError(
            f"determinism=bitwise: {_WORKSPACE}={os.environ.get(_WORKSPACE)!r} lets cuBLAS choose; "
            f"set {_WORKSPACE}=:4096:8 before the process starts"
        )
    os.environ[_WORKSPACE] = _WORKSPACES[0]
