"""Time to target, predicted against run: points of the grid that were never run whole.

A factorized sweep gives optimizer steps to target per batch size and seconds per optimizer step per layout.
Every grid point that it did not execute is then run to the target, alone, in the same sitting, and its
training seconds are compared with (steps of its batch size) x (seconds per step of its layout).

    python experiments/predicted_time.py --dir /tmp/predicted
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from statistics import median
from typing import Any

from gasweep.analysis.cost import GridPoint as CostPoint
from gasweep.analysis.cost import PointCost, point_cost
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.steps_to_target import crossing
from gasweep.config import RunSpec, SweepPlan, parse_sweep_config, plan_sweep
from gasweep.results.queries import curve_points, measured_layouts, stored_targets
from gasweep.results.reader import JournalReader
from gasweep.scheduling.backend import Backend
from gasweep.scheduling.sweep import backend_for, run_sweep
from gasweep.tasks.normalize import normalize_task


def config(hidden: int, target: float) -> dict[str, Any]:
    return {
        "name": "predicted",
        "task": {"_target_": "gasweep.tasks.FashionMnist", "hidden": hidden, "layers": 2},
        "grid": {
            "micro_batch_size": [16, 32, 64, 128],
            "world_size": [1, 2],
            "accumulation_steps": [1, 2, 4],
            "learning_rate": [0.1],
            "seed": [0],
        },
        "target": {"value": target},
        "budget": {"max_optimizer_steps": 5000},
        "evaluation": {"max_examples": 1000, "batch_size": 1000},
        "sweep": {"probe_optimizer_steps": 60, "probe_warmup_optimizer_steps": 10},
    }


class OneAtATime:
    """One backend for many sweeps of one plan each, so that every run has the machine to itself."""

    def __init__(self, settings: Any) -> None:
        self.backend = backend_for(settings)
        self.close = self.backend.close

    def lend(self, _settings: Any) -> Backend:
        self.backend.close = lambda: None  # type: ignore[method-assign]
        return self.backend


def never_run(plan: SweepPlan, full: SweepPlan) -> list[RunSpec]:
    """The full grid's runs in layouts that the factorized sweep did not execute."""
    executed = {(run.effective_batch_size, run.layout) for run in plan.runs}
    return [run for run in full.runs if (run.effective_batch_size, run.layout) not in executed]


def predictions(directory: Path) -> dict[tuple[int, int, int], PointCost]:
    """Cost of every layout from the factorized sweep alone."""
    with JournalReader.open(directory) as reader:
        (rule,) = stored_targets(reader)
        steps = {}
        for run in reader.runs(current_only=True):
            if run.kind == "convergence":
                found = crossing(curve_points(reader.evaluations(run.run_id), rule.metric), rule)
                steps[run.effective_batch_size] = Estimate(value=found.steps, low=found.low, high=found.high)
        return {
            _key(layout.point): point_cost(
                layout.point,
                optimizer_steps=steps[layout.point.effective_batch_size],
                step_time=layout.step_time,
            )
            for layout in measured_layouts(reader)
        }


def _key(point: CostPoint) -> tuple[int, int, int]:
    return point.micro_batch_size, point.world_size, point.accumulation_steps


def training_seconds(directory: Path, run_id: str) -> float:
    """Seconds in optimizer steps up to the interpolated crossing of the target."""
    with JournalReader.open(directory) as reader:
        (rule,) = stored_targets(reader)
        found = crossing(curve_points(reader.evaluations(run_id), rule.metric), rule)
        seconds = [record.seconds or 0.0 for record in reader.steps(run_id)]
    assert found.steps is not None
    whole = int(found.steps)
    rest = (found.steps - whole) * seconds[whole] if whole < len(seconds) else 0.0
    return sum(seconds[:whole]) + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--points", type=int, default=17)
    options = parser.parse_args()
    data = config(options.hidden, options.target)
    settings = parse_sweep_config(data)
    plan = plan_sweep(settings, normalize_task=normalize_task)
    full = plan_sweep(parse_sweep_config(data, ["sweep.mode=full"]), normalize_task=normalize_task)
    shared = OneAtATime(settings.cluster)
    rows = []
    try:
        outcome = run_sweep(plan, directory=options.dir / "factorized", open_backend=shared.lend)
        costs = predictions(options.dir / "factorized")
        for spec in never_run(outcome.plan, full)[: options.points]:
            folder = options.dir / spec.run_id
            alone = dataclasses.replace(full, runs=[spec], probes=[], layouts={spec.run_id: [spec.layout]})
            run_sweep(alone, directory=folder, open_backend=shared.lend)
            layout = spec.layout
            key = (layout.micro_batch_size, layout.world_size, layout.accumulation_steps)
            rows.append(
                (str(layout), spec.effective_batch_size, costs[key], training_seconds(folder, spec.run_id))
            )
    finally:
        shared.close()
    report(rows)


def report(rows: list[tuple[str, int, PointCost, float]]) -> None:
    errors, inside = [], 0
    print(
        f"{'b x N x G':>10} {'B':>5} {'steps':>7} {'predicted s':>11} {'95 %':>17} {'run s':>8} {'error':>7}"
    )
    for layout, batch, cost, seconds in rows:
        wall = cost.wall_clock_s
        assert None not in (wall.value, wall.low, wall.high), wall.reason
        error = wall.value / seconds - 1
        errors.append(abs(error))
        inside += wall.low <= seconds <= wall.high
        interval = f"{wall.low:.2f}-{wall.high:.2f}"
        print(
            f"{layout:>10} {batch:>5} {cost.optimizer_steps.value:>7.1f} {wall.value:>11.2f} {interval:>17} "
            f"{seconds:>8.2f} {error:>+7.1%}"
        )
    summary = {"points": len(rows), "median_error": median(errors), "largest": max(errors), "inside": inside}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
