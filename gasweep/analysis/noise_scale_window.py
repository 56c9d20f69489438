"""The gradient noise scale of a window of steps, and its course over training.

`noise_scale` is B_simple = tr Σ / |G|², in examples: a property of the gradients at one stage of training. It
is not the critical batch size, which only a steps-to-target fit gives; the two have been found to agree, and
to differ by orders of magnitude.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.noise_scale import NoiseMeasurement, NotMeasured, negative_trace_error
from gasweep.analysis.noise_scale_checks import require_finite, require_share, require_whole
from gasweep.analysis.noise_scale_fieller import MIN_BLOCKS, NUM_BLOCKS, fieller_set

_ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """What a window of steps says.

    noise_scale: with its interval; value None, and a reason, where |G|² is not resolved from 0.
    ratio_of_means: mean tr Σ / mean |G|² whether resolved or not; None when mean |G|² ≤ 0. In examples.
    grad_sq_norm, grad_noise_trace: means over the window, signed; None without a measured step.
    left_out: reason -> number of steps.
    """

    noise_scale: Estimate
    ratio_of_means: float | None
    grad_sq_norm: float | None
    grad_noise_trace: float | None
    num_measured: int
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """The noise scale around one measured step; contributions in examples, loss the window's mean."""

    optimizer_step: int
    contributions: int
    loss: float | None
    window: NoiseScale


def noise_scale(
    steps: Iterable[NoiseMeasurement | NotMeasured],
    *,
    confidence: float = 0.95,
    num_blocks: int = NUM_BLOCKS,
) -> NoiseScale:
    """tr Σ / |G|² of a window: the ratio of the two means, never a mean of ratios.

    steps: in the order of training; those not measured are counted by reason.

    Raises MeasurementError when mean tr Σ is negative: the groups were mismatched; and for confidence outside
    (0, 1) or fewer than MIN_BLOCKS blocks.
    """
    require_share("confidence", confidence, up_to_one=False)
    require_whole("num_blocks", num_blocks, at_least=MIN_BLOCKS)
    measured: list[NoiseMeasurement] = []
    left_out: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, NotMeasured):
            left_out[step.reason] += 1
        else:
            measured.append(step)
    if not measured:
        reason = f"not measurable: {_most_common(left_out)}" if left_out else "no step was measured"
        return unknown_noise_scale(reason, left_out=left_out)
    trace = _mean([step.grad_noise_trace for step in measured])
    grad_sq_norm = _mean([step.grad_sq_norm for step in measured])
    _check_trace(trace, measured)
    return NoiseScale(
        noise_scale=_estimate(measured, trace, grad_sq_norm, confidence=confidence, num_blocks=num_blocks),
        ratio_of_means=_ratio(trace, grad_sq_norm),
        grad_sq_norm=grad_sq_norm,
        grad_noise_trace=trace,
        num_measured=len(measured),
        left_out=dict(left_out),
    )


def noise_trajectory(
    steps: Sequence[NoiseMeasurement | NotMeasured],
    *,
    window_fraction: float = 0.2,
    min_window: int = 16,
    num_points: int = 100,
) -> list[NoisePoint]:
    """The noise scale along training, at up to `num_points` measured steps spread evenly.

    Each point's window is trailing: the last `window_fraction` of the measured steps so far, at least
    `min_window` of them. A fraction, because the noise scale grows over training on a logarithmic scale.

    Raises MeasurementError for a fraction outside (0, 1] or counts below 1, and as `noise_scale` does.
    """
    _check_windows(window_fraction, min_window)
    require_whole("num_points", num_points, at_least=1)
    measured = [step for step in steps if isinstance(step, NoiseMeasurement)]
    if not measured:
        return []
    stride = max(1, math.ceil(len(measured) / num_points))
    ends = sorted({len(measured), *range(len(measured), min(min_window, len(measured)) - 1, -stride)})
    return [_point(measured[:end], window_fraction, min_window) for end in ends if end > 0]


def noise_scale_at_step(
    steps: Iterable[NoiseMeasurement | NotMeasured],
    *,
    optimizer_step: float,
    window_fraction: float = 0.2,
    min_window: int = 16,
) -> NoiseScale:
    """The noise scale around one optimizer step, e.g. where a run reached its target.

    The window holds the steps within ± `window_fraction` / 2 of `optimizer_step`, widened to the `min_window`
    nearest measured ones where that holds fewer. Raises as `noise_trajectory` does, and for an
    `optimizer_step` that is not finite.
    """
    return noise_scale(
        steps_around(
            steps, optimizer_step=optimizer_step, window_fraction=window_fraction, min_window=min_window
        )
    )


