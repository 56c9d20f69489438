"""What a look at the model alone can warn of, before anything runs."""

from __future__ import annotations

import torch
from torch import nn

from gasweep.config.schema import SweepConfig
from gasweep.tasks.resolve import resolve_task
from gasweep.training.coupling import coupling_modules


def model_warnings(config: SweepConfig) -> list[str]:
    """One line per part of the model for which the layouts of one B are not the same run. Builds the model on
    the CPU; reads no data. Loads torch."""
    torch.manual_seed(0)
    model = resolve_task(config.task).build_model().train()
    warnings = [
        f"model: {name} normalises over the examples of a group: the layouts of one B are different runs"
        for name in coupling_modules(model)
    ]
    masks = [
        name or "model"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    ]
    if masks and config.determinism == "fast":
        warnings.append(
            f"model: {', '.join(masks)} drops out by rank and micro-step under determinism=fast: the layouts "
            f"of one B are equal in distribution only"
        )
    return warnings
