"""The config that `size --out` writes: the sized run alone, changed where its source could not run it."""

from __future__ import annotations

from typing import Any

from gasweep.analysis.sizing import Sizing
from gasweep.cli.size_setting import one_setting
from gasweep.config.load import config_to_dict, parse_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.config.schema import SweepConfig
from gasweep.errors import ConfigError
from gasweep.tasks.normalize import normalize_task


def sized_config(sizing: Sizing, source: SweepConfig) -> tuple[SweepConfig, list[str]]:
    """A config that `gasweep run` takes as it is, and a line per setting of `source` that would not let it.

    Raises ConfigError without a learning rate, or where the layout is no run for another reason.
    """
    data = config_to_dict(source)
    data["name"] = f"{source.name}-sized"
    data["grid"] = _grid(sizing, source)
    data["sweep"]["incomplete_groups"] = sizing.incomplete_groups
    data["sweep"]["directory"] = None
    data["schedule"]["warmup_optimizer_steps"] = sizing.warmup_optimizer_steps
    # The rate is final; a rule left on would scale nothing, and `plan` would say so.
    data["learning_rate_scaling"]["rule"] = "none"
    changes = _room_for_ranks(data, sizing.world_size)
    if sizing.learning_rate is None:
        rates = data["grid"]["learning_rate"]
        changes.append(f"grid.learning_rate: {rates}, as its source does: nothing to scale it from was given")
    config = parse_sweep_config(data)
    plan_sweep(config, normalize_task=normalize_task)  # refuses a layout that is no run before it is written
    return config, changes


def _grid(sizing: Sizing, source: SweepConfig) -> dict[str, object]:
    rates = source.grid.get("learning_rate")
    if sizing.learning_rate is not None:
        rates = [sizing.learning_rate]
    if rates is None:
        raise ConfigError("--out needs a learning rate: give --learning-rate and --base-batch-size")
    return {
        "micro_batch_size": [sizing.micro_batch_size],
        "world_size": [sizing.world_size],
        "effective_batch_size": [sizing.effective_batch_size],
        "learning_rate": rates,
        "seed": source.grid.get("seed", [0]),
        **{path: [value] for path, value in one_setting(source).items()},
    }


def _room_for_ranks(data: dict[str, Any], world_size: int) -> list[str]:
    """Lift what `source` limits to fewer ranks: it was written for another grid."""
    changes = []
    cluster, why = data["cluster"], f"N = {world_size}"
    if world_size > 1 and cluster["backend"] == "inline":
        cluster["backend"] = "ray"
        changes.append(f"cluster.backend: ray, not inline, which has one rank: {why}")
    if world_size > 1 and data["strategy"] == "single":
        data["strategy"] = "ddp"
        changes.append(f"strategy: ddp, not single, which has one rank: {why}")
    workers = cluster["num_workers"]
    if workers is not None and workers < world_size:
        cluster["num_workers"] = world_size
        changes.append(f"cluster.num_workers: {world_size}, not {workers}: {why}")
    return changes
