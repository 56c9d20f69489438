"""One step's gradient noise when the loss is averaged over items (tokens) but sampled by the example.

    s_i   gradient of group i's *summed* loss, T_i its items, n_i its examples; T, n, m the step's totals
    ḡ     = Σ s_i / T, a ratio of two random sums: examples bring their own number of items
    r_i   = s_i − T_i ḡ, the residual whose spread, not that of s_i / T_i, drives ḡ's variance

Tokens of one example are correlated, so they are no independent sample: the noise scale here is in examples
whatever the loss averages over. When every group holds the same number of items per example this is
`measure_groups` exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gasweep.analysis.noise_scale import (
    NOT_FINITE,
    TOO_FEW_GROUPS,
    NoiseMeasurement,
    NotMeasured,
    finish_measurement,
    negative_trace_error,
)
from gasweep.analysis.noise_scale_checks import require_finite, require_whole
from gasweep.errors import MeasurementError

_ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class GroupSums:
    """Sums over the groups that were seen on one part of the coordinates.

    The parts of a step cover every coordinate once. With whole gradients there is one part, holding all m
    groups; where a rank can only see its own groups on the coordinates it owns (a sharded model), each rank
    is a part. All of them describe the same Σ and G, since groups are exchangeable.

    num_groups: groups with at least one example.
    group_sq_sum: Σ |s_i|² / n_i.
    cross_sum: Σ (T_i / n_i) s_i · ḡ.
    item_rate_sum: Σ T_i / n_i.
    item_sq_sum: Σ T_i² / n_i.
    mean_sq_norm: |ḡ|² on these coordinates.
    """

    num_groups: int
    group_sq_sum: float
    cross_sum: float
    item_rate_sum: float
    item_sq_sum: float
    mean_sq_norm: float


def measure_item_groups(
    parts: Sequence[GroupSums],
    *,
    num_groups: int,
    num_examples: int,
    num_items: float,
    dataset_size: int | None = None,
) -> NoiseMeasurement | NotMeasured:
    """|G|² and tr Σ, in examples, of a loss averaged over items.

        σ²   = Σ |r_i|² / n_i · (T/n) / Σ (T_i / n_i) (1 − T_i / T)
        tr Σ = σ² / (T/n)²
        |G|² = |ḡ|² − tr Σ / n + 2 c / (n (T/n)²),   c = E[T_e ρ_e · G], ρ_e = s_e − T_e G of one example

    The last term is the first-order bias of a ratio estimator; c comes from Σ (T_i / n_i) r_i · ḡ.

    num_groups, num_examples, num_items: m, n, T of the whole step; empty groups hold neither examples nor
        items. dataset_size: as in `measure_groups`.

    Returns NotMeasured when m < 2, when a part saw no group with items, or for non-finite sums. Raises
    MeasurementError for a negative tr Σ, and for counts that are not above 0.

    Source: Cochran, Sampling Techniques (3rd ed.), section 6.3 (ratio estimators), on norms.
    Assumes: an example's residual variance grows as its items do (independent tokens; as their square for
        wholly correlated ones). Either way tr Σ is off by a relative O(CV² / n), CV the spread of T_e:
        at CV 0.55, 5 % for n = 8 and 1 % for n = 32. |G|² drops terms of order 1/n².
    """
    if num_groups < 2 or any(part.item_rate_sum <= 0.0 for part in parts):
        return NotMeasured(reason=TOO_FEW_GROUPS)
    require_whole("num_examples", num_examples, at_least=1)
    require_finite("num_items", num_items)
    if num_items <= 0.0:
        raise MeasurementError(f"num_items={num_items!r} must be > 0 where groups hold items")
    if not all(_finite(part) for part in parts):
        return NotMeasured(reason=NOT_FINITE)
    if any(_degrees_of_freedom(part, num_items) <= _ROUNDING * part.item_rate_sum for part in parts):
        return NotMeasured(reason=TOO_FEW_GROUPS)  # one group holds all the items
    items_per_example = num_items / num_examples
    noise = math.fsum(_residual_variance(part, num_items) for part in parts) * items_per_example
    mean_sq_norm = math.fsum(part.mean_sq_norm for part in parts)
    trace = noise / items_per_example**2
    if trace < -_ROUNDING * mean_sq_norm * num_examples:
        raise negative_trace_error(trace)
    covariance = math.fsum(_ratio_covariance(part, num_groups) for part in parts)
    bias = 2.0 * covariance / (num_examples * items_per_example**2)
    return finish_measurement(
        trace=trace,
        grad_sq_norm=mean_sq_norm - trace / num_examples + bias,
        num_groups=num_groups,
        num_examples=num_examples,
        dataset_size=dataset_size,
    )


def _residual_variance(part: GroupSums, num_items: float) -> float:
    """E|s_e − T_e G|² / E[T_e] on the part's coordinates."""
    residual = part.group_sq_sum - 2.0 * part.cross_sum + part.item_sq_sum * part.mean_sq_norm
    return residual / _degrees_of_freedom(part, num_items)


def _degrees_of_freedom(part: GroupSums, num_items: float) -> float:
    """Σ (T_i / n_i) (1 − T_i / T): 0 when one group holds all items, which leaves no difference."""
    return part.item_rate_sum - part.item_sq_sum / num_items


def _ratio_covariance(part: GroupSums, num_groups: int) -> float:
    """c = E[T_e ρ_e · G] on the part's coordinates; the noise of ḡ itself cancels in the sum."""
    aligned = part.cross_sum - part.item_sq_sum * part.mean_sq_norm
    return aligned / (part.num_groups * (1.0 - 1.0 / num_groups))


def _finite(part: GroupSums) -> bool:
    return all(math.isfinite(x) for x in (part.group_sq_sum, part.cross_sum, part.mean_sq_norm))
