"""Is the loss of a group the sum of what its parts give, and if not, what is it?

A sum over items is additive over groups. A mean over the group is not, but it lies between the means of two
parts, at weights that follow from the counts; anything else compares examples of one group.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from torch import nn

from gasweep.data.index_stream import Indices
from gasweep.training.verify.subject import Answer, Subject

SIZES = (2, 3, 4)
_TRIES = 4
_WEIGHT_TOLERANCE = 1e-3

COUPLING = (
    "coupling: the loss of a group is not the sum of what its parts give alone; the model or the loss "
    "compares examples of one group (in-batch negatives, load balancing, a statistic over the group)"
)
MEAN = (
    "per-micro-batch mean: SummedLoss.total is the mean over the group, so every group counts alike whatever "
    "its size; return the sum, or MeanLoss"
)


def additivity(subject: Subject) -> list[str]:
    """What the loss is instead of a sum over items; empty when it is one. Batch norms are set aside."""
    norms = [module for module in subject.model.modules() if _is_norm(module)]
    for module in norms:
        module.eval()
    try:
        return _examine(subject)
    finally:
        for module in norms:
            module.train()


def adds_up(subject: Subject, first: Indices, second: Indices) -> bool:
    """Whether two groups' losses and gradients add up to their union's."""
    a, b, union = subject.ask(first), subject.ask(second), subject.ask(np.concatenate((first, second)))
    return _adds_up(subject, a, b, union)


def _examine(subject: Subject) -> list[str]:
    groups = subject.indices(*SIZES * _TRIES)
    for start in range(0, len(groups), len(SIZES)):
        triple = groups[start : start + len(SIZES)]
        parts = [subject.ask(group) for group in triple]
        unions = {
            (i, j): subject.ask(np.concatenate((triple[i], triple[j])))
            for i, j in itertools.combinations(range(len(triple)), 2)
        }
        if all(_adds_up(subject, parts[i], parts[j], union) for (i, j), union in unions.items()):
            return []
        if (weights := _weights(parts, unions)) is not None:
            return [_told(parts, weights)]
    return [COUPLING]


def _adds_up(subject: Subject, a: Answer, b: Answer, union: Answer) -> bool:
    scale = max(abs(a.summed), abs(b.summed), abs(union.summed))
    losses = abs(a.summed + b.summed - union.summed) <= subject.tolerance * scale
    return losses and not subject.differ(a.gradient + b.gradient, union.gradient)


def _weights(parts: list[Answer], unions: dict[tuple[int, int], Answer]) -> list[float] | None:
    """The weights, relative to the first part's, with which unions average parts; None if they do not."""
    ratios = {}
    for (i, j), union in unions.items():
        to_first, to_second = _mean(parts[i]) - _mean(union), _mean(union) - _mean(parts[j])
        ratios[i, j] = to_second / to_first if to_first else math.inf  # weight of i over weight of j
    if not all(0 < ratio < math.inf for ratio in ratios.values()):
        return None
    if not math.isclose(ratios[0, 1] * ratios[1, 2], ratios[0, 2], rel_tol=_WEIGHT_TOLERANCE):
        return None
    return [1.0, 1 / ratios[0, 1], 1 / ratios[0, 2]]


def _told(parts: list[Answer], weights: list[float]) -> str:
    counts = [answer.num_items for answer in parts]
    by_items = all(
        math.isclose(weight * counts[0], count, rel_tol=_WEIGHT_TOLERANCE)
        for weight, count in zip(weights, counts, strict=True)
    )
    if by_items and not parts[0].is_mean:
        return MEAN
    kind = "" if parts[0].is_mean else "SummedLoss.total is a per-micro-batch mean, and "
    return (
        f"count mismatch: {kind}groups counted as {', '.join(map(str, counts))} items weigh as "
        f"{' : '.join(f'{weight:.4g}' for weight in weights)} in the loss; num_items must count what "
        f"it averages"
    )


def _mean(answer: Answer) -> float:
    return answer.summed / answer.num_items if answer.is_mean and answer.num_items else answer.summed


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm))
