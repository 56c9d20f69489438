"""A multi-layer perceptron over pixels."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


class Mlp(nn.Module):
    """pixels [n, num_features] uint8 -> logits [n, num_classes] through `layers` ReLU layers.

    `layers=0` is softmax regression. Pixels are mapped to (x / scale - shift) in the parameters' own dtype,
    so that the same batch serves fp64, fp32 and half precision.
    """

    def __init__(
        self, *, num_features: int, num_classes: int, hidden: int, layers: int, scale: float, shift: float
    ) -> None:
        super().__init__()
        widths = [num_features, *[hidden] * layers, num_classes]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.scale, self.shift = scale, shift

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.to(next(self.parameters()).dtype) / self.scale - self.shift
        for linear in self.linears[:-1]:
            x = nn.functional.relu(linear(x))
        logits: Tensor = self.linears[-1](x)
        return logits
