"""Time to target, predicted against run: points of the grid that were never run whole.

The convergence runs of a factorized sweep give optimizer steps to target per batch size; probes of every
layout give its seconds per optimizer step. Every grid point that the sweep did not execute is then run to the
target, and its training seconds are compared with (steps of its batch size) x (seconds per step of its
layout), as `gasweep` joins them. All in one sitting, each measurement alone on the machine.

A machine that is shared, by its processors or by what they share with neighbours nobody sees, changes its
speed within minutes. So the grid is gone through in rounds, to and fro: in each, every layout is probed and
its point is run right before or after, in turn; the mean of a layout's probes is set against the mean of its
runs, and nothing is measured again or left out. What a single run was off is printed beside.
Noise-scale measuring is off: it costs steps of its own.

    python experiments/predicted_time.py --dir /tmp/predicted [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FullRun:
    steps: float
    seconds: float


class OneAtATime:
    """One backend for many sweeps of one plan each, so that every run has the machine to itself."""

    def __init__(self, settings: Any) -> None:
        self.backend = backend_for(settings)
        self.close = self.backend.close

    def lend(self, _settings: Any) -> Backend:
        self.backend.close = lambda: None  # type: ignore[method-assign]
        return self.backend


class Sitting:
    """Runs single runs and probes of one plan, each alone, and notes what others took of the processors."""

    def __init__(self, plan: SweepPlan, *, directory: Path, backend: OneAtATime) -> None:
        self.most_others = 0.0
        self._plan = plan
        self._directory = directory
        self._backend = backend

    def measure(self, spec: RunSpec, *, number: int) -> Path:
        """The directory of the sweep of `spec` alone."""
        is_probe = spec.kind == "probe"
        alone = dataclasses.replace(
            self._plan,
            runs=[] if is_probe else [spec],
            probes=[spec] if is_probe else [],
            layouts={} if is_probe else {spec.run_id: [spec.layout]},
        )
        folder = self._directory / f"{spec.kind}-{spec.layout}-{number}"
        others, started = seconds_of_others(), time.perf_counter()
        run_sweep(alone, directory=folder, open_backend=self._backend.lend)
        available = (time.perf_counter() - started) * (os.cpu_count() or 1)
        self.most_others = max(self.most_others, (seconds_of_others() - others) / available)
        return folder

    def rounds(
        self, probes: Sequence[RunSpec], held_out: Mapping[str, RunSpec], *, count: int
    ) -> tuple[dict[CostPoint, list[Throughput]], dict[CostPoint, list[FullRun]]]:
        """Every layout's probes, and the runs of the held-out point that it belongs to."""
        throughputs: dict[CostPoint, list[Throughput]] = defaultdict(list)
        runs: dict[CostPoint, list[FullRun]] = defaultdict(list)
        for number in range(count):
            for probe in probes if number % 2 == 0 else reversed(probes):
                run = held_out.get(str(probe.layout))
                in_turn = [spec for spec in (probe, run) if spec is not None]
                folders = {}
                for spec in in_turn if number % 2 == 0 else reversed(in_turn):
                    folders[spec.kind] = self.measure(spec, number=number)
                point, throughput = probed(folders["probe"])
                throughputs[point].append(throughput)
                if run is not None:
                    runs[point].append(run_to_target(folders[run.kind]))
            print(f"round {number + 1} of {count} done", file=sys.stderr, flush=True)
        return throughputs, runs


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


def run_to_target(directory: Path) -> FullRun:
    """Optimizer steps, and seconds in them, up to the interpolated crossing of the target."""
    with JournalReader.open(directory) as reader:
        (rule,) = stored_targets(reader)
        (run,) = reader.runs()
        found = crossing(curve_points(reader.evaluations(run.run_id), rule.metric), rule)
        seconds = [record.seconds or 0.0 for record in reader.steps(run.run_id)]
    assert found.steps is not None
    whole = int(found.steps)
    rest = (found.steps - whole) * seconds[whole] if whole < len(seconds) else 0.0
    return FullRun(steps=found.steps, seconds=sum(seconds[:whole]) + rest)


