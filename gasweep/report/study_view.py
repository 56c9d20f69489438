"""The `fit` JSON read into typed views: the one place of the report that knows its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gasweep.analysis.cost_law import StepsLaw
from gasweep.analysis.estimate import Estimate

UNKNOWN = Estimate(value=None, low=None, high=None, reason="not estimated")


@dataclass(frozen=True, kw_only=True)
class SeedView:
    """One run at a batch size and learning rate; `steps` is None when it did not reach the target."""

    seed: int | None
    learning_rate: float | None
    steps: float | None
    at_least: float | None  # optimizer steps seen without reaching the target


@dataclass(frozen=True, kw_only=True)
class RatePoint:
    """One learning rate at one batch size; `steps` is the seed mean, None when a seed missed the target."""

    learning_rate: float
    steps: float | None
    at_least: float | None
    num_reached: int
    num_runs: int


@dataclass(frozen=True, kw_only=True)
class ObservationView:
    """What is known at one effective batch size.

    steps: of the winning learning rate, over seeds; None when it is only bounded below by `at_least`.
    low, high: the spread drawn as an error bar.
    label: how the winning rate was found (bracketed, edge, ...).
    """

    effective_batch_size: float
    steps: float | None
    low: float | None
    high: float | None
    at_least: float | None
    learning_rate: float | None
    label: str | None
    in_fit: bool
    seeds: tuple[SeedView, ...]
    runs: tuple[SeedView, ...]

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the first or last one tried, so that a better one may exist."""
        return self.label is not None and "edge" in self.label


@dataclass(frozen=True, kw_only=True)
class TargetView:
    """One target's answer and what it rests on."""

    target: str
    critical_batch_size: Estimate
    min_steps: Estimate
    min_examples: Estimate
    critical_batch_size_20pct: Estimate
    noise_scale: Estimate
    flags: tuple[str, ...]
    observations: tuple[ObservationView, ...]

    @property
    def law(self) -> StepsLaw:
        return StepsLaw(min_steps=self.min_steps, min_examples=self.min_examples)

    @property
    def has_law(self) -> bool:
        return self.min_steps.value is not None and self.min_examples.value is not None


def read_study(study: dict[str, Any]) -> list[TargetView]:
    """Views of `fit`'s JSON object, observations sorted by effective batch size."""
    return [_target(entry) for entry in study["targets"]]


def rate_curve(observation: ObservationView) -> list[RatePoint]:
    """The learning rates tried at one batch size, ascending."""
    by_rate: dict[float, list[SeedView]] = {}
    for run in observation.runs:
        if run.learning_rate is not None:
            by_rate.setdefault(run.learning_rate, []).append(run)
    return [_rate_point(rate, runs) for rate, runs in sorted(by_rate.items())]


def _rate_point(rate: float, runs: list[SeedView]) -> RatePoint:
    steps = [run.steps for run in runs if run.steps is not None]
    seen = [s for run in runs if (s := run.steps or run.at_least) is not None]
    return RatePoint(
        learning_rate=rate,
        steps=sum(steps) / len(steps) if len(steps) == len(runs) else None,
        at_least=sum(seen) / len(seen) if seen else None,
        num_reached=len(steps),
        num_runs=len(runs),
    )


def _target(entry: dict[str, Any]) -> TargetView:
    observations = sorted(map(_observation, entry["observations"]), key=lambda o: o.effective_batch_size)
    return TargetView(
        target=_target_name(entry["target"]),
        critical_batch_size=_estimate(entry.get("critical_batch_size")),
        min_steps=_estimate(entry.get("min_steps")),
        min_examples=_estimate(entry.get("min_examples")),
        critical_batch_size_20pct=_estimate(entry.get("critical_batch_size_20pct")),
        noise_scale=_estimate(entry.get("noise_scale")),
        flags=tuple(entry.get("flags") or ()),
        observations=tuple(observations),
    )


def _target_name(target: Any) -> str:
    if isinstance(target, dict):
        sign = "≥" if target.get("mode") == "max" else "≤"
        return f"{target.get('metric', 'target')} {sign} {_number(target.get('value'))}"
    return _number(target)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _estimate(data: dict[str, Any] | None) -> Estimate:
    if data is None:
        return UNKNOWN
    return Estimate(value=data["value"], low=data["low"], high=data["high"], reason=data.get("reason"))


def _observation(data: dict[str, Any]) -> ObservationView:
    return ObservationView(
        effective_batch_size=float(data["effective_batch_size"]),
        steps=data.get("steps_to_target"),
        low=data.get("steps_low"),
        high=data.get("steps_high"),
        at_least=data.get("steps_at_least"),
        learning_rate=data.get("learning_rate"),
        label=data.get("learning_rate_label"),
        in_fit=bool(data.get("in_fit", True)),
        seeds=tuple(map(_seed, data.get("seeds") or ())),
        runs=tuple(map(_seed, data.get("runs") or ())),
    )


def _seed(data: dict[str, Any]) -> SeedView:
    return SeedView(
        seed=data.get("seed"),
        learning_rate=data.get("learning_rate"),
        steps=data.get("steps_to_target"),
        at_least=data.get("last_optimizer_step"),
    )
