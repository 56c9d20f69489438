"""Running means of |G|² and tr Σ for a live display: smoothed apart, divided afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from gasweep.analysis.noise_scale import NoiseMeasurement


@dataclass
class SmoothedNoise:
    """Exponential moving averages with bias correction; `decay` per measured step, in [0, 1).

    Without the correction the start-up value 0 would weigh on both averages; with it the first value is the
    first measurement. An EMA has no interval: `noise_scale` over a window does.
    """

    decay: float = 0.95
    _trace: float = 0.0
    _grad_sq_norm: float = 0.0
    _weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay={self.decay} must be in [0, 1)")

    def update(self, measurement: NoiseMeasurement) -> float | None:
        """Add one measured step; the ratio of the averages, None while the averaged |G|² is ≤ 0."""
        keep, add = self.decay, 1.0 - self.decay
        self._trace = keep * self._trace + add * measurement.grad_noise_trace
        self._grad_sq_norm = keep * self._grad_sq_norm + add * measurement.grad_sq_norm
        self._weight = keep * self._weight + add
        return self.noise_scale

    @property
    def grad_sq_norm(self) -> float | None:
        return self._grad_sq_norm / self._weight if self._weight else None

    @property
    def grad_noise_trace(self) -> float | None:
        return self._trace / self._weight if self._weight else None

    @property
    def noise_scale(self) -> float | None:
        """Ratio of the averages, in examples; None before the first step, or while |G|² averages to ≤ 0."""
        return self._trace / self._grad_sq_norm if self._grad_sq_norm > 0.0 else None
