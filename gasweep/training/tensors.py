"""The tensors that make up a trainer's state, under names that no strategy changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gasweep.training.build import Trainer

OptimizerLayout = dict[str, dict[str, dict[str, Any]]]
"""parameter name -> state key -> {"like_parameter": bool, "shape", "dtype"}."""


def state_tensors(trainer: Trainer, *, optimizer: OptimizerLayout | None = None) -> dict[str, Tensor]:
    """Parameters, buffers, fp32 main copies and optimizer state, by name; sharded ones as DTensors.

    optimizer: fill the optimizer's state with empty tensors of this layout first, to be read into.
    """
    if optimizer is not None:
        _allocate(trainer, optimizer)
    module = trainer.parts.module
    tensors = {f"model.{name}": tensor.detach() for name, tensor in module.named_parameters()}
    tensors |= {f"buffer.{name}": tensor for name, tensor in module.named_buffers()}
    for name, tensor in trainer.parts.parameters:
        if tensor.dtype != tensors[f"model.{name}"].dtype:
            tensors[f"main.{name}"] = tensor
        for key, value in trainer.optimizer.state.get(tensor, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def optimizer_layout(trainer: Trainer) -> OptimizerLayout:
    """What the optimizer keeps for each parameter, as JSON."""
    layout: OptimizerLayout = {}
    for name, tensor in trainer.parts.parameters:
        layout[name] = {
            key: {
                "like_parameter": value.shape == tensor.shape and key != "step",
                "shape": list(value.shape),
                "dtype": str(value.dtype).removeprefix("torch."),
            }
            for key, value in trainer.optimizer.state.get(tensor, {}).items()
            if isinstance(value, Tensor)
        }
    return layout


def _allocate(trainer: Trainer, layout: OptimizerLayout) -> None:
    for name, tensor in trainer.parts.parameters:
        state = trainer.optimizer.state[tensor]
        for key, entry in layout.get(name, {}).items():
            dtype = getattr(torch, entry["dtype"])
            if entry["like_parameter"]:
                state[key] = torch.zeros_like(tensor, dtype=dtype, requires_grad=False)
            else:
                state[key] = torch.zeros(entry["shape"], dtype=dtype)
