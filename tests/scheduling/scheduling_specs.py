"""Run specs for scheduling tests: what a run does is told by its `task` section."""

from __future__ import annotations

import dataclasses
from typing import Any

from gasweep.config.plan import GridPoint, SweepPlan
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import ClusterConfig, SweepConfig, SweepOptions


def make_config(**cluster: Any) -> SweepConfig:
    return SweepConfig(cluster=ClusterConfig(**cluster), sweep=SweepOptions(max_retries=1))


def make_spec(
    run_id: str,
    *,
    world_size: int = 1,
    kind: str = "convergence",
    behaviour: str = "ok",
    config: SweepConfig | None = None,
    micro_batch_size: int = 4,
    learning_rate: float = 0.1,
    seed: int = 0,
    **arguments: Any,
) -> RunSpec:
    config = config or make_config()
    task = {"behaviour": behaviour, **arguments}
    return RunSpec(
        run_id=run_id,
        kind=kind,  # type: ignore[arg-type]
        effective_batch_size=micro_batch_size * world_size,
        layout=Layout(micro_batch_size=micro_batch_size, world_size=world_size, accumulation_steps=1),
        learning_rate=learning_rate,
        seed=seed,
        config=dataclasses.replace(config, task=task),
    )


def make_plan(specs: list[RunSpec], config: SweepConfig | None = None) -> SweepPlan:
    """A plan that is exactly these runs (ids kept, one layout each)."""
    runs = [spec for spec in specs if spec.kind == "convergence"]
    points = [
        GridPoint(
            layout=spec.layout,
            effective_batch_size=spec.effective_batch_size,
            learning_rate=spec.learning_rate,
            seed=spec.seed,
            axes={},
            run_id=spec.run_id,
        )
        for spec in runs
    ]
    return SweepPlan(
        config=config or (specs[0].config if specs else make_config()),
        points=points,
        runs=runs,
        probes=[spec for spec in specs if spec.kind == "probe"],
        layouts={spec.run_id: [spec.layout] for spec in runs},
        rejected=[],
    )
