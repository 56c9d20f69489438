"""Plain-text tables for a terminal: lines of text, no styling and no dependency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gasweep.report import numbers
from gasweep.report.study_view import ObservationView, TargetView, read_study

NAMES = (
    ("critical_batch_size", "B_crit ({unit})"),
    ("min_steps", "S_min (optimizer steps)"),
    ("min_examples", "E_min ({unit})"),
    ("critical_batch_size_20pct", "B at 20 % overhead ({unit})"),
    ("noise_scale", "noise scale ({unit})"),
)
RATIO = ("noise_scale_ratio", "noise scale / B_crit")


def collapse_lines(*, num_points: int, num_runs: int, num_probes: int, num_infeasible: int = 0) -> list[str]:
    """What the factorisation saves: grid points against what is really run."""
    lines = [
        f"{num_points} grid points collapse to {num_runs} convergence runs and {num_probes} throughput probes"
    ]
    if num_infeasible:
        lines.append(f"{num_infeasible} of the grid points are infeasible here and are left out")
    return lines


def steps_table(study: dict[str, Any], *, unit: str = "examples") -> list[str]:
    """Steps to target per effective batch size, with the winning learning rate and what to beware of.

    unit: what batch sizes count, "examples" or "tokens".
    """
    header = [unit if name == "examples" else name for name in STEPS_HEADER]
    lines: list[str] = []
    for view in read_study(study):
        lines += [
            f"target {view.target}",
            *text_table(header, [steps_row(o) for o in view.observations]),
            "",
        ]
    return lines[:-1]


def estimate_lines(study: dict[str, Any], *, unit: str = "examples") -> list[str]:
    """Every estimate of every target with its 95 % interval, or why there is none; then its flags."""
    lines: list[str] = []
    views = read_study(study)
    for view in views:
        lines.append(f"target {view.target} (95 % intervals)")
        lines += [f"  {label.format(unit=unit):<30} {text}" for label, text in _estimates(view)]
        lines += [f"  ! {flag}" for flag in view.flags]
    return lines + _noise_lines(views)


def noise_rows(views: Sequence[TargetView]) -> list[list[str]]:
    """The cells under `NOISE_HEADER`, for the targets whose gradients were measured."""
    return [
        [
            view.target,
            numbers.estimate(view.critical_batch_size),
            numbers.estimate(view.noise_scale),
            view.noise_source,
            numbers.estimate(view.noise_scale_ratio),
        ]
        for view in views
        if view.has_noise_scale
    ]


NOISE_HEADER = ("target", "B_crit", "noise scale", "measured", "noise scale / B_crit")


def _noise_lines(views: Sequence[TargetView]) -> list[str]:
    """Both side by side over several targets; one target's stand together already."""
    rows = noise_rows(views)
    if len(rows) < 2:
        return []
    heading = "noise scale beside B_crit, in examples (two quantities; neither stands for the other)"
    return ["", heading, *text_table(NOISE_HEADER, rows)]


STEPS_HEADER = ("B", "steps", "seeds' range", "examples", "learning rate", "reached", "note")


def steps_row(observation: ObservationView) -> list[str]:
    """The cells under `STEPS_HEADER`."""
    batch, rate = observation.effective_batch_size, observation.learning_rate
    return [
        numbers.count(batch),
        _steps(observation),
        "–".join(map(numbers.number, observation.spread or ())),
        _steps(observation, batch),
        "" if rate is None else numbers.number(rate),
        _reached(observation),
        _note(observation),
    ]


def _reached(observation: ObservationView) -> str:
    """Seeds at the chosen learning rate that reached the target, of how many; at all rates where none is."""
    if observation.seeds:
        return f"{sum(seed.steps is not None for seed in observation.seeds)}/{len(observation.seeds)}"
    missed = sum(rate.num_censored + rate.num_diverged for rate in observation.rates)
    total = sum(rate.num_seeds for rate in observation.rates)
    return f"{total - missed}/{total}"


def _steps(observation: ObservationView, unit: float = 1.0) -> str:
    if observation.steps.value is not None:
        return numbers.number(observation.steps.value * unit)
    if observation.steps.low is None and observation.steps.high is not None:
        return f"≤ {numbers.number(observation.steps.high * unit)}"
    return "none" if observation.at_least is None else f"≥ {numbers.number(observation.at_least * unit)}"


def _note(observation: ObservationView) -> str:
    outliers = [str(seed.seed) for seed in observation.seeds if seed.outlier]
    notes = ["" if observation.label == "none" else observation.label, observation.reason or ""]
    return "; ".join(filter(None, [*notes, f"outlier seed {', '.join(outliers)}" if outliers else ""]))


def _estimates(view: TargetView) -> list[tuple[str, str]]:
    names = [*NAMES, RATIO] if view.has_noise_scale else NAMES
    rows = [(label, numbers.estimate(getattr(view, name))) for name, label in names]
    return [*rows, ("", f"noise scale {view.noise_source}")] if view.noise_source else rows


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell, numbers to the right and the last column to the left."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    last = len(header) - 1
    return [
        "  "
        + "  ".join(
            c.ljust(w) if i == last else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *rows]
    ]
