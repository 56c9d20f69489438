"""The `fit` JSON read into typed views: the one place of the report that knows its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gasweep.analysis.cost_law import SampledLaw
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.study_report import NoiseSource

UNKNOWN = Estimate(value=None, low=None, high=None, reason="not estimated")


@dataclass(frozen=True, kw_only=True)
class SeedView:
    """One run at the chosen learning rate.

    steps: None when it did not reach the target; the evaluation interval's middle when only that is known.
    """

    seed: int | str | None
    steps: float | None
    outlier: bool


@dataclass(frozen=True, kw_only=True)
class RateView:
    """One learning rate at one batch size; `steps` is the seed mean, bounded below alone if a seed missed."""

    learning_rate: float | None
    steps: Estimate
    num_seeds: int
    num_censored: int
    num_diverged: int


@dataclass(frozen=True, kw_only=True)
class ObservationView:
    """What was seen at one effective batch size.

    steps: seed mean at the chosen learning rate with its own interval; only bounded below when censored.
    role: what it is to the fit: exact, upper bound (rate at the grid's edge), lower bound or excluded.
    label: what the neighbouring rates say about the chosen one (bracketed, edge, tie, ...).
    """

    effective_batch_size: float
    steps: Estimate
    learning_rate: float | None
    label: str
    role: str
    reason: str | None
    seeds: tuple[SeedView, ...]
    rates: tuple[RateView, ...]

    @property
    def flagged(self) -> bool:
        """Whether it is not simply a measured point of the fit."""
        return self.role != "exact"

    @property
    def at_least(self) -> float | None:
        """A lower bound on the steps, where there is no value; without a chosen rate, the lowest of all."""
        if self.steps.value is not None or self.steps.low is not None:
            return self.steps.low
        bounds = [rate.steps.low for rate in self.rates if rate.steps.low is not None]
        return min(bounds) if bounds else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and most steps over the seeds that reached the target; None without two of them."""
        known = [seed.steps for seed in self.seeds if seed.steps is not None]
        return (min(known), max(known)) if len(known) > 1 else None


@dataclass(frozen=True, kw_only=True)
class TargetView:
    """One target's answer and what it rests on; `law` is None when nothing could be fitted.

    noise_source: which measured optimizer steps the noise scale stands on, in words.
    """

    target: str
    critical_batch_size: Estimate
    min_steps: Estimate
    min_examples: Estimate
    critical_batch_size_20pct: Estimate
    noise_scale: Estimate
    noise_scale_ratio: Estimate
    noise_source: str
    flags: tuple[str, ...]
    observations: tuple[ObservationView, ...]
    law: SampledLaw | None

    @property
    def has_noise_scale(self) -> bool:
        """Whether gradients were measured where the target was reached, resolved or not."""
        return self.noise_scale.reason not in ("not measured", UNKNOWN.reason)


def read_study(study: dict[str, Any]) -> list[TargetView]:
    """Views of `fit`'s JSON object, observations by ascending effective batch size."""
    return [_target(entry) for entry in study["targets"]]


def _target(entry: dict[str, Any]) -> TargetView:
    observations = sorted(map(_observation, entry["observations"]), key=lambda o: o.effective_batch_size)
    samples = [
        (float(item["effective_batch_size"]), _estimate(item["steps"])) for item in entry.get("law") or ()
    ]
    return TargetView(
        target=str(entry["target"]),
        critical_batch_size=_estimate(entry.get("critical_batch_size")),
        min_steps=_estimate(entry.get("min_steps")),
        min_examples=_estimate(entry.get("min_examples")),
        critical_batch_size_20pct=_estimate(entry.get("critical_batch_size_20pct")),
        noise_scale=_estimate(entry.get("noise_scale")),
        noise_scale_ratio=_estimate(entry.get("noise_scale_ratio")),
        noise_source=_noise_source(entry.get("noise_scale_source")),
        flags=tuple(entry.get("flags") or ()),
        observations=tuple(observations),
        law=SampledLaw(samples) if samples else None,
    )


def _noise_source(data: dict[str, Any] | None) -> str:
    """Which measured steps the noise scale stands on; empty where it was not measured."""
    if data is None:
        return ""
    return str(NoiseSource.from_dict(data))


def _estimate(data: dict[str, Any] | None) -> Estimate:
    if data is None:
        return UNKNOWN
    return Estimate(value=data["value"], low=data["low"], high=data["high"], reason=data.get("reason"))


def _observation(data: dict[str, Any]) -> ObservationView:
    return ObservationView(
        effective_batch_size=float(data["effective_batch_size"]),
        steps=_estimate(data["steps_to_target"]),
        learning_rate=data["learning_rate"],
        label=str(data["learning_rate_label"]),
        role=str(data["role"]),
        reason=data["reason"],
        seeds=tuple(map(_seed, data["seeds"])),
        rates=tuple(map(_rate, data["learning_rates"])),
    )


def _seed(data: dict[str, Any]) -> SeedView:
    steps = data["steps_to_target"]
    if steps is None and data["evaluation_high"] is not None:
        steps = 0.5 * ((data["evaluation_low"] or 0.0) + data["evaluation_high"])
    return SeedView(seed=data["seed"], steps=steps, outlier=bool(data["outlier"]))


def _rate(data: dict[str, Any]) -> RateView:
    return RateView(
        learning_rate=data["learning_rate"],
        steps=_estimate(data["steps_to_target"]),
        num_seeds=int(data["num_seeds"]),
        num_censored=int(data["num_censored"]),
        num_diverged=int(data["num_diverged"]),
    )
