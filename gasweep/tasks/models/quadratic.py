"""The noisy quadratic as a module: one parameter vector, one unit of noise per example and coordinate."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Quadratic(nn.Module):
    """noise [n, d] -> losses [n]; n examples, d coordinates.

    loss_i = Σ_j ½·h_j·θ_j²·(1 + κ·ξ_ij) + s_j·ξ_ij·θ_j, so that the gradient of example i along j is
    h_j·θ_j·(1 + κ·ξ_ij) + s_j·ξ_ij: mean h_j·θ_j, variance (κ·h_j·θ_j)² + s_j² when one of κ, s is zero.
    The expected loss is ½Σh_j·θ_j².
    """

    curvatures: Tensor
    noise_deviations: Tensor

    def __init__(
        self,
        *,
        initial: Tensor,
        curvatures: Tensor,
        noise_deviations: Tensor,
        relative_noise_deviation: float,
    ) -> None:
        super().__init__()
        self.theta = nn.Parameter(initial)
        self.register_buffer("curvatures", curvatures)
        self.register_buffer("noise_deviations", noise_deviations)
        self.relative_noise_deviation = relative_noise_deviation

    def forward(self, noise: Tensor) -> Tensor:
        noise = noise.to(self.theta.dtype)
        energies = 0.5 * self.curvatures * self.theta**2
        per_unit_noise = self.relative_noise_deviation * energies + self.noise_deviations * self.theta
        losses: Tensor = energies.sum() + torch.mv(noise, per_unit_noise)
        return losses
