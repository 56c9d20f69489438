"""What a wrapped model tells of how its ranks sync gradients: which ranks, and how precisely."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_EXACT_HOOKS = frozenset({"allreduce_hook"})


def is_dtensor(tensor: object) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def is_fsdp2(module: nn.Module) -> bool:
    # Not imported: without it nothing is sharded, and it is slow to load.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def process_group(model: nn.Module, parameters: list[tuple[str, Any]]) -> Any:
    """The ranks that share the final gradient, or None for one process."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return module.process_group
    for _, parameter in parameters:
        if is_dtensor(parameter):
            return parameter.device_mesh.get_group()
    return None


def sync_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that sync their own gradients."""
    return [m for m in model.modules() if isinstance(m, DistributedDataParallel) or is_fsdp2(m)]


def is_low_precision(module: Any) -> bool:
    """Whether `module` may send gradients in 16 bits: FSDP2 tells, a DDP hook is taken to unless known."""
    if isinstance(module, DistributedDataParallel):
        policy = getattr(module, "mixed_precision", None)
        hooks = [hook for hook, _ in getattr(module, "_comm_hooks", ())]
        if any(getattr(hook, "__name__", "") not in _EXACT_HOOKS for hook in hooks):
            return True
    else:
        policy = getattr(module._get_fsdp_state(), "_mp_policy", None)
    dtype = getattr(policy, "reduce_dtype", None) or getattr(policy, "param_dtype", None)
    return isinstance(dtype, torch.dtype) and dtype.itemsize < 4
