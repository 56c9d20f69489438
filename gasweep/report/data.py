"""What a report is made of: plain data, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gasweep.analysis.cost import GridPoint, StepTime
from gasweep.results.noise_course import NoiseCourse


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run as the table of runs shows it; None where it was not measured."""

    run_id: str
    kind: str  # convergence | probe
    state: str
    micro_batch_size: int
    world_size: int
    accumulation_steps: int
    effective_batch_size: int
    learning_rate: float | None
    seed: int | None
    optimizer_steps: int | None = None
    final_metric: float | None = None  # target.metric at the last evaluation
    wall_s: float | None = None
    seconds_per_optimizer_step: float | None = None
    examples_per_s: float | None = None
    num_attempts: int = 1
    axes: str = ""  # extra grid axes, e.g. "task.width=64"
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One (b, N, G) of the grid; `step_time` and `peak_memory_bytes` (of one rank) where measured."""

    point: GridPoint
    step_time: StepTime | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """What the factorisation saved; counts of grid points and of what was run for them."""

    num_points: int
    num_runs: int
    num_probes: int
    num_infeasible: int = 0


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """One setting of the extra grid axes: `fit`'s JSON object, and the layouts of the grid under it.

    label: the setting, e.g. "task.width=64"; empty when there are no extra axes.
    noise: the noise scale along training, one run for each batch size that measured it.
    """

    study: dict[str, Any]
    layouts: tuple[Layout, ...] = ()
    label: str = ""
    noise: tuple[NoiseCourse, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything a report shows.

    created_at: when the report was made, as it is to be shown.
    worker: what one rank runs on, for units: "GPU", or "worker" where there are none.
    environments: one dict (name -> value) for each distinct machine that ran attempts.
    notes: sentences about the sweep as a whole (what is unfinished, what changed on the way).
    layout_costs: a point of `gasweep bench --json` for each probed layout.
    """

    name: str
    task: str
    created_at: str
    worker: str
    studies: tuple[StudySection, ...]
    runs: tuple[RunRow, ...] = ()
    collapse: Collapse | None = None
    config_yaml: str = ""
    environments: tuple[dict[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())
    layout_costs: tuple[dict[str, Any], ...] = field(default=())
