"""A process that trains one run after another: warmed once, left clean after each.

A run on a used process must equal one on a fresh process, so what a run may have changed in torch's global
state is put back, and a process that cannot be cleaned says so.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

LEFTOVER_BYTES = 1 << 20  # device memory that may stay allocated after a run: cuBLAS workspaces and the like


def warm_up(*, num_threads: int) -> None:
    """Set this process's threads and pay for the first DistributedDataParallel (it imports torch._dynamo)."""
    torch.set_num_threads(num_threads)
    store = HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        model(torch.zeros(1, 1)).sum().backward()
        del model
    finally:
        dist.destroy_process_group()


def open_store(host: str, *, world_size: int, timeout_s: float) -> tuple[Any, int]:
    """A store for one attempt's process group, served by this process on a port the system chose, and the
    port. A store per attempt: reusing names in an old one stalls the group."""
    store = TCPStore(
        host,
        0,
        world_size,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )
    return store, int(store.port)


@contextlib.contextmanager
def join_group(*, rank: int, world_size: int, store: Any, device: str, timeout_s: float) -> Iterator[None]:
    """The default process group of one attempt, on `device`'s backend, destroyed on the way out.

    store: the store itself (rank 0), or the (host, port) it is served at. timeout_s: how long a collective
    waits for a rank. All ranks leave together when all is well, since an early end looks like a lost peer
    to the others; a rank that failed leaves at once, so that its peers learn of it instead of waiting.
    """
    timeout = timedelta(seconds=timeout_s)
    if isinstance(store, tuple):
        host, port = store
        store = TCPStore(host, port, world_size, is_master=False, timeout=timeout)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def take_device(gpu: str) -> str:
    """Make the GPU with id `gpu` (of the node's, as the user's own mask may have renumbered them) this
    process's, before anything else touches CUDA; its torch name."""
    device = f"cuda:{local_index(gpu, os.environ.get('CUDA_VISIBLE_DEVICES'))}"
    torch.cuda.set_device(device)
    return device


def local_index(gpu: str, mask: str | None) -> int:
    """The index torch gives to GPU `gpu` (an index or a UUID) under `CUDA_VISIBLE_DEVICES=mask`.

    >>> local_index("3", None), local_index("3", "1,3"), local_index("GPU-b", "GPU-a,GPU-b")
    (3, 1, 1)
    """
    visible = [] if mask is None else [entry.strip() for entry in mask.split(",")]
    return visible.index(gpu) if gpu in visible else int(gpu)


@dataclass(frozen=True, kw_only=True)
class GlobalState:
    """What a run may change beyond itself."""

    default_dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    matmul_precision: str
    cudnn: tuple[bool, bool, bool]
    environment: dict[str, str]
    working_directory: str
    torch_random: torch.Tensor
    numpy_random: Any
    python_random: Any

    @classmethod
    def capture(cls) -> GlobalState:
        cudnn = torch.backends.cudnn
        return cls(
            default_dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
            cudnn=(cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
            environment=dict(os.environ),
            working_directory=os.getcwd(),
            torch_random=torch.get_rng_state(),
            numpy_random=np.random.get_state(),
            python_random=random.getstate(),
        )

    def restore(self) -> None:
        torch.set_default_dtype(self.default_dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.deterministic_warn_only)
        torch.set_float32_matmul_precision(self.matmul_precision)
        cudnn = torch.backends.cudnn
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = self.cudnn
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        os.chdir(self.working_directory)
        torch.set_rng_state(self.torch_random)
        np.random.set_state(self.numpy_random)
        random.setstate(self.python_random)


@contextlib.contextmanager
def clean_slate(*, num_threads: int) -> Iterator[None]:
    """Around one run: the same random and global state at its start whatever ran before, put back after."""
    state = GlobalState.capture()
    torch.set_num_threads(num_threads)  # per thread with OpenMP: set in the thread that trains
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    try:
        with torch.enable_grad():
            yield
    finally:
        state.restore()


def clean_up() -> bool:
    """Let go of what a run left behind; False when the process should not be used again.

    Call after the run's objects have gone out of scope.
    """
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        return False
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    return _clean_device()


def _clean_device() -> bool:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() <= LEFTOVER_BYTES
