"""How far two layouts of one step are apart, and how far rounding alone may put them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gasweep.config.run_spec import Layout
from gasweep.training.verify.take_step import Taken

Verdict = Literal["bitwise", "rounding", "different"]

ORDER: tuple[Verdict, ...] = ("different", "rounding", "bitwise")
"""The worst first."""

WIDE_TOLERANCE = 1e-9
"""Of a parameter's largest gradient element, in float64: a sum of 10^6 terms rounds by less than 1e-10."""

FLOOR = 1e-11
"""Of the model's largest gradient element, in float64: a gradient that is 0 in exact arithmetic comes out as
the rounding of larger numbers."""

SLACK = 64.0
"""How many times the rounding error of the single-group gradient two layouts may be apart."""

UNIT_ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two layouts that took the same step.

    gradient_deviation: largest |difference| of a gradient element; gradient_scale: largest |element|.
    worst_parameter: whose gradient differs most beside its bound; gradient_bound: what rounding may do to it
        at the run's precision, None where random numbers were drawn or all bits are equal.
    loss_deviation: relative. parameter_deviation: largest |difference| after the update, of what has a
        gradient (a buffer, such as a counter of batches, is no parameter).
    """

    first: Layout
    second: Layout
    equal: Verdict
    gradient_deviation: float
    gradient_bound: float | None
    gradient_scale: float
    loss_deviation: float
    parameter_deviation: float
    worst_parameter: str | None


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Largest deviation of each parameter's gradient, and of the loss, that rounding explains."""

    gradients: dict[str, float]
    loss: float

    def hold(self, a: Taken, b: Taken) -> bool:
        """Whether two layouts agree within the bounds."""
        gradients = all(
            deviation(a.gradients.get(name), b.gradients.get(name)) <= bound
            for name, bound in self.gradients.items()
        )
        return gradients and a.gradients.keys() == b.gradients.keys() and abs(a.loss - b.loss) <= self.loss


def wide_bounds(reference: Taken) -> Bounds:
    """Bounds for layouts computed in float64, from the one in a single group."""
    scale = _largest(reference.gradients)
    return Bounds(
        gradients={
            name: WIDE_TOLERANCE * float(gradient.abs().max()) + FLOOR * scale if gradient.numel() else 0.0
            for name, gradient in reference.gradients.items()
        },
        loss=WIDE_TOLERANCE * abs(reference.loss) + FLOOR,
    )


def own_bounds(single: Taken, reference: Taken, *, precision: str) -> Bounds:
    """Bounds at the run's own precision: SLACK x the distance of its single-group gradient from float64.

    That distance is this model's rounding error, measured: it holds the depth and conditioning that no bound
    from first principles knows. The unit roundoff of the largest element is added, since one sample of an
    error may be small by luck.
    """
    unit, scale = UNIT_ROUNDOFF[precision], _largest(reference.gradients)
    return Bounds(
        gradients={
            name: SLACK * (deviation(single.gradients.get(name), gradient) + unit * scale)
            for name, gradient in reference.gradients.items()
        },
        loss=SLACK * (abs(single.loss - reference.loss) + unit * abs(reference.loss)),
    )


def narrow_bounds(single: Taken, *, precision: str) -> Bounds:
    """Coarse bounds where there is no float64 reference: 2^14 unit roundoffs of the largest element."""
    relative = 2.0**14 * UNIT_ROUNDOFF[precision]
    scale = _largest(single.gradients)
    return Bounds(
        gradients=dict.fromkeys(single.gradients, relative * scale), loss=relative * abs(single.loss)
    )


def farthest(one: Taken, reference: Taken) -> float:
    """Largest deviation of any gradient element."""
    return max(
        (deviation(one.gradients.get(name), gradient) for name, gradient in reference.gradients.items()),
        default=0.0,
    )


def same_bits(a: Taken, b: Taken) -> bool:
    """Whether gradients, loss and updated parameters are equal bit for bit."""
    return a.loss == b.loss and _same(a.gradients, b.gradients) and _same(a.parameters, b.parameters)


def compare(
    layouts: Sequence[Layout],
    taken: Sequence[Taken],
    *,
    bounds: Bounds | None = None,
    agree: Sequence[Sequence[bool]] | None = None,
) -> list[Pair]:
    """Every pair. bounds: at the run's precision. agree[i][j]: whether the two layouts compute the same as
    far as float64 tells. Without either, only equal bits are not different."""
    pairs = []
    for i, j in itertools.combinations(range(len(layouts)), 2):
        verdict: Verdict = "different"
        if same_bits(taken[i], taken[j]):
            verdict = "bitwise"
        elif bounds is not None and agree is not None:
            verdict = "rounding" if agree[i][j] and bounds.hold(taken[i], taken[j]) else "different"
        pairs.append(_pair(layouts[i], layouts[j], taken[i], taken[j], verdict, bounds))
    return pairs


def shared_by_equals(pairs: Sequence[Pair]) -> str:
    """What the layouts that agree have in common: all that is left to say when no known cause applies."""
    for field in ("world_size", "micro_batch_size", "accumulation_steps"):
        alike = [p for p in pairs if getattr(p.first, field) == getattr(p.second, field)]
        apart = [p for p in pairs if p not in alike]
        if (
            alike
            and all(p.equal != "different" for p in alike)
            and all(p.equal == "different" for p in apart)
        ):
            return f"no known cause: layouts agree exactly when they share {field}; something depends on it"
    worst = max(pairs, key=lambda pair: pair.gradient_deviation)
    return (
        f"no known cause: {worst.first} and {worst.second} differ most, in the gradient of "
        f"{worst.worst_parameter}"
    )


def deviation(a: Tensor | None, b: Tensor | None) -> float:
    """Largest |a - b|; infinite when one is missing, or not finite where the other is."""
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    if a.numel() == 0:
        return 0.0
    difference = float((a.double() - b.double()).abs().max())
    return difference if difference == difference else float("inf")


def _pair(first: Layout, second: Layout, a: Taken, b: Taken, verdict: Verdict, bounds: Bounds | None) -> Pair:
    names = a.gradients.keys() | b.gradients.keys()
    apart = {name: deviation(a.gradients.get(name), b.gradients.get(name)) for name in names}
    limits = {} if bounds is None else bounds.gradients

    def excess(name: str) -> float:
        return apart[name] / max(limits.get(name, 1.0), 1e-300)

    worst = max(apart, key=excess, default=None)
    return Pair(
        first=first,
        second=second,
        equal=verdict,
        gradient_deviation=max(apart.values(), default=0.0),
        gradient_bound=None if worst is None else limits.get(worst),
        gradient_scale=_largest(a.gradients),
        loss_deviation=abs(a.loss - b.loss) / max(abs(a.loss), 1e-300),
        parameter_deviation=max(
            (
                deviation(a.parameters[name], b.parameters.get(name))
                for name in a.gradients
                if name in a.parameters
            ),
            default=0.0,
        ),
        worst_parameter=worst,
    )


def _largest(gradients: Tensors) -> float:
    return max((float(g.abs().max()) for g in gradients.values() if g.numel()), default=0.0)


def _same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
