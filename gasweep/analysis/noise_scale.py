"""One optimizer step's gradient noise from squared norms: unbiased |G|² and tr Σ.

    g_i   mean gradient of group i over its n_i examples; m groups, n = Σ n_i
    w_i   weight of group i in the step's gradient ḡ = Σ w_i g_i, Σ w_i = 1; n_i / n unless told otherwise
    G, Σ  mean and covariance of one example's gradient over the population that examples are drawn from

The sampling unit is the example: Var(g_i) = Σ / n_i. Both estimates are unbiased and so may come out on the
wrong side: |G|² from few samples is often negative and is kept so, since clamping it biases every average
over steps. tr Σ from groups that make up ḡ cannot be negative, so a negative one is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gasweep.analysis.noise_scale_checks import require_finite, require_whole
from gasweep.errors import MeasurementError

_ROUNDING = 1e-5  # of Σ w_i |g_i|²: what fp32 norms leave when all groups agree
_LEAST_SHARE = 1e-9  # of Σ w_i / n_i: what must be left of it once the heaviest group is taken out

TOO_FEW_GROUPS = "fewer than 2 groups with examples and weight"
NOT_FINITE = "not finite"
STRADDLES_EPOCH = "straddles an epoch"
DUPLICATES = "holds one example twice"


@dataclass(frozen=True, kw_only=True)
class NoiseMeasurement:
    """Unbiased estimates from one optimizer step, signed.

    grad_sq_norm: |G|², in gradient units squared.
    grad_noise_trace: tr Σ per example, in gradient units squared.
    num_groups, num_examples: m and n, empty groups not counted.
    optimizer_step, contributions, loss: where in training, when known; contributions in examples.

    Raises MeasurementError for an estimate that is not finite (such a step is a `NotMeasured`), and for
    counts below 1. A loss that is not finite is allowed, and left out of means: training may diverge.
    """

    grad_sq_norm: float
    grad_noise_trace: float
    num_groups: int
    num_examples: int
    optimizer_step: int = 0
    contributions: int = 0
    loss: float | None = None

    def __post_init__(self) -> None:
        require_finite("grad_sq_norm", self.grad_sq_norm)
        require_finite("grad_noise_trace", self.grad_noise_trace)
        require_whole("num_groups", self.num_groups, at_least=1)
        require_whole("num_examples", self.num_examples, at_least=1)


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """An optimizer step that says nothing about the noise, and why; counted, never guessed."""

    reason: str
    optimizer_step: int = 0


def measure_groups(
    sq_norms: Sequence[float],
    *,
    counts: Sequence[int],
    mean_sq_norm: float,
    weights: Sequence[float] | None = None,
    dataset_size: int | None = None,
) -> NoiseMeasurement | NotMeasured:
    """|G|² and tr Σ from every group's squared norm and that of the step's gradient.

        tr Σ = (Σ w_i |g_i|² − |ḡ|²) / Σ w_i (1 − w_i) / n_i      |G|² = |ḡ|² − tr Σ · Σ w_i² / n_i

    With w_i = n_i / n these are Σ n_i |g_i − ḡ|² / (m − 1) and |ḡ|² − tr Σ / n.

    sq_norms: |g_i|², shape [m], each group's *own mean* gradient: before accumulation, sync and clipping,
        with any loss scale undone.
    counts: n_i, shape [m]; groups with 0 examples are left out.
    mean_sq_norm: |ḡ|², of the very gradient those groups average to.
    weights: relative w_i, shape [m], when the step does not weigh groups by their examples (a mean of means).
    dataset_size: D, when the n examples are drawn *without replacement* from D: |G|² is then short of that
        of the data set by tr Σ / D, which is added back. None: independent draws.

    Returns NotMeasured for fewer than two groups with examples and weight, or a non-finite norm. Raises
    MeasurementError for a negative tr Σ, which no groups averaging to ḡ can give, for negative norms, for
    counts that are no whole numbers, and for inputs that do not fit together.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1, from two batch sizes to m groups.
    Assumes: independent examples within the step; parameters fixed over it.
    """
    groups = _non_empty(sq_norms, counts, weights)
    if mean_sq_norm < 0.0 or any(q < 0.0 for q, _, _ in groups):
        raise MeasurementError(
            f"sq_norms={list(sq_norms)} and mean_sq_norm={mean_sq_norm!r} must be >= 0: they are squares"
        )
    return measure_sums(
        WeightedSums(
            num_groups=len(groups),
            num_examples=sum(n for _, n, _ in groups),
            weight=math.fsum(w for _, _, w in groups),
            weight_per_example=math.fsum(w / n for _, n, w in groups),
            sq_weight_per_example=math.fsum(w * w / n for _, n, w in groups),
            sq_norm=math.fsum(w * q for q, _, w in groups),
        ),
        mean_sq_norm=mean_sq_norm,
        dataset_size=dataset_size,
    )


@dataclass(frozen=True, kw_only=True)
class WeightedSums:
    """What `measure_groups` needs of the groups, as sums that ranks can add up; weights need no norming.

    num_groups, num_examples: m and n. weight: Σ w_i. weight_per_example: Σ w_i / n_i.
    sq_weight_per_example: Σ w_i² / n_i. sq_norm: Σ w_i |g_i|².
    """

    num_groups: int
    num_examples: int
    weight: float
    weight_per_example: float
    sq_weight_per_example: float
    sq_norm: float


def measure_sums(
    sums: WeightedSums, *, mean_sq_norm: float, dataset_size: int | None = None
) -> NoiseMeasurement | NotMeasured:
    """`measure_groups` from sums over its groups; returns and raises the same."""
    if sums.num_groups < 2 or sums.weight <= 0.0:
        return NotMeasured(reason=TOO_FEW_GROUPS)
    if not math.isfinite(sums.sq_norm) or not math.isfinite(mean_sq_norm):
        return NotMeasured(reason=NOT_FINITE)
    variance_of_mean = sums.sq_weight_per_example / sums.weight**2
    variance_of_one = sums.weight_per_example / sums.weight
    if variance_of_one - variance_of_mean <= _LEAST_SHARE * variance_of_one:
        return NotMeasured(reason=TOO_FEW_GROUPS)  # one group holds all the weight
    spread = sums.sq_norm / sums.weight - mean_sq_norm
    trace = spread / (variance_of_one - variance_of_mean)
    if spread < -_ROUNDING * abs(mean_sq_norm):
        raise negative_trace_error(trace)
    return finish_measurement(
        trace=trace,
        grad_sq_norm=mean_sq_norm - trace * variance_of_mean,
        num_groups=sums.num_groups,
        num_examples=sums.num_examples,
        dataset_size=dataset_size,
    )


def finish_measurement(
    *, trace: float, grad_sq_norm: float, num_groups: int, num_examples: int, dataset_size: int | None
) -> NoiseMeasurement | NotMeasured:
    """Add what sampling without replacement from `dataset_size` examples took from |G|².

    Source: Cochran, Sampling Techniques (3rd ed.), theorem 2.2: the variance of a mean carries a factor
    1 − n/D when Σ has the divisor D − 1, so |ḡ|² − tr Σ / n falls short by tr Σ / D.
    """
    if dataset_size is not None:
        require_whole("dataset_size", dataset_size, at_least=1)
    if dataset_size is not None and num_examples > dataset_size:
        raise MeasurementError(
            f"dataset_size={dataset_size} is smaller than the step's {num_examples} examples, so some were "
            "drawn twice; leave such steps out, or pass dataset_size=None for independent draws"
        )
    if not math.isfinite(grad_sq_norm) or not math.isfinite(trace):
        return NotMeasured(reason=NOT_FINITE)
    return NoiseMeasurement(
        grad_sq_norm=grad_sq_norm + (trace / dataset_size if dataset_size else 0.0),
        grad_noise_trace=trace,
        num_groups=num_groups,
        num_examples=num_examples,
    )


def measure_two_batches(
    *, small_sq_norm: float, small_batch_size: float, big_sq_norm: float, big_batch_size: float
) -> NoiseMeasurement | NotMeasured:
    """|G|² and tr Σ from a small and a big batch's squared gradient norms, as other tools log them.

        small_sq_norm = |G|² + tr Σ / small_batch_size      big_sq_norm = |G|² + tr Σ / big_batch_size

    small_sq_norm: the mean over the small batches' |g|²; with batches of unequal sizes n_i pass
        small_batch_size = 1 / mean(1 / n_i).

    Neither result is checked for its sign here: the batches need not contain each other, so a single step may
    give anything. Returns NotMeasured when both sizes are equal, or a norm is not finite. Raises
    MeasurementError for sizes that are not finite or out of order, and for negative squares.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), equation A.2.
    """
    require_finite("small_batch_size", small_batch_size)
    require_finite("big_batch_size", big_batch_size)
    if small_batch_size <= 0 or big_batch_size < small_batch_size:
        raise MeasurementError(
            f"small_batch_size={small_batch_size} must be > 0 and at most big_batch_size={big_batch_size}"
        )
    if small_sq_norm < 0.0 or big_sq_norm < 0.0:
        raise MeasurementError(
            f"small_sq_norm={small_sq_norm!r} and big_sq_norm={big_sq_norm!r} must be >= 0: they are squares"
        )
    if not math.isfinite(small_sq_norm) or not math.isfinite(big_sq_norm):
        return NotMeasured(reason=NOT_FINITE)
    if small_batch_size == big_batch_size:
        return NotMeasured(reason=TOO_FEW_GROUPS)
    trace = (small_sq_norm - big_sq_norm) / (1.0 / small_batch_size - 1.0 / big_batch_size)
    grad_sq_norm = (big_batch_size * big_sq_norm - small_batch_size * small_sq_norm) / (
        big_batch_size - small_batch_size
    )
    return finish_measurement(
        trace=trace,
        grad_sq_norm=grad_sq_norm,
        num_groups=2,
        num_examples=max(round(big_batch_size), 1),
        dataset_size=None,
    )


def negative_trace_error(trace: float) -> MeasurementError:
    return MeasurementError(
        f"grad_noise_trace={trace:.6g} must be >= 0: the step's gradient is longer than its groups' can "
        "average to; give norms of mean gradients (not sums), unscaled, before clipping and sync, of the "
        "groups that make up this very step"
    )


def _non_empty(
    sq_norms: Sequence[float], counts: Sequence[int], weights: Sequence[float] | None
) -> list[tuple[float, int, float]]:
    """(|g_i|², n_i, weight) of the groups that hold examples."""
    shares = counts if weights is None else weights
    if not len(sq_norms) == len(counts) == len(shares):
        raise MeasurementError(
            f"sq_norms, counts and weights must have one entry per group, not {len(sq_norms)}, {len(counts)} "
            f"and {len(shares)}"
        )
    if any(n < 0 for n in counts) or any(w < 0 for w in shares):
        raise MeasurementError(f"counts={list(counts)} and weights={list(shares)} must be >= 0")
    for count, share in zip(counts, shares, strict=True):
        require_whole("counts", count, at_least=0)
        require_finite("weights", share)
    return [
        (float(q), int(n), float(w))
        for q, n, w in zip(sq_norms, counts, shares, strict=True)
        if n > 0 and w > 0
    ]
