"""What bitwise mode refuses, and why: a promise that cannot be kept is not made."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from gasweep.config.schema import StrategyOptions
from gasweep.errors import RefusedError
from gasweep.training.coupling import coupling_modules


def refuse_coupling(module: nn.Module) -> None:
    """Raises RefusedError naming the modules that couple the examples of a group.

    Under BatchNorm an example's gradient depends on its neighbours: x = 0 among 0, 2, 4, 6 normalises to
    -1.34, among 0, 2 to -1, so no two (b, N, G) of one B train the same function.
    """
    found = coupling_modules(module)
    if found:
        raise RefusedError(
            f"determinism=bitwise: {', '.join(found)} computes statistics over the examples of a group, "
            f"which differ between layouts; use GroupNorm or LayerNorm, or determinism=fast"
        )


def refuse_parameters(parameters: Iterable[tuple[str, torch.Tensor]], module: nn.Module) -> None:
    """Raises RefusedError for parameters whose gradients have no fixed-point sum here."""
    for name, child in module.named_modules():
        if getattr(child, "sparse", False) and isinstance(child, (nn.Embedding, nn.EmbeddingBag)):
            raise RefusedError(
                f"determinism=bitwise: {name or '(root)'} asks for sparse gradients, which are not added in "
                f"fixed point; set sparse=False"
            )
    for name, parameter in parameters:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise RefusedError(
                f"determinism=bitwise: {name} is {parameter.dtype}; gradients are added up for float32 and "
                f"float64 parameters only"
            )


def refuse_options(options: StrategyOptions) -> None:
    """Raises RefusedError for options that bitwise mode cannot follow."""
    if options.sync_every_micro_step:
        raise RefusedError(
            "determinism=bitwise: strategy_options.sync_every_micro_step=true would add float gradients in "
            "the order of the micro-steps; integer sums are exchanged once per optimizer step, so use false"
        )


class BufferWatch:
    """Notices a forward that changes the module's buffers: each layout would change them differently."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen = self._versions()

    def refuse_changes(self) -> None:
        """Raises RefusedError naming the buffers that changed since the watch began."""
        now = self._versions()
        if now == self._seen:
            return
        changed = sorted(
            name for name in now.keys() | self._seen.keys() if now.get(name) != self._seen.get(name)
        )
        raise RefusedError(
            f"determinism=bitwise: the forward changes the buffer {', '.join(changed)}, so the model depends "
            f"on how many groups ran before; keep such state out of the forward, or use determinism=fast"
        )

    def _versions(self) -> dict[str, tuple[int, int]]:
        return {name: (id(buffer), buffer._version) for name, buffer in self._module.named_buffers()}
