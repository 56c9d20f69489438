"""Adam's own metric: what its second moments make of a gradient's length.

Adam moves by −η P g with P = 1 / (√v̂ + ε), which is gradient descent in the coordinates P^(−1/2) θ, where the
gradient is P^(1/2) g. Its noise scale there is tr(PΣ) / GᵀPG. With curvature near P^(−1), as Adam assumes, it
takes the part of the plain one in the best step's dependence on the batch size.

P is that of *before* the step: the new v holds this step's own gradients and would weigh them by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gasweep.training.gradient_noise_hooks import local


def adam_preconditioner(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor]
) -> Callable[[int], Tensor] | None:
    """P of parameter `index`, on this rank's shard of it; None before the first update.

    Covers torch's Adam, AdamW, NAdam and RAdam: anything that keeps `exp_avg_sq`, `step` and has `betas` and
    `eps`. The first moment, weight decay and the learning rate are no part of P.

    Source: Kingma & Ba 2015, algorithm 1, for P; McCandlish et al. 2018, eq. 2.7, with H = P^(−1).
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    states: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for parameter in parameters:
        state, group = optimizer.state.get(parameter, {}), groups.get(id(parameter))
        if group is None or "betas" not in group or "exp_avg_sq" not in state:
            return None
        states.append((state, group))

    def preconditioner(index: int) -> Tensor:
        state, group = states[index]
        correction = 1.0 - group["betas"][1] ** float(state["step"])
        second = local(state.get("max_exp_avg_sq", state["exp_avg_sq"]))
        wide = second.to(torch.promote_types(torch.float32, second.dtype))
        return wide.div(correction).sqrt_().add_(group["eps"]).reciprocal_()

    return preconditioner
