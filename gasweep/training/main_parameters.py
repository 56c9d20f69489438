"""fp32 main copies of low-precision parameters, and fp32 gradients kept apart from the model's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LOW_PRECISION = (torch.bfloat16, torch.float16)


class MainParameters:
    """What the optimizer updates in place of the model's parameters.

    A bf16 or fp16 parameter has an fp32 copy, which the optimizer steps and `copy_back` rounds into the
    model; any other parameter is its own main parameter (the same memory under another tensor, so that its
    gradient is not the model's).

    Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1: an fp32 master copy of weights.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._model = parameters
        self.tensors = [p.detach().float() if p.dtype in LOW_PRECISION else p.detach() for p in parameters]
        self._low = [i for i, p in enumerate(parameters) if p.dtype in LOW_PRECISION]

    def take_gradients(self) -> list[Tensor | None]:
        """The model's gradients in their main dtype, which the model then no longer holds."""
        taken = []
        for parameter, main in zip(self._model, self.tensors, strict=True):
            gradient = parameter.grad
            taken.append(None if gradient is None else gradient.to(main.dtype))
            parameter.grad = None
        return taken

    def add_gradients(self, gradients: list[Tensor | None]) -> None:
        """Add to the main gradients; the first of a step becomes them."""
        for main, gradient in zip(self.tensors, gradients, strict=True):
            if gradient is None:
                continue
            if main.grad is None:
                # A copy: the taken one may be a view of a buffer that the next backward overwrites.
                main.grad = gradient.clone()
            else:
                main.grad += gradient

    def copy_back(self) -> None:
        """Round the main parameters into the low-precision model."""
        if self._low:
            with torch.no_grad():
                torch._foreach_copy_(
                    [self._model[i] for i in self._low], [self.tensors[i] for i in self._low]
                )


def has_low_precision(module: nn.Module) -> bool:
    return any(p.dtype in LOW_PRECISION for p in module.parameters() if p.requires_grad)
