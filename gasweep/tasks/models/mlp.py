"""A multi-layer perceptron over pixels."""

from __future__ import annotations

from torch import Tensor, nn


class Mlp(nn.Module):
    """pixels [n, num_features] uint8 -> logits [n, num_classes], `layers` hidden ReLU layers of width `hidden`.

    `layers=0` is softmax regression. Pixels are mapped to (x / scale - shift) in the parameters' own dtype,
    so that the same batch serves fp64, fp32 and half precision.
    """

    def __init__(
        self, *, num_features: int, num_classes: int, hidden: int, layers: int, scale: float, shift: float
    ) -> None:
        super().__init__()
        widths = [num_features, *[hidden] * layers]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.head = nn.Linear(widths[-1], num_classes)
        self.scale, self.shift = scale, shift

    def forward(self, pixels: Tensor) -> Tensor:
        first = self.hidden[0] if len(self.hidden) else self.head
        x = pixels.to(first.weight.dtype) / self.scale - self.shift
        for layer in self.hidden:
            x = nn.functional.relu(layer(x))
        logits: Tensor = self.head(x)
        return logits
