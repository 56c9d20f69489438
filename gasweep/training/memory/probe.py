"""Try micro-batch sizes for real: whole optimizer steps, optimizer state included, in processes of their own.

A size is tried as it would run: its strategy, world size, precision and accumulation, two updates (the first
allocates the optimizer's state, the second holds it through a whole accumulation). Nothing of the caller's
model, random state or data position is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gasweep.config.plan import SweepPlan
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.errors import RunError, UserError
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.memory.search import SearchResult, largest_that_fits
from gasweep.training.peak_memory import PeakMemory
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

NUM_UPDATES = 2
SHARE_OF_AVAILABLE = 0.8  # of what the machine has free, left to one probe on a CPU


class DoesNotFit(RunError):
    """A size ran out of memory: an answer, not a fault."""


@dataclass(frozen=True, kw_only=True)
class MemoryProbe:
    """search: the sizes tried. peak_bytes: size -> most memory a rank held, for those that fitted.
    limit_bytes: what one rank was allowed (CPU), None on a GPU, whose own memory is the limit."""

    search: SearchResult
    peak_bytes: dict[int, int]
    limit_bytes: int | None


def probe_largest_micro_batch(
    plan: SweepPlan,
    *,
    world_size: int,
    accumulation_steps: int = 2,
    start: int = 1,
    limit: int = 65536,
    resolution: float = 0.0,
    device: str = "cpu",
    limit_bytes: int | None = None,
    timeout_s: float = 300.0,
) -> MemoryProbe:
    """The largest micro-batch of the plan's first run that fits, tried on `world_size` local ranks.

    All ranks must fit: the answer is their minimum. start, limit, resolution: see `largest_that_fits`.
    limit_bytes: per rank, on a CPU; default: 80 % of the
    memory now available, shared by the ranks. The limit is enforced by the kernel, so that a size too large
    fails in the probe and never takes memory from anything else.

    Raises UserError where the machine has too few devices, RunError when a size fails for another reason.
    """
    available = torch.cuda.device_count() if device == "cuda" else world_size
    if world_size > available:
        raise UserError(f"world_size={world_size} exceeds the {available} GPUs of this machine; use fewer")
    if device == "cpu" and limit_bytes is None:
        limit_bytes = int(available_bytes() * SHARE_OF_AVAILABLE) // world_size
    peaks: dict[int, int] = {}
    with LocalRanks(device=device, timeout_s=timeout_s) as ranks:

        def fits(size: int) -> bool:
            spec = _resized(plan.runs[0], size, world_size, accumulation_steps)
            try:
                found = ranks.run(world_size, run_updates, spec=spec.to_dict(), limit_bytes=limit_bytes)
            except DoesNotFit:
                return False
            known = [peak for peak in found if peak is not None]
            if known:
                peaks[size] = max(known)
            return True

        search = largest_that_fits(fits, start=start, limit=limit, resolution=resolution)
    return MemoryProbe(search=search, peak_bytes=peaks, limit_bytes=limit_bytes)


def run_updates(process: ProcessContext, *, spec: dict[str, Any], limit_bytes: int | None) -> int | None:
    """Two optimizer steps of `spec` on this rank; its peak memory in bytes.

    Raises DoesNotFit when the device, or `limit_bytes` of a CPU process, has no more memory.
    """
    try:
        with _address_space_limit(limit_bytes):
            memory = PeakMemory(torch.device(process.device))
            trainer = build_trainer(RunSpec.from_dict(spec), process=process)
            progress = RunProgress()
            stepper = Stepper(trainer, progress=progress, sink=lambda **_: None, flags=lambda: (False, False))
            for _ in range(NUM_UPDATES):
                stepper.attempt()
            stepper.read()
            assert progress.attempted == NUM_UPDATES
            peak = memory.read()
            # Pages that were reserved before the limit was set may have become resident under it.
            if limit_bytes is not None and peak is not None and peak > limit_bytes:
                raise MemoryError(f"{peak} bytes were resident, more than the limit of {limit_bytes}")
            return peak
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    raise DoesNotFit(f"rank {process.rank} ran out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or a CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "bad_alloc" in text


def local_devices() -> tuple[str, int]:
    """What ranks can run on here, "cuda" or "cpu", and how many at once."""
    if torch.cuda.is_available():
        return "cuda", torch.cuda.device_count()
    return "cpu", os.cpu_count() or 1


def available_bytes() -> int:
    """Memory this machine could give without swapping (Linux), under a container's limit if there is one."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return max(free, 0)


@contextlib.contextmanager
def _address_space_limit(limit_bytes: int | None) -> Iterator[None]:
    """Let this process grow to `limit_bytes` resident at most; what it has only reserved does not count."""
    if limit_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size, resident = (
        int(n) * resource.getpagesize() for n in Path("/proc/self/statm").read_text().split()[:2]
    )
    room = limit_bytes - resident
    if room <= 0:
        raise MemoryError(f"the process already holds {resident} bytes, more than the limit of {limit_bytes}")
    ceiling = size + room
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _resized(spec: RunSpec, micro_batch_size: int, world_size: int, accumulation_steps: int) -> RunSpec:
    layout = Layout(
        micro_batch_size=micro_batch_size, world_size=world_size, accumulation_steps=accumulation_steps
    )
    total = micro_batch_size * world_size * accumulation_steps
    return dataclasses.replace(spec, layout=layout, effective_batch_size=total)
