"""Randomness keyed by where an example stands, not by which rank or micro-step computes it.

Before each grain's forward torch's generators are seeded from (seed, optimizer step, grain index). A grain
is a forward of a fixed shape over fixed positions, so whatever draws from torch's generators (nn.Dropout,
F.dropout, the dropout of scaled_dot_product_attention, random augmentation inside the loss) draws the same
numbers in every layout; nothing need be intercepted. Randomness from anywhere else cannot be keyed so:
`gasweep verify` finds it.
"""

from __future__ import annotations

import torch

from gasweep.data.streams import derive_seed


def seed_grain(*, seed: int, optimizer_step: int, grain_index: int, device: torch.device) -> None:
    """Seed the CPU generator, and the device's, for one grain's forward and backward.

    optimizer_step: attempted steps before this one. A repeated step draws the same numbers again.
    """
    value = derive_seed(seed, "grain", optimizer_step, grain_index)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
