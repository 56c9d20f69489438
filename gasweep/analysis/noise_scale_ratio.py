"""How far the gradient noise scale lies from the critical batch size: the ratio of two measured things.

They are different quantities that the theory equates under assumptions no network meets; the literature finds
the ratio anywhere from about ten to orders of magnitude below one. It is therefore measured, not assumed.
"""

from __future__ import annotations

import math

from gasweep.analysis.estimate import Estimate


def noise_scale_ratio(noise_scale: Estimate, critical_batch_size: Estimate) -> Estimate:
    """noise_scale / critical_batch_size with its 95 % interval; a bound where one of them is only bounded.

    Where both have a value and two limits, the log limits' distances are added in quadrature (MOVER), else
    the limits are divided, which covers at least as often as both hold.

    Source: Zou & Donner 2008, Stat. Med. 27(10), with the logarithms' difference for the ratio.
    Assumes: independent errors; the same runs give both, one from gradients and one from step counts.
    """
    if noise_scale.reason == "not measured":
        return _unknown("noise scale not measured")
    value = _divide(noise_scale.value, critical_batch_size.value)
    low = _divide(noise_scale.low, critical_batch_size.high)
    high = _divide(noise_scale.high, critical_batch_size.low)
    if value is None:
        reasons = [
            f"{name}: {estimate.reason}"
            for name, estimate in (("noise scale", noise_scale), ("B_crit", critical_batch_size))
            if estimate.value is None
        ]
        return Estimate(value=None, low=low, high=high, reason="; ".join(reasons) or "B_crit is 0")
    if low is not None and high is not None and low > 0.0:
        low, high = _mover(noise_scale, critical_batch_size, value)
    return Estimate(value=value, low=low, high=high)


def _mover(noise: Estimate, critical: Estimate, value: float) -> tuple[float, float]:
    below = math.hypot(_log_ratio(noise.value, noise.low), _log_ratio(critical.high, critical.value))
    above = math.hypot(_log_ratio(noise.high, noise.value), _log_ratio(critical.value, critical.low))
    return value * math.exp(-below), value * math.exp(above)


def _log_ratio(larger: float | None, smaller: float | None) -> float:
    assert larger is not None
    assert smaller is not None
    return math.log(larger / smaller)


def _divide(above: float | None, below: float | None) -> float | None:
    if above is None or below is None or below <= 0.0:
        return None
    ratio = above / below
    return ratio if math.isfinite(ratio) else None


def _unknown(reason: str) -> Estimate:
    return Estimate(value=None, low=None, high=None, reason=reason)
