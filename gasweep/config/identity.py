"""Run ids: a hash of exactly the fields that determine a run's result, listed here and nowhere else.

Not part of it, on purpose: the budget (a run that reached its target under one budget did so under every
larger one; the driver re-opens censored runs when the budget grows), the execution layout and strategy of a
factorized convergence run (exactness makes them equivalent), tracking, checkpoints and the cluster. The code
revision and library versions are recorded beside the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from gasweep.config.run_spec import Layout
from gasweep.config.schema import SweepConfig

CONVERGENCE_SECTIONS = (
    "task",
    "optimizer",
    "schedule",
    "data",
    "precision",
    "determinism",
    "ramp",
    "target",
    "evaluation",
)
PROBE_SECTIONS = ("task", "optimizer", "precision", "determinism", "strategy", "strategy_options")


def affects_convergence(path: str, *, mode: str) -> bool:
    """Whether the config field at dotted `path` changes what a convergence run computes."""
    section = path.split(".", 1)[0]
    executed = ("strategy", "strategy_options") if mode == "full" else ()
    return section in (*CONVERGENCE_SECTIONS, *executed) or path in ("grain", "budget.divergence_factor")


def convergence_id(
    config: SweepConfig,
    *,
    effective_batch_size: int,
    learning_rate: float,
    seed: int,
    layout: Layout | None = None,
) -> str:
    """Id of a convergence run; `layout` only in a full sweep, where every grid point is a run of its own."""
    fields = _sections(config, CONVERGENCE_SECTIONS) | {
        "kind": "convergence",
        "effective_batch_size": effective_batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "divergence_factor": config.budget.divergence_factor,
    }
    if config.determinism == "bitwise":
        # A kernel's threads share its sums, so the bits depend on how many there are.
        fields |= {"grain": config.grain, "threads_per_worker": config.cluster.threads_per_worker}
    if layout is not None:
        fields |= _sections(config, ("strategy", "strategy_options"))
        fields["layout"] = dataclasses.asdict(layout)
    return _digest(fields)


def probe_id(config: SweepConfig, *, layout: Layout, effective_batch_size: int, hardware: str | None) -> str:
    """Id of a throughput probe; `hardware` is the device kind it runs on, None while only planned."""
    fields = _sections(config, PROBE_SECTIONS) | {
        "kind": "probe",
        "layout": dataclasses.asdict(layout),
        "effective_batch_size": effective_batch_size,
        "hardware": hardware,
        "threads_per_worker": config.cluster.threads_per_worker,
        "optimizer_steps": config.sweep.probe_optimizer_steps,
        "warmup_optimizer_steps": config.sweep.probe_warmup_optimizer_steps,
    }
    if config.determinism == "bitwise":
        fields["grain"] = config.grain
    return _digest(fields)


def _sections(config: SweepConfig, names: tuple[str, ...]) -> dict[str, Any]:
    everything = dataclasses.asdict(config)
    return {name: everything[name] for name in names}


def _digest(fields: dict[str, Any]) -> str:
    """SHA-256 of canonical JSON: sorted keys, floats by repr, no NaN; the first 16 hex digits."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
