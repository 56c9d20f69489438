"""One process: nothing to agree on."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from torch import nn

from gasweep.training.strategies.replicated import ReplicatedStrategy


class SingleStrategy(ReplicatedStrategy):
    """The module itself. Also what every other strategy becomes on one rank."""

    name = "single"

    def prepare(self, module: nn.Module, *, units: list[nn.Module] | None) -> nn.Module:
        self.module = module
        return module

    def no_sync(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()
