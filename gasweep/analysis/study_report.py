"""What a study found, per target and batch size, and its JSON form (`gasweep fit --json`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gasweep.analysis.cost_law import sample_law
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.fit import FitResult
from gasweep.analysis.learning_rate_choice import RateChoice, RateTrial
from gasweep.analysis.learning_rate_curve import RateShift
from gasweep.analysis.noise_scale_ratio import noise_scale_ratio
from gasweep.analysis.observation import Observation
from gasweep.analysis.outlier_seeds import OutlierSeed
from gasweep.analysis.steps_summary import scale_estimate, summarise_steps
from gasweep.analysis.steps_to_target import TargetRule


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """One batch size of one target: the rate chosen, what was seen, and what part it plays in the fit.

    role: "exact", "upper bound" (rate not bracketed), "lower bound" (no seed reached) or "excluded".
    reason: why, for anything but exact. shift: from the best rate tried to the best there is, if known.
    flags: what its choice of rate leaves open; the target's flags hold them too.
    """

    batch_size: float
    choice: RateChoice
    trials: tuple[RateTrial, ...]
    steps: Estimate
    median_steps: float | None
    role: str
    reason: str | None
    outlier_seeds: tuple[int | str | None, ...]
    fitted_steps: Estimate
    shift: RateShift | None = None
    flags: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        winner = self.choice.winner
        seeds = _all_seeds(winner) if winner else []
        return {
            "effective_batch_size": self.batch_size,
            "learning_rate": winner.learning_rate if winner else None,
            "learning_rate_label": str(self.choice.bracket),
            "learning_rates_tied": list(self.choice.tied_with),
            "learning_rate_proposed": self.choice.propose,
            "variant": winner.variant if winner else None,
            "num_seeds": len(seeds),
            "num_reached": sum(item.is_reached for item in seeds),
            "num_censored": sum(trial.num_censored for trial in ([winner] if winner else self.trials)),
            "num_diverged": sum(trial.num_diverged for trial in self.trials),
            "steps_to_target": self.steps.to_dict(),
            "median_steps_to_target": self.median_steps,
            "examples_to_target": scale_estimate(self.steps, self.batch_size).to_dict(),
            "log_shift_to_best_rate": self.shift.log_shift if self.shift else None,
            "fitted_steps": self.fitted_steps.to_dict(),
            "role": self.role,
            "reason": self.reason,
            "flags": list(self.flags),
            "seeds": [_seed_dict(item, item.seed in self.outlier_seeds) for item in seeds],
            "learning_rates": [_trial_dict(trial) for trial in self.trials],
        }


@dataclass(frozen=True, kw_only=True)
class NoiseSource:
    """The measured optimizer steps that a target's noise scale stands on, of all seeds together.

    is_widened: they reach far beyond the crossing's surroundings, since too few near it were measured.
    """

    batch_size: float
    learning_rate: float
    num_runs: int
    num_measured: int
    first_step: int
    last_step: int
    is_widened: bool

    def __str__(self) -> str:
        return (
            f"at B = {self.batch_size:g}: {self.num_measured} measured optimizer steps, {self.first_step} – "
            f"{self.last_step}, of {self.num_runs} run{'s' if self.num_runs != 1 else ''}"
        )

    def flags(self) -> list[str]:
        """Sentences for the user: where the value stands for more than the loss at the target."""
        if not self.is_widened:
            return []
        return [
            f"noise scale: {self.num_measured} measured steps, {self.first_step} – {self.last_step}, stand "
            "for those around the target, where too few were measured; a smaller "
            "noise_scale.every_optimizer_steps measures more"
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "effective_batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "num_runs": self.num_runs,
            "num_measured": self.num_measured,
            "first_optimizer_step": self.first_step,
            "last_optimizer_step": self.last_step,
            "widened": self.is_widened,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NoiseSource:
        """What `to_dict` gave."""
        return cls(
            batch_size=data["effective_batch_size"],
            learning_rate=data["learning_rate"],
            num_runs=data["num_runs"],
            num_measured=data["num_measured"],
            first_step=data["first_optimizer_step"],
            last_step=data["last_optimizer_step"],
            is_widened=data["widened"],
        )


@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """The fit of one target with everything it rests on. rule: None for sources that name targets only."""

    target: str
    rule: TargetRule | None
    fit: FitResult
    batches: tuple[BatchReport, ...]
    noise_scale: Estimate
    flags: tuple[str, ...]
    noise_source: NoiseSource | None = None

    @property
    def outliers(self) -> list[OutlierSeed]:
        """Seeds set aside, at any learning rate."""
        trials = [trial for batch in self.batches for trial in batch.trials]
        return [*(outlier for trial in trials for outlier in trial.set_aside), *self.fit.outliers]

    def to_dict(self) -> dict[str, Any]:
        spread = self.fit.spread
        return {
            "target": self.target,
            "rule": self.rule.to_dict() if self.rule else None,
            "critical_batch_size": self.fit.critical_batch_size.to_dict(),
            "min_steps": self.fit.min_steps.to_dict(),
            "min_examples": self.fit.min_examples.to_dict(),
            "critical_batch_size_20pct": self.fit.critical_batch_size_20pct.to_dict(),
            "critical_batch_size_20pct_base": self.fit.base_batch_size,
            "noise_scale": self.noise_scale.to_dict(),
            "noise_scale_ratio": noise_scale_ratio(self.noise_scale, self.fit.critical_batch_size).to_dict(),
            "noise_scale_source": self.noise_source.to_dict() if self.noise_source else None,
            "spread": spread.to_dict() if spread else None,
            "flags": list(self.flags),
            "outliers": [outlier.to_dict() for outlier in self.outliers],
            "observations": [batch.to_dict() for batch in self.batches],
            "law": sample_law(self.fit.steps_at, [batch.batch_size for batch in self.batches]),
        }


@dataclass(frozen=True, kw_only=True)
class GrowthPoint:
    """B_crit up to `target`, and of the stretch from the target before it (None for the first)."""

    target: str
    critical_batch_size: Estimate
    previous_target: str | None
    local_critical_batch_size: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        local = self.local_critical_batch_size
        return {
            "target": self.target,
            "critical_batch_size": self.critical_batch_size.to_dict(),
            "previous_target": self.previous_target,
            "local_critical_batch_size": local.to_dict() if local else None,
        }


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """growth: one point per target that curves were read at, easiest first; see `gasweep.analysis.growth`."""

    targets: tuple[TargetReport, ...]
    growth: tuple[GrowthPoint, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "targets": [target.to_dict() for target in self.targets],
            "growth": [point.to_dict() for point in self.growth],
        }


def _all_seeds(trial: RateTrial) -> list[Observation]:
    return [*trial.observations, *(outlier.observation for outlier in trial.set_aside)]


def _seed_dict(item: Observation, is_outlier: bool) -> dict[str, Any]:
    return {
        "seed": item.seed,
        "steps_to_target": item.steps,
        "evaluation_low": item.low,
        "evaluation_high": item.high,
        "censored_at": item.censored_at,
        "outlier": is_outlier,
    }


def _trial_dict(trial: RateTrial) -> dict[str, Any]:
    steps, median = summarise_steps(trial.observations)
    return {
        "learning_rate": trial.learning_rate,
        "variant": trial.variant,
        "num_seeds": len(_all_seeds(trial)) + trial.num_diverged,
        "num_censored": trial.num_censored,
        "num_diverged": trial.num_diverged,
        "steps_to_target": steps.to_dict(),
        "median_steps_to_target": median,
        "seeds": [
            *(_seed_dict(item, False) for item in trial.observations),
            *(_seed_dict(outlier.observation, True) for outlier in trial.set_aside),
        ],
    }
