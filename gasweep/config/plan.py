"""From a config to what would run: grid points, the convergence runs they collapse to, and the probes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gasweep.batching import effective_batch_size, partition_step, solve_accumulation_steps
from gasweep.config.axes import Axes, apply_axes, read_axes
from gasweep.config.identity import affects_convergence, convergence_id, probe_id
from gasweep.config.learning_rates import peak_learning_rates
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.errors import BatchError, ConfigError

LARGEST_MICRO_BATCH = 2**24  # examples: their indices alone are 128 MB
LARGEST_BATCH = 2**31 - 1

NormalizeTask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One point of the full grid, and the convergence run that answers for it."""

    layout: Layout
    effective_batch_size: int
    learning_rate: float
    seed: int
    axes: dict[str, Any]
    run_id: str

    def to_dict(self) -> dict[str, Any]:
        shared = dataclasses.asdict(self.layout) | {"effective_batch_size": self.effective_batch_size}
        return shared | {
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "run_id": self.run_id,
            **({"axes": self.axes} if self.axes else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A combination of axes that is no run, and why (one line)."""

    point: dict[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a sweep is made of. Pure data: planning reads no cluster and runs nothing.

    runs: distinct convergence runs, each with the first of its layouts.
    layouts: run id -> every grid layout of that run, cheapest to execute first: fewest micro-batches over
        all ranks (N·G), then fewest ranks, which need no communication and leave workers to other runs.
    """

    config: SweepConfig
    points: list[GridPoint]
    runs: list[RunSpec]
    probes: list[RunSpec]
    layouts: dict[str, list[Layout]]
    rejected: list[Rejected]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_points": len(self.points),
            "num_runs": len(self.runs),
            "num_probes": len(self.probes),
            "points": [point.to_dict() for point in self.points],
            "rejected": [dataclasses.asdict(item) for item in self.rejected],
            "notes": self.notes,
        }

    def for_cluster(self, *, max_workers: int, device: str) -> SweepPlan:
        """This plan on a cluster: each run takes its first layout that fits; probes carry the device in
        their id. A run none of whose layouts fit keeps its first one: the backend will refuse it."""
        runs = [
            dataclasses.replace(run, layout=_first_that_fits(self.layouts[run.run_id], max_workers))
            for run in self.runs
        ]
        probes = [_as_probe(probe, hardware=device) for probe in self.probes]
        return dataclasses.replace(self, runs=runs, probes=probes)

    def for_bench(self) -> SweepPlan:
        """Only the probes, each that skips a sync beside its twin that syncs on every micro-step; bitwise
        accumulation, which syncs once by its nature, has no twin."""
        probes: dict[str, RunSpec] = {}
        for probe in self.probes:
            probes[probe.run_id] = probe
            if _skips_syncs(probe):
                twin = _as_probe(_syncing_every_micro_step(probe), hardware=None)
                probes[twin.run_id] = twin
        return dataclasses.replace(self, runs=[], layouts={}, probes=list(probes.values()))


def plan_sweep(config: SweepConfig, *, normalize_task: NormalizeTask = dict) -> SweepPlan:
    """Expand `config.grid` and collapse it.

    normalize_task: gives a task section with its defaults filled in and its values typed, so that a run's
        identity does not depend on how the section was written.

    Raises ConfigError when the grid is malformed, or when no combination of its axes is a run.
    """
    axes = read_axes(config)
    builder = _Builder(config=config, axes=axes, normalize_task=normalize_task)
    for values in _products(axes.extra):
        builder.add(apply_axes(config, values), values)
    if not builder.points:
        reasons = "; ".join(dict.fromkeys(item.reason for item in builder.rejected))
        raise ConfigError(f"grid: no combination of the axes is a run: {reasons}")
    return SweepPlan(
        config=config,
        points=builder.points,
        runs=list(builder.runs.values()),
        probes=list(builder.probes.values()),
        layouts=builder.sorted_layouts(),
        rejected=builder.rejected,
        notes=_notes(config, axes, list(builder.runs.values())),
    )


@dataclass(kw_only=True)
class _Builder:
    config: SweepConfig
    axes: Axes
    normalize_task: NormalizeTask
    points: list[GridPoint] = field(default_factory=list)
    runs: dict[str, RunSpec] = field(default_factory=dict)
    probes: dict[str, RunSpec] = field(default_factory=dict)
    layouts: dict[str, list[Layout]] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, config: SweepConfig, values: dict[str, Any]) -> None:
        config = dataclasses.replace(config, task=self.normalize_task(config.task))
        mode = config.sweep.mode
        identifying = {p: v for p, v in values.items() if affects_convergence(p, mode=mode)}
        for layout, total in self._layouts(config, values):
            for rate, seed in itertools.product(
                peak_learning_rates(config, self.axes, total), self.axes.seed
            ):
                self._add_point(config, layout, total, rate, seed, identifying)
            if config.sweep.throughput_probes:
                self._add_probe(config, layout, total, values)

    def sorted_layouts(self) -> dict[str, list[Layout]]:
        return {run_id: sorted(found, key=_execution_cost) for run_id, found in self.layouts.items()}

    def _layouts(self, config: SweepConfig, values: dict[str, Any]) -> Iterator[tuple[Layout, int]]:
        axes = self.axes
        last = axes.effective_batch_size or axes.accumulation_steps or []
        name = "effective_batch_size" if axes.effective_batch_size else "accumulation_steps"
        for b, n, x in itertools.product(axes.micro_batch_size, axes.world_size, last):
            try:
                layout, total = _solve(config, b=b, n=n, given=name, value=x)
            except (BatchError, ConfigError) as error:
                point = {"micro_batch_size": b, "world_size": n, name: x, **values}
                self.rejected.append(Rejected(point=point, reason=str(error)))
                continue
            yield layout, total

    def _add_point(
        self,
        config: SweepConfig,
        layout: Layout,
        total: int,
        rate: float,
        seed: int,
        axes: dict[str, Any],
    ) -> None:
        run_id = convergence_id(
            config,
            effective_batch_size=total,
            learning_rate=rate,
            seed=seed,
            layout=layout if config.sweep.mode == "full" else None,
        )
        point = GridPoint(
            layout=layout, effective_batch_size=total, learning_rate=rate, seed=seed, axes=axes, run_id=run_id
        )
        self.points.append(point)
        self.layouts.setdefault(run_id, []).append(layout)
        current = self.runs.get(run_id)
        if current is None or _execution_cost(layout) < _execution_cost(current.layout):
            self.runs[run_id] = RunSpec(
                run_id=run_id,
                kind="convergence",
                effective_batch_size=total,
                layout=layout,
                learning_rate=rate,
                seed=seed,
                config=config,
                axes=axes,
            )

    def _add_probe(self, config: SweepConfig, layout: Layout, total: int, values: dict[str, Any]) -> None:
        spec = RunSpec(
            run_id="",
            kind="probe",
            effective_batch_size=total,
            layout=layout,
            learning_rate=peak_learning_rates(config, self.axes, total)[0],
            seed=self.axes.seed[0],
            config=config,
            axes=values,
        )
        probe = _as_probe(spec, hardware=None)
        self.probes.setdefault(probe.run_id, probe)


