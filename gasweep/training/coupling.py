"""Modules that make one example's gradient depend on the others in its group."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_BATCH_WORDS = ("batchnorm", "batchrenorm", "batch_norm", "ghostnorm")


def coupling_modules(model: nn.Module) -> list[str]:
    """The modules of `model` that normalise over the group, as "name (Class)"; empty when there is none.

    Such a model sees the micro-batch size: groups of 2 and of 4 give different gradients, and no accumulation
    can make them equal. GroupNorm, LayerNorm and RMSNorm normalise within an example and are fine, and so is
    a batch norm that always uses its running statistics (in eval mode).

    Assumes: a custom layer couples examples only if it derives from a torch batch norm or says so in its
        class name; what else couples (a contrastive loss, a router's load balancing) only comparing gradients
        can tell.
    """
    return [
        f"{name or 'model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if _couples(module)
    ]


def _couples(module: nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, _InstanceNorm):
        return module.track_running_stats
    if isinstance(module, _BatchNorm):
        return True
    return any(word in type(module).__name__.lower() for word in _BATCH_WORDS)
