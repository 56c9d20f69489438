"""Plain-text tables for a terminal: lines of text, no styling and no dependency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gasweep.report import numbers
from gasweep.report.study_view import ObservationView, TargetView, read_study

NAMES = (
    ("critical_batch_size", "B_crit (examples)"),
    ("min_steps", "S_min (optimizer steps)"),
    ("min_examples", "E_min (examples)"),
    ("critical_batch_size_20pct", "B at 20 % overhead (examples)"),
    ("noise_scale", "noise scale (examples)"),
)


def collapse_lines(*, num_points: int, num_runs: int, num_probes: int, num_infeasible: int = 0) -> list[str]:
    """What the factorisation saves: grid points against what is really run."""
    lines = [
        f"{num_points} grid points collapse to {num_runs} convergence runs and {num_probes} throughput probes"
    ]
    if num_infeasible:
        lines.append(f"{num_infeasible} of the grid points are infeasible here and are left out")
    return lines


def steps_table(study: dict[str, Any]) -> list[str]:
    """Steps to target per effective batch size, with the winning learning rate and what to beware of."""
    lines: list[str] = []
    for view in read_study(study):
        lines += [f"target {view.target}", *_table(_HEADER, [_steps_row(o) for o in view.observations]), ""]
    return lines[:-1]


def estimate_lines(study: dict[str, Any]) -> list[str]:
    """Every estimate of every target with its 95 % interval, or why there is none; then its flags."""
    lines: list[str] = []
    for view in read_study(study):
        lines.append(f"target {view.target} (95 % intervals)")
        lines += [f"  {label:<30} {text}" for label, text in _estimates(view)]
        lines += [f"  ! {flag}" for flag in view.flags]
    return lines


_HEADER = ("B", "steps", "seeds' range", "examples", "learning rate", "reached", "note")


def _steps_row(observation: ObservationView) -> list[str]:
    steps, batch = observation.steps, observation.effective_batch_size
    reached = sum(seed.steps is not None for seed in observation.seeds)
    notes = [observation.label or ""] + ([] if observation.in_fit else ["not in the fit"])
    spread = (
        ""
        if observation.low is None or observation.high is None
        else f"{numbers.number(observation.low)}–{numbers.number(observation.high)}"
    )
    return [
        f"{batch:,g}",
        _at_least(observation.at_least) if steps is None else numbers.number(steps),
        spread,
        _at_least(observation.at_least, batch) if steps is None else numbers.number(steps * batch),
        "" if observation.learning_rate is None else f"{observation.learning_rate:g}",
        f"{reached}/{len(observation.seeds)}",
        ", ".join(filter(None, notes)),
    ]


def _at_least(bound: float | None, unit: float = 1.0) -> str:
    return "none" if bound is None else f"≥ {numbers.number(bound * unit)}"


def _estimates(view: TargetView) -> list[tuple[str, str]]:
    return [(label, numbers.estimate(getattr(view, name))) for name, label in NAMES]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
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
