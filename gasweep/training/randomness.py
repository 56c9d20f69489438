"""Who draws which random numbers: every use is keyed by name, so no generator state needs saving."""

from __future__ import annotations

import random

import numpy as np
import torch

from gasweep.data.streams import derive_seed


def seed_everything(seed: int, *names: str | int, cuda: bool = False) -> None:
    """Put every global generator at the start of the stream (seed, *names).

    The task contract asks for torch's generator alone; Python's and NumPy's are set too, so that a task that
    uses them anyway gives the same run on a fresh and on a used worker.
    """
    value = derive_seed(seed, *names)
    seed_torch(value, cuda=cuda)
    random.seed(value)
    np.random.seed(value % 2**32)


def seed_micro_step(seed: int, *, optimizer_step: int, rank: int, micro_step: int, cuda: bool) -> None:
    """Put torch's generator at the start of one group's own stream.

    Masks then differ between ranks, micro-steps and optimizer steps, and a resumed run draws the same ones.
    They are keyed by where a group runs, so dropout is equal in distribution between factorisations, not in
    value; that is `determinism: bitwise`.
    """
    seed_torch(derive_seed(seed, "micro_step", optimizer_step, rank, micro_step), cuda=cuda)


def seed_torch(value: int, *, cuda: bool) -> None:
    """Seed the CPU's generator and, for a run on a GPU, the current one's.

    Not `torch.manual_seed`: where CUDA is not initialised that queues a call with a formatted stack for every
    device type, a millisecond and a little memory each time.
    """
    torch.default_generator.manual_seed(value)
    if cuda:
        torch.cuda.manual_seed(value)
