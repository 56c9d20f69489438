"""Time to target, predicted against run: points of the grid that were never run whole.

The convergence runs of a factorized sweep give optimizer steps to target per batch size; a probe of every
layout gives its seconds per optimizer step. Every grid point that the sweep did not execute is then run to
the target, and its training seconds are compared with (steps of its batch size) x (seconds per step of its
layout), as `gasweep` joins them. All in one sitting, each measurement with the machine to itself; a point's
probe is taken just before its run, so that both meet the machine in the same hour.

A measurement is taken again (three times at most), whatever it measured, when processes of others used more
than --others of the machine's processors meanwhile, or when a fixed piece of work, timed just before and just
after, took more than --slower of its usual time (a virtual machine's neighbours are seen in nothing else).
Noise-scale measuring is off: it costs steps of its own.

    python experiments/predicted_time.py --dir /tmp/predicted
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gasweep.analysis.cost import GridPoint as CostPoint
from gasweep.analysis.cost import PointCost, point_cost
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.steps_to_target import crossing
from gasweep.config import RunSpec, SweepPlan, parse_sweep_config, plan_sweep
from gasweep.results.queries import curve_points, stored_targets
from gasweep.results.reader import JournalReader
from gasweep.results.records import Throughput
from gasweep.results.step_time import step_times
from gasweep.scheduling.backend import Backend
from gasweep.scheduling.sweep import backend_for, run_sweep
from gasweep.tasks.normalize import normalize_task

MAX_TRIES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Above which a measurement is disturbed: others' share of the processors; times the usual time."""

    others: float
    slower: float


def config(hidden: int, target: float) -> dict[str, Any]:
    return {
        "name": "predicted",
        "task": {"_target_": "gasweep.tasks.FashionMnist", "hidden": hidden, "layers": 2},
        "grid": {
            "micro_batch_size": [32, 64, 128],
            "world_size": [1, 2],
            "accumulation_steps": [1, 2, 4],
            "learning_rate": [0.1],
            "seed": [0],
        },
        "target": {"value": target},
        "budget": {"max_optimizer_steps": 5000},
        "evaluation": {"max_examples": 1000, "batch_size": 1000},
        "noise_scale": {"enabled": False},
        "sweep": {"probe_optimizer_steps": 150, "probe_warmup_optimizer_steps": 15},
    }


class OneAtATime:
    """One backend for many sweeps of one plan each, so that every run has the machine to itself."""

    def __init__(self, settings: Any) -> None:
        self.backend = backend_for(settings)
        self.close = self.backend.close

    def lend(self, _settings: Any) -> Backend:
        self.backend.close = lambda: None  # type: ignore[method-assign]
        return self.backend


class Sitting:
    """Runs single runs and probes of one plan, each alone, and again where the machine was disturbed."""

    def __init__(self, plan: SweepPlan, *, directory: Path, backend: OneAtATime, limits: Limits) -> None:
        self.num_repeated = 0
        self.num_disturbed_kept = 0
        self._plan = plan
        self._directory = directory
        self._backend = backend
        self._limits = limits
        self._usual_s = median(reference_seconds() for _ in range(5))

    def measure(self, spec: RunSpec) -> Path:
        """The directory of the sweep of `spec` alone."""
        is_probe = spec.kind == "probe"
        alone = dataclasses.replace(
            self._plan,
            runs=[] if is_probe else [spec],
            probes=[spec] if is_probe else [],
            layouts={} if is_probe else {spec.run_id: [spec.layout]},
        )
        for attempt in range(MAX_TRIES):
            folder = self._directory / f"{spec.kind}-{spec.layout}-{attempt}"
            if not self._is_disturbed(alone, folder):
                return folder
            self.num_repeated += attempt + 1 < MAX_TRIES
        self.num_disturbed_kept += 1
        return folder

    def _is_disturbed(self, plan: SweepPlan, folder: Path) -> bool:
        """Run `plan` and say whether anything disturbed it."""
        slowest, others = reference_seconds(), seconds_of_others()
        started = time.perf_counter()
        run_sweep(plan, directory=folder, open_backend=self._backend.lend)
        available = (time.perf_counter() - started) * (os.cpu_count() or 1)
        others = (seconds_of_others() - others) / available
        slowest = max(slowest, reference_seconds())
        return others > self._limits.others or slowest > self._limits.slower * self._usual_s


def reference_seconds() -> float:
    """A fixed piece of work on one core, about a fifth of a second of matrix products."""
    a = np.ones((512, 512), dtype=np.float32)
    started = time.perf_counter()
    for _ in range(40):
        a @ a
    return time.perf_counter() - started


