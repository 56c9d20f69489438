"""What a rank knows of one measured optimizer step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One backward's examples.

    num_items: what its loss sums or averages over; the number of examples where that is not tokens.
    cross_weight: what its gradient counts in Σ (T_i / n_i) s_i, up to the step's common factor.
    """

    num_examples: int
    num_items: float
    cross_weight: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Some coordinates of a step: `sizes[i]` elements of each of `parameters`, one after the other.

    total, magnitude, final: [elements], Σ h and Σ |h| of all groups, and the final gradient; the last one is
        0 where another rank owns them.
    """

    parameters: list[int]
    sizes: list[int]
    total: Array
    magnitude: Array
    final: Array


@dataclass(kw_only=True)
class Recorded:
    """One finished step on this rank, in the units of the gradients as hooked; fp64.

    sq_norms: [groups, parameters], |h|² of each group's whole gradient; own_sq_norms, adam_sq_norms: the same
        on the coordinates this rank owns, the latter weighted by P. Groups without examples are left out.
    cross, adam_cross: [parameters], (Σ cross_weight · h) · final gradient on the owned coordinates, or None.
    final_sq_norms, adam_final_sq_norms: [parameters], of the final gradient's owned coordinates.
    sample: the same parameters' on all ranks.
    low_precision: whether any gradient was held in 16 bits.
    in_pieces: whether a parameter's gradient came in more than one piece that was not expected to.
    """

    groups: list[Group]
    sq_norms: Array
    own_sq_norms: Array
    final_sq_norms: Array
    adam_sq_norms: Array | None
    adam_final_sq_norms: Array | None
    cross: Array | None
    adam_cross: Array | None
    sample: Sample
    low_precision: bool
    in_pieces: bool