def _solve(config: SweepConfig, *, b: int, n: int, given: str, value: int) -> tuple[Layout, int]:
    if config.strategy == "single" and n > 1:
        raise ConfigError(f"world_size={n} needs more than one rank, but strategy='single'; use ddp or fsdp")
    if given == "accumulation_steps":
        layout = Layout(micro_batch_size=b, world_size=n, accumulation_steps=value)
        total = effective_batch_size(micro_batch_size=b, world_size=n, accumulation_steps=value)
    else:
        total = value
        steps = solve_accumulation_steps(
            effective_batch_size=total,
            micro_batch_size=b,
            world_size=n,
            incomplete_groups=config.sweep.incomplete_groups,
        )
        layout = Layout(micro_batch_size=b, world_size=n, accumulation_steps=steps)
    if b > LARGEST_MICRO_BATCH or total > LARGEST_BATCH:
        raise ConfigError(
            f"micro_batch_size={b} makes an effective batch of {total}; at most {LARGEST_MICRO_BATCH} and "
            f"{LARGEST_BATCH} can be indexed"
        )
    if config.determinism == "bitwise":
        partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n, unit=config.grain)
    return layout, total


def _as_probe(spec: RunSpec, *, hardware: str | None) -> RunSpec:
    new_id = probe_id(
        spec.config,
        layout=spec.layout,
        effective_batch_size=spec.effective_batch_size,
        hardware=hardware,
    )
    return dataclasses.replace(spec, run_id=new_id)


def _skips_syncs(probe: RunSpec) -> bool:
    several = probe.layout.world_size > 1 and probe.layout.accumulation_steps > 1
    return several and probe.config.determinism != "bitwise"


def _syncing_every_micro_step(spec: RunSpec) -> RunSpec:
    options = dataclasses.replace(spec.config.strategy_options, sync_every_micro_step=True)
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, strategy_options=options))


def _execution_cost(layout: Layout) -> tuple[int, int]:
    return layout.world_size * layout.accumulation_steps, layout.world_size


def _first_that_fits(layouts: list[Layout], max_workers: int) -> Layout:
    return next((layout for layout in layouts if layout.world_size <= max_workers), layouts[0])


def _products(extra: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*extra.values()):
        yield dict(zip(extra, values, strict=True))


def _notes(config: SweepConfig, axes: Axes, runs: list[RunSpec]) -> list[str]:
    notes = []
    if axes.learning_rate is not None and config.learning_rate_scaling.rule != "none":
        notes.append(
            f"learning_rate_scaling.rule={config.learning_rate_scaling.rule} does not touch "
            "grid.learning_rate, which is absolute; use grid.learning_rate_multiplier to sweep around the "
            "scaled base"
        )
    if config.cluster.backend == "inline" and max(axes.world_size) > 1:
        notes.append(
            "cluster.backend=inline has one rank: grid.world_size above 1 will be listed as infeasible; "
            "cluster.backend=ray runs it"
        )
    too_large = sorted({run.effective_batch_size for run in runs if _exceeds_budget(run)})
    if too_large:
        sizes = ", ".join(map(str, too_large))
        notes.append(
            f"budget.max_examples is less than one optimizer step of B={sizes}: such runs end at once, "
            "without the target"
        )
    return notes


def _exceeds_budget(run: RunSpec) -> bool:
    limit = run.config.budget.max_examples
    return limit is not None and run.effective_batch_size > limit