def steps_around(
    steps: Iterable[NoiseMeasurement | NotMeasured],
    *,
    optimizer_step: float,
    window_fraction: float,
    min_window: int,
) -> list[NoiseMeasurement | NotMeasured]:
    """The window of `noise_scale_at_step`, in the order of training, to be pooled with other runs' windows.

    All steps where none was measured, so that their reasons are told.
    """
    _check_windows(window_fraction, min_window)
    require_finite("optimizer_step", optimizer_step)
    ordered = list(steps)
    near = sorted(ordered, key=lambda step: abs(step.optimizer_step - optimizer_step))
    reach = window_fraction / 2.0 * optimizer_step
    chosen = {id(step) for step in near if abs(step.optimizer_step - optimizer_step) <= reach}
    measured = [step for step in near if isinstance(step, NoiseMeasurement)]
    if sum(id(step) in chosen for step in measured) < min_window:
        chosen = {id(step) for step in measured[:min_window]}
    return [step for step in ordered if id(step) in chosen or not measured]


def unknown_noise_scale(reason: str, *, left_out: Mapping[str, int] | None = None) -> NoiseScale:
    """No noise scale, and why."""
    return NoiseScale(
        noise_scale=Estimate(value=None, low=None, high=None, reason=reason),
        ratio_of_means=None,
        grad_sq_norm=None,
        grad_noise_trace=None,
        num_measured=0,
        left_out=dict(left_out or {}),
    )


def noise_scale_at_loss(
    steps: Sequence[NoiseMeasurement | NotMeasured], *, loss: float, window_fraction: float = 0.2
) -> NoiseScale:
    """The noise scale where the smoothed training loss of the measured steps first falls to `loss`.

    Raises as `noise_trajectory` does, and for a `loss` that is not finite.
    """
    require_finite("loss", loss)
    for point in noise_trajectory(steps, window_fraction=window_fraction, num_points=len(steps) or 1):
        if point.loss is not None and point.loss <= loss:
            return noise_scale_at_step(
                steps, optimizer_step=point.optimizer_step, window_fraction=window_fraction
            )
    return unknown_noise_scale(f"no window of measured steps has a mean loss at or below {loss:.6g}")


def _estimate(
    measured: list[NoiseMeasurement],
    trace: float,
    grad_sq_norm: float,
    *,
    confidence: float,
    num_blocks: int,
) -> Estimate:
    if len(measured) < MIN_BLOCKS:
        reason = f"{len(measured)} measured steps: too few for an interval (at least {MIN_BLOCKS})"
        return Estimate(value=_ratio(trace, grad_sq_norm), low=None, high=None, reason=reason)
    allowed = fieller_set(
        [step.grad_noise_trace for step in measured],
        [step.grad_sq_norm for step in measured],
        confidence=confidence,
        num_blocks=num_blocks,
    )
    value = _ratio(trace, grad_sq_norm)
    if allowed.shape == "interval" and trace >= 0.0 and value is not None:
        return Estimate(value=value, low=allowed.low, high=allowed.high)
    if allowed.shape == "negative":
        reason = (
            f"mean |G|² is negative beyond its noise over {len(measured)} steps: examples within a step are "
            "not independent draws (duplicates, or a small data set whose size was not given)"
        )
        return Estimate(value=None, low=None, high=None, reason=reason)
    if allowed.shape == "interval":
        reason = "tr Σ is 0 within rounding: the groups of a step do not differ"
        return Estimate(value=None, low=None, high=allowed.high, reason=reason)
    return Estimate(
        value=None,
        low=allowed.low,
        high=None,
        reason=f"|G|² is not resolved from 0 by {len(measured)} measured steps",
    )


def _check_trace(trace: float, measured: list[NoiseMeasurement]) -> None:
    """Two-batch steps may go either way one by one; their mean may not, beyond rounding."""
    size = _mean([abs(m.grad_sq_norm) for m in measured])
    size += _mean([abs(m.grad_noise_trace) / m.num_examples for m in measured])
    if trace < -_ROUNDING * size:
        raise negative_trace_error(trace)


def _point(so_far: list[NoiseMeasurement], window_fraction: float, min_window: int) -> NoisePoint:
    window = so_far[-max(min_window, round(window_fraction * len(so_far))) :]
    losses = [step.loss for step in window if step.loss is not None and math.isfinite(step.loss)]
    return NoisePoint(
        optimizer_step=so_far[-1].optimizer_step,
        contributions=so_far[-1].contributions,
        loss=_mean(losses) if losses else None,
        window=noise_scale(window),
    )


def _mean(values: Sequence[float]) -> float:
    """Divided before added: the sum of very large values may not be representable."""
    return math.fsum(value / len(values) for value in values)


def _ratio(trace: float, grad_sq_norm: float) -> float | None:
    ratio = trace / grad_sq_norm if grad_sq_norm > 0.0 else math.inf
    return ratio if math.isfinite(ratio) else None


def _check_windows(window_fraction: float, min_window: int) -> None:
    require_share("window_fraction", window_fraction, up_to_one=True)
    require_whole("min_window", min_window, at_least=1)


def _most_common(left_out: Counter[str]) -> str:
    return ", ".join(f"{reason} ({count} steps)" for reason, count in left_out.most_common())
