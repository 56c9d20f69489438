"""What a seed has in common over all batch sizes: its data order and its first weights are the same in each.

Such an effect moves S(B) at every batch size alike, so B_crit hardly feels it, while S_min and E_min rest on
as many independent draws as there are seeds, not runs.

Shapes: n runs, k seeds, b batch sizes. Natural logs of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from scipy.stats import t as student_t

from gasweep.analysis.likelihood import Array
from gasweep.analysis.observation import Observation

SIGNIFICANCE = 0.2
"""A common effect is believed below this p-value. Chosen by simulation (docs/estimation.md)."""
MAX_SEEDS = 200
"""The mean over more seeds than these has no common effect worth the algebra."""


@dataclass(frozen=True, kw_only=True)
class SeedEffect:
    """sd: of the effect between seeds, in log steps. half_width: 95 %, of its mean over the seeds run."""

    sd: float
    half_width: float
    num_seeds: int
    p_value: float

    def __str__(self) -> str:
        return (
            f"seeds: a seed moves all batch sizes together by {100 * self.sd:.2g} % "
            f"(p = {self.p_value:.1g}); S_min and E_min rest on {self.num_seeds} such draws and carry it, "
            "B_crit does not feel it"
        )


def common_seed_effect(observations: Sequence[Observation]) -> SeedEffect | None:
    """The effect, or None where none is seen or seeds and batch sizes are not crossed.

    Two-way analysis of variance, batch sizes first: the seeds' mean square against the rest.
    Assumes: a seed of one name is one seed, at every batch size.
    """
    runs = [one for one in observations if _is_comparable(one)]
    names = sorted({str(one.seed) for one in runs})
    if not 2 <= len(names) <= MAX_SEEDS:
        return None
    batches = sorted({one.batch_size for one in runs})
    batch = np.array([batches.index(one.batch_size) for one in runs], dtype=np.intp)
    seeds = np.zeros((len(runs), len(names)))
    seeds[np.arange(len(runs)), [names.index(str(one.seed)) for one in runs]] = 1.0
    value = np.array([0.5 * sum(one.log_interval) for one in runs])
    count = np.bincount(batch)
    centred = seeds - _means(seeds, batch, count)[batch]
    value = value - _means(value[:, None], batch, count)[batch, 0]
    rank = int(np.linalg.matrix_rank(centred))
    freedom = len(runs) - len(batches) - rank
    if rank < 1 or freedom < 1:
        return None
    rest = value - centred @ np.linalg.lstsq(centred, value, rcond=None)[0]
    noise = float(rest @ rest) / freedom
    between = (float(value @ value) - float(rest @ rest)) / rank
    p_value = float(f_distribution.sf(between / noise, rank, freedom)) if noise > 0.0 else 1.0
    if p_value >= SIGNIFICANCE:
        return None
    variance = (between - noise) * rank / (len(runs) - len(batches))
    share = float((_means(seeds, batch, count).mean(axis=0) ** 2).sum())
    return SeedEffect(
        sd=math.sqrt(variance),
        half_width=float(student_t.ppf(0.975, rank)) * math.sqrt(variance * share),
        num_seeds=len(names),
        p_value=p_value,
    )


def _is_comparable(item: Observation) -> bool:
    return (
        item.seed is not None
        and item.is_reached
        and not item.is_upper_bound
        and math.isfinite(item.log_interval[0])
    )


def _means(values: Array, batch: NDArray[np.intp], count: NDArray[np.intp]) -> Array:
    """[b, columns] mean of `values` [n, columns] in each batch size."""
    total = np.zeros((len(count), values.shape[1]))
    np.add.at(total, batch, values)
    return np.asarray(total / count[:, None])