def pooled(rounds: Sequence[Throughput]) -> Throughput:
    """One probe out of several: the mean of their means, and its standard error from how they scatter."""
    means = [throughput.mean_seconds for throughput in rounds]
    if len(means) == 1:
        return rounds[0]
    return dataclasses.replace(
        rounds[0],
        num_timed_optimizer_steps=sum(throughput.num_timed_optimizer_steps for throughput in rounds),
        seconds_per_optimizer_step=median(means),
        seconds_per_optimizer_step_low=min(means),
        seconds_per_optimizer_step_high=max(means),
        seconds_per_optimizer_step_mean=mean(means),
        seconds_per_optimizer_step_mean_error=stdev(means) / math.sqrt(len(means)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--target", type=float, default=0.45)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.dir.exists() and any(options.dir.iterdir()):
        parser.error(f"--dir={options.dir} is not empty: a sitting is measured in one go, into a new folder")
    data = config(options.hidden, options.target)
    settings = parse_sweep_config(data)
    plan = plan_sweep(settings, normalize_task=normalize_task)
    full = plan_sweep(parse_sweep_config(data, ["sweep.mode=full"]), normalize_task=normalize_task)
    shared = OneAtATime(settings.cluster)
    sitting = Sitting(full, directory=options.dir, backend=shared)
    try:
        only_runs = dataclasses.replace(plan, probes=[])
        outcome = run_sweep(only_runs, directory=options.dir / "factorized", open_backend=shared.lend)
        held_out = {str(spec.layout): spec for spec in never_run(outcome.plan, full)}
        throughputs, runs = sitting.rounds(plan.probes, held_out, count=options.rounds)
    finally:
        shared.close()
    steps = steps_per_batch(options.dir / "factorized")
    times = step_times({point: pooled(found) for point, found in throughputs.items()})
    report(
        [
            (
                point_cost(point, optimizer_steps=steps[point.effective_batch_size], step_time=times[point]),
                found,
            )
            for point, found in runs.items()
        ],
        probes=throughputs,
    )
    print(f"others used at most {sitting.most_others:.1%} of the processors in any measurement")


def report(
    rows: Sequence[tuple[PointCost, list[FullRun]]], *, probes: Mapping[CostPoint, list[Throughput]]
) -> None:
    """One row per point: its cost against the mean of its runs, and every round's run against its probe."""
    errors, inside, alone, alone_inside = [], 0, [], 0
    print(
        f"{'b x N x G':>10} {'B':>5} {'steps':>7} {'ran':>7} {'predicted s':>11} {'95 %':>13} {'run s':>7} "
        f"{'error':>6}  each round's run by its probe"
    )
    for cost, found in rows:
        point, wall, steps = cost.point, cost.wall_clock_s, cost.optimizer_steps.value
        assert wall.value is not None, wall.reason
        assert None not in (wall.low, wall.high, steps)
        seconds = [run.seconds for run in found]
        error = wall.value / mean(seconds) - 1
        errors.append(abs(error))
        inside += wall.low <= mean(seconds) <= wall.high
        alone_inside += sum(wall.low <= run <= wall.high for run in seconds)
        single = [
            steps * probe.mean_seconds / run - 1 for probe, run in zip(probes[point], seconds, strict=True)
        ]
        alone += map(abs, single)
        layout = f"{point.micro_batch_size}x{point.world_size}x{point.accumulation_steps}"
        print(
            f"{layout:>10} {point.effective_batch_size:>5} {steps:>7.1f} {found[0].steps:>7.1f} "
            f"{wall.value:>11.2f} {f'{wall.low:.2f}-{wall.high:.2f}':>13} {mean(seconds):>7.2f} "
            f"{error:>+6.1%}  " + " ".join(f"{each:+.0%}" for each in single)
        )
    summary = {"points": len(rows), "median_error": median(errors), "largest": max(errors), "inside": inside}
    single_runs = {"runs": len(alone), "median_error": median(alone), "inside": alone_inside}
    print(json.dumps(summary | {"single": single_runs}))


if __name__ == "__main__":
    main()
