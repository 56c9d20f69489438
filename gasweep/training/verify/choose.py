"""Which effective batch and which of its layouts `gasweep verify` compares."""

from __future__ import annotations

import dataclasses

from gasweep.batching import partition_step
from gasweep.config.plan import plan_sweep
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.errors import BatchError, ConfigError

MAX_LAYOUTS = 8


def choose_runs(
    config: SweepConfig,
    *,
    effective_batch_size: int | None = None,
    max_world_size: int = 2,
    max_layouts: int = MAX_LAYOUTS,
) -> list[RunSpec]:
    """The same convergence run in several layouts, the one in a single group first.

    Taken from the grid: its first run at `effective_batch_size` (None: at the smallest B of the grid that can
    be cut at all). Its layouts are the grid's own for that B, as far as `max_world_size` ranks go, and others
    that a grid would not hold: one group, several groups on one and on two ranks, and groups that B does not
    fill. In bitwise mode only micro-batches of whole grains.

    Raises ConfigError when the grid has no run at `effective_batch_size`, or B cannot be cut in two ways.
    """
    plan = plan_sweep(config)
    batches = sorted({run.effective_batch_size for run in plan.runs})
    if effective_batch_size is not None and effective_batch_size not in batches:
        raise ConfigError(
            f"effective_batch_size={effective_batch_size} is not in the grid; its effective batches are "
            f"{', '.join(str(b) for b in batches)}"
        )
    wanted = batches if effective_batch_size is None else [effective_batch_size]
    for total in wanted:
        run = next(run for run in plan.runs if run.effective_batch_size == total)
        own = [point.layout for point in plan.points if point.effective_batch_size == total]
        layouts = _layouts(run, own, max_world_size=max_world_size)[:max_layouts]
        if len(layouts) > 1:
            return [dataclasses.replace(run, layout=layout) for layout in layouts]
    raise ConfigError(
        f"effective_batch_size={wanted[-1]} has one layout only"
        + (f" of whole grains (grain={config.grain})" if config.determinism == "bitwise" else "")
        + "; verify needs a larger one"
    )


def _layouts(run: RunSpec, own: list[Layout], *, max_world_size: int) -> list[Layout]:
    total = run.effective_batch_size
    unit = run.config.grain if run.config.determinism == "bitwise" else 1
    whole = -(-total // unit) * unit
    wanted = [(whole, 1)]
    wanted += [(min(layout.micro_batch_size, whole), layout.world_size) for layout in own]
    for share in (2, 4, 3):
        size = max(unit, total // share // unit * unit)
        wanted += [(size, 1), (size, 2)]
    wanted += [(unit, 4), (unit, 1)]
    if run.config.strategy == "single":
        wanted = [(b, n) for b, n in wanted if n == 1]
    found: list[Layout] = []
    for b, n in wanted:
        layout = _solve(total, b, n, unit) if n <= max_world_size else None
        if layout is not None and layout not in found:
            found.append(layout)
    return found


def _solve(total: int, b: int, n: int, unit: int) -> Layout | None:
    try:
        partition = partition_step(effective_batch_size=total, micro_batch_size=b, world_size=n, unit=unit)
    except BatchError:
        return None
    return Layout(micro_batch_size=b, world_size=n, accumulation_steps=partition.accumulation_steps)
