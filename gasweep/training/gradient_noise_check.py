"""Whether a step's final gradient is what its groups add up to.

Both are linear in the gradient, so a few coordinates tell a sum from a mean, a stale, clipped or still scaled
gradient, or a group that was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from gasweep.errors import MeasurementError
from gasweep.training.gradient_noise_recorded import Array, Sample

_RATIO = 2e-3
_SHAPE = 3e-2  # a 16-bit sync rounds every element, hardly their common factor
_ROUNDING = 2.0**-22  # of fp32, per addition
_ROUNDING_16_BIT = 2.0**-8  # of bf16, the coarsest
_SMALLEST_16_BIT = 2.0**-24  # fp16's spacing next to 0


def check_final(
    sample: Sample, *, names: Sequence[str], num_groups: int, low_precision: bool, rank_factor: float
) -> None:
    """Raises MeasurementError, naming the ratio and, where other parameters are right, the parameter.

    sample: `total` and `magnitude` are Σ h and Σ |h| over all groups of all ranks, as the final gradient's.
    low_precision: whether gradients were held or sent in 16 bits. An element is then off by a rounding of
        its *terms*, which is more than one of their sum where they cancel.
    rank_factor: as in `StepUnits`.
    """
    if not low_precision and _is_close(sample):  # the usual case, for a fraction of the time
        return
    low = low_precision or _is_16_bit(sample.final, rank_factor)
    rounding = (_ROUNDING_16_BIT if low else _ROUNDING) * (1.0 + math.sqrt(num_groups))
    parts = _by_parameter(sample)
    wrong = [name for name, part in parts.items() if _differs(part, rounding=rounding, low=low)]
    if not wrong and not _is_misshapen(sample, rounding=rounding, low=low):
        return
    told = [name for name, part in parts.items() if part.total.any() or part.final.any()]
    named = len(wrong) < len(told)
    ratio = _ratio(parts[wrong[0]] if wrong and named else sample)
    where = f" of {names[wrong[0]]}" if wrong and named else ""
    others = f", and {len(wrong) - 1} parameters more" if named and len(wrong) > 1 else ""
    raise MeasurementError(
        f"final gradient{where}={ratio:.4g} times what this step's {num_groups} groups add up to{others}, "
        "must be 1: measure after sync and unscale and before clipping, give the loss scale if .grad "
        "is not unscaled, start each step from zero gradients, and wrap the synced model"
    )


def _is_close(sample: Sample) -> bool:
    """Whether every single element is within what all of them are allowed, so that nothing can be wrong."""
    return bool((np.abs(sample.final - sample.total) <= _RATIO * np.abs(sample.total)).all())


def _by_parameter(sample: Sample) -> dict[int, Sample]:
    ends = np.cumsum(sample.sizes)[:-1]
    cut = [np.split(values, ends) for values in (sample.total, sample.magnitude, sample.final)]
    return {
        index: Sample(parameters=[index], sizes=[size], total=total, magnitude=magnitude, final=final)
        for index, size, total, magnitude, final in zip(sample.parameters, sample.sizes, *cut, strict=True)
    }


def _differs(part: Sample, *, rounding: float, low: bool) -> bool:
    """Whether one parameter's elements are further off than rounding puts them."""
    allowed = (_SHAPE if low else _RATIO) * _length(part.total) + rounding * _length(part.magnitude)
    if low:
        allowed += _SMALLEST_16_BIT * math.sqrt(len(part.final))
    return _length(part.final - part.total) > allowed


def _is_misshapen(sample: Sample, *, rounding: float, low: bool) -> bool:
    """Whether all elements together show another factor or another direction."""
    size = _length(sample.total)
    if size == 0.0:
        return _length(sample.final) > 0.0
    ratio = _ratio(sample)
    rest = _length(sample.final - ratio * sample.total) / size
    spread = rounding * _length(sample.magnitude) / size if low else 0.0
    return abs(ratio - 1.0) > (_SHAPE if low else _RATIO) + spread or rest > _SHAPE + spread


def _ratio(sample: Sample) -> float:
    size = float(sample.total @ sample.total)
    return float(sample.final @ sample.total) / size if size > 0.0 else math.inf


def _length(values: Array) -> float:
    return float(np.linalg.norm(values))


def _is_16_bit(final: Array, rank_factor: float) -> bool:
    """Whether all values are ones that bf16 or fp16 can hold, up to a division by the number of ranks.

    A communication hook in C++, or a user's own all-reduce, tells nothing else of its precision.
    """
    values = torch.from_numpy(final[final != 0.0])
    if len(values) == 0:
        return False
    held = [values.to(dtype).double() for dtype in (torch.bfloat16, torch.float16)]
    whole = values / rank_factor
    held += [whole.to(dtype).double() * rank_factor for dtype in (torch.bfloat16, torch.float16)]
    return any(bool(((each - values).abs() <= _ROUNDING * values.abs()).all()) for each in held)