def seconds_of_others() -> float:
    """Processor seconds so far of processes that this one did not start, gone ones included."""
    table = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            table[int(entry.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    own = sum(ticks for pid, (_, ticks) in table.items() if _is_own(pid, table))
    busy = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    total = busy[0] + busy[1] + busy[2]
    return (total - own) / os.sysconf("SC_CLK_TCK")


def _is_own(pid: int, table: dict[int, tuple[int, int]]) -> bool:
    while pid in table:
        if pid == os.getpid():
            return True
        pid = table[pid][0]
    return False


def never_run(plan: SweepPlan, full: SweepPlan) -> list[RunSpec]:
    """The full grid's runs in layouts that the factorized sweep did not execute."""
    executed = {(run.effective_batch_size, run.layout) for run in plan.runs}
    return [run for run in full.runs if (run.effective_batch_size, run.layout) not in executed]


def steps_per_batch(directory: Path) -> dict[int, Estimate]:
    """Optimizer steps to target from the factorized sweep."""
    with JournalReader.open(directory) as reader:
        (rule,) = stored_targets(reader)
        steps = {}
        for run in reader.runs(current_only=True):
            found = crossing(curve_points(reader.evaluations(run.run_id), rule.metric), rule)
            steps[run.effective_batch_size] = Estimate(value=found.steps, low=found.low, high=found.high)
        return steps


def probed(directory: Path) -> tuple[CostPoint, Throughput]:
    with JournalReader.open(directory) as reader:
        (run,) = reader.runs()
        result = reader.result(run.run_id)
    assert result is not None
    assert result.throughput is not None
    return CostPoint(effective_batch_size=run.effective_batch_size, **result.layout), result.throughput


def training_seconds(directory: Path) -> float:
    """Seconds in optimizer steps up to the interpolated crossing of the target."""
    with JournalReader.open(directory) as reader:
        (rule,) = stored_targets(reader)
        (run,) = reader.runs()
        found = crossing(curve_points(reader.evaluations(run.run_id), rule.metric), rule)
        seconds = [record.seconds or 0.0 for record in reader.steps(run.run_id)]
    assert found.steps is not None
    whole = int(found.steps)
    rest = (found.steps - whole) * seconds[whole] if whole < len(seconds) else 0.0
    return sum(seconds[:whole]) + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--target", type=float, default=0.45)
    parser.add_argument("--others", type=float, default=0.03, help="share of the processors")
    parser.add_argument("--slower", type=float, default=1.15, help="times the usual time")
    options = parser.parse_args()
    data = config(options.hidden, options.target)
    settings = parse_sweep_config(data)
    plan = plan_sweep(settings, normalize_task=normalize_task)
    full = plan_sweep(parse_sweep_config(data, ["sweep.mode=full"]), normalize_task=normalize_task)
    shared = OneAtATime(settings.cluster)
    limits = Limits(others=options.others, slower=options.slower)
    sitting = Sitting(full, directory=options.dir, backend=shared, limits=limits)
    throughputs: dict[CostPoint, Throughput] = {}
    runs: dict[CostPoint, float] = {}
    try:
        only_runs = dataclasses.replace(plan, probes=[])
        outcome = run_sweep(only_runs, directory=options.dir / "factorized", open_backend=shared.lend)
        held_out = {str(spec.layout): spec for spec in never_run(outcome.plan, full)}
        for probe in plan.probes:
            point, throughput = probed(sitting.measure(probe))
            throughputs[point] = throughput
            if str(probe.layout) in held_out:
                runs[point] = training_seconds(sitting.measure(held_out[str(probe.layout)]))
    finally:
        shared.close()
    steps, times = steps_per_batch(options.dir / "factorized"), step_times(throughputs)
    report(
        [
            (
                point_cost(point, optimizer_steps=steps[point.effective_batch_size], step_time=times[point]),
                run,
            )
            for point, run in runs.items()
        ]
    )
    kept = f"{sitting.num_disturbed_kept} still disturbed at the last try and kept"
    print(f"{sitting.num_repeated} measurements repeated; {kept}")


def report(rows: list[tuple[PointCost, float]]) -> None:
    errors, inside = [], 0
    print(
        f"{'b x N x G':>10} {'B':>5} {'steps':>7} {'predicted s':>11} {'95 %':>17} {'run s':>8} {'error':>7}"
    )
    for cost, seconds in rows:
        point, wall = cost.point, cost.wall_clock_s
        assert None not in (wall.value, wall.low, wall.high), wall.reason
        error = wall.value / seconds - 1
        errors.append(abs(error))
        inside += wall.low <= seconds <= wall.high
        interval = f"{wall.low:.2f}-{wall.high:.2f}"
        layout = f"{point.micro_batch_size}x{point.world_size}x{point.accumulation_steps}"
        print(
            f"{layout:>10} {point.effective_batch_size:>5} {cost.optimizer_steps.value:>7.1f} "
            f"{wall.value:>11.2f} {interval:>17} {seconds:>8.2f} {error:>+7.1%}"
        )
    summary = {"points": len(rows), "median_error": median(errors), "largest": max(errors), "inside": inside}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
