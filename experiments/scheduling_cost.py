"""What scheduling costs and how fast it notices: leases, fresh processes, faults, probes timed beside work.

    python experiments/scheduling_cost.py [--repeats 10] [--out FILE]

Starts a local Ray cluster with two workers and runs the digits task on it. Prints a table of medians with
their range; a few minutes on two cores. A machine that does other work at the same time spreads everything.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gasweep.config.load import parse_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import ClusterConfig
from gasweep.results.records import Environment, RunResult
from gasweep.results.states import RunState
from gasweep.scheduling.backend import Attempt, Event, Failed, Finished, Progress
from gasweep.scheduling.leased import LeasedBackend, LeaseOptions
from gasweep.scheduling.ray_backend import open_ray_backend
from gasweep.scheduling.simulated import Script, SimulatedCluster, simulated_backend
from gasweep.scheduling.sweep import run_sweep

Row = tuple[str, list[float], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [*measure_ray(options.repeats), *measure_policy(options.repeats)]
    lines = [f"{'what':<66} {'median':>9} {'lowest':>9} {'highest':>9}  unit"]
    for name, values, unit in rows:
        middle = statistics.median(values)
        lines.append(f"{name:<66} {middle:>9.3g} {min(values):>9.3g} {max(values):>9.3g}  {unit}")
    text = "\n".join(lines)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def measure_ray(repeats: int) -> Iterator[Row]:
    started = time.monotonic()
    backend = open_ray_backend(ClusterConfig(num_workers=2))
    yield "start a local cluster", [time.monotonic() - started], "s"
    started = time.monotonic()
    wait_for_workers(backend, 2)
    yield "warm two workers (import torch, first DDP)", [time.monotonic() - started], "s"
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(backend, Path(folder))
        for world_size in (1, 2):
            runs.until_end(digits(world_size, steps=1))
            name = f"a run of one optimizer step, N={world_size}, used workers"
            yield name, [runs.timed(digits(world_size, steps=1)) for _ in range(repeats)], "s"
        yield "the same with isolation: fresh, N=1", list(fresh_runs(runs, repeats=max(2, repeats // 3))), "s"
        yield "SIGKILL of a rank to its lease's end, N=2", [runs.kill_a_rank() for _ in range(3)], "s"
        yield "that worker's replacement warm again", runs.replacements_s, "s"
        yield "a probe's step time beside a run, over alone", list(probe_bias(runs, repeats)), "ratio"
    started = time.monotonic()
    backend.close()
    yield "close", [time.monotonic() - started], "s"


def fresh_runs(runs: Runs, *, repeats: int) -> Iterator[float]:
    before = runs.backend._options
    runs.backend._options = dataclasses.replace(before, fresh=True)
    for _ in range(repeats):
        started = time.monotonic()
        runs.until_end(digits(1, steps=1))
        wait_for_workers(runs.backend, 2)
        yield time.monotonic() - started
    runs.backend._options = before


def probe_bias(runs: Runs, repeats: int) -> Iterator[float]:
    """Paired: the same probe alone, then beside a training run on the other worker."""
    (probe,) = plan_sweep(digits_config(1, steps=1, probes=True)).probes
    for _ in range(repeats):
        alone = seconds_per_step(runs.until_end(probe))
        long = digits(1, steps=10**7)
        runs.start(long)
        beside = seconds_per_step(runs.until_end(probe))
        runs.backend.stop(long.run_id)
        runs.wait_for_end(long.run_id)
        yield beside / alone


def seconds_per_step(result: RunResult) -> float:
    assert result.throughput is not None
    return result.throughput.seconds_per_optimizer_step


class Runs:
    """Runs single attempts on a backend."""

    def __init__(self, backend: LeasedBackend, folder: Path) -> None:
        self.backend = backend
        self.replacements_s: list[float] = []
        self._folder = folder
        self._number = 0

    def start(self, spec: RunSpec) -> Path:
        wait_for_workers(self.backend, spec.layout.world_size)
        self._number += 1
        directory = self._folder / str(self._number)
        directory.mkdir()
        self.backend.start(Attempt(spec=spec, number=self._number, run_directory=directory))
        return directory

    def until_end(self, spec: RunSpec) -> RunResult:
        self.start(spec)
        end = self.wait_for_end(spec.run_id)
        assert isinstance(end, Finished), end
        return end.result

    def timed(self, spec: RunSpec) -> float:
        started = time.monotonic()
        self.until_end(spec)
        return time.monotonic() - started

    def wait_for_end(self, run_id: str) -> Event:
        while True:
            for event in self.backend.poll(1.0):
                if isinstance(event, (Finished, Failed)) and event.run_id == run_id:
                    return event

    def kill_a_rank(self) -> float:
        spec = digits(2, steps=10**7)
        directory = self.start(spec)
        while not any(isinstance(event, Progress) for event in self.backend.poll(0.1)):
            pass
        log = (directory / "log.rank1.txt").read_text()
        killed = time.monotonic()
        os.kill(int(log.split(" pid ")[1].split()[0]), signal.SIGKILL)
        self.wait_for_end(spec.run_id)
        ended = time.monotonic()
        wait_for_workers(self.backend, 2)
        self.replacements_s.append(time.monotonic() - ended)
        return ended - killed


def wait_for_workers(backend: LeasedBackend, count: int) -> None:
    while backend.free_workers() < count:
        backend.poll(0.05)


def digits_config(world_size: int, *, steps: int, probes: bool = False):  # type: ignore[no-untyped-def]
    return parse_sweep_config(
        {
            "task": {"_target_": "gasweep.tasks.Digits"},
            "grid": {
                "micro_batch_size": [32],
                "world_size": [world_size],
                "accumulation_steps": [4],
                "learning_rate": [0.01],
                "seed": [0],
            },
            "target": {"value": 1e-9},
            "budget": {"max_optimizer_steps": steps},
            "sweep": {"throughput_probes": probes, "probe_optimizer_steps": 200},
            "checkpoint": {"every_s": None},
        }
    )


def digits(world_size: int, *, steps: int) -> RunSpec:
    (spec,) = plan_sweep(digits_config(world_size, steps=steps)).runs
    return spec


def measure_policy(repeats: int) -> Iterator[Row]:
    """On a simulated cluster of 512 workers: how full the policy keeps it, and how long the largest wait."""
    use, longest = [], []
    for seed in range(min(repeats, 5)):
        rng = random.Random(seed)
        sizes = [rng.choice([1] * 12 + [8] * 6 + [64, 256]) for _ in range(600)]
        durations = {str(i): rng.uniform(2, 40) for i in range(len(sizes))}
        base = digits(1, steps=1)
        specs = [
            dataclasses.replace(
                base, run_id=str(i), seed=i % 3, layout=dataclasses.replace(base.layout, world_size=size)
            )
            for i, size in enumerate(sizes)
        ]
        play = functools.partial(scripted, durations)
        makespan, last_large = simulate(specs, play)
        work = sum(spec.layout.world_size * durations[spec.run_id] for spec in specs)
        use.append(work / (512 * makespan))
        longest.append(last_large / makespan)
    yield "512 simulated workers, 600 runs of N in {1, 8, 64, 256}: share in use", use, "share"
    yield "the last run of 256 ranks ends at", longest, "of the sweep"


def scripted(durations: dict[str, float], spec: RunSpec, attempt: int) -> Script:
    duration_s = durations[spec.run_id]
    nowhere = Environment(hostname="simulated", device="simulated", num_threads=1, versions={})
    result = RunResult(
        run_id=spec.run_id,
        state=RunState.REACHED,
        reason=None,
        optimizer_steps=1,
        attempted_optimizer_steps=1,
        contributions=1,
        distinct_examples=1,
        evaluations=[],
        parameter_sha256=None,
        throughput=None,
        environment=nowhere,
        wall_s=duration_s,
        layout=dataclasses.asdict(spec.layout),
    )
    return Script(duration_s=duration_s, result=result)


def simulate(specs: list[RunSpec], play: Callable[[RunSpec, int], Script]) -> tuple[float, float]:
    """(seconds until all have ended, until the last of the largest has)."""
    from gasweep.scheduling.observer import Observer

    cluster = SimulatedCluster(play, num_nodes=64, workers_per_node=8)
    largest = max(spec.layout.world_size for spec in specs)
    ends: list[float] = []

    class Clock(Observer):
        def run_finished(self, spec: RunSpec, result: RunResult) -> None:
            if spec.layout.world_size == largest:
                ends.append(cluster.now_s())

    config = digits_config(1, steps=1)
    plan = dataclasses.replace(
        plan_sweep(config), runs=specs, layouts={spec.run_id: [spec.layout] for spec in specs}
    )
    with tempfile.TemporaryDirectory() as folder:
        run_sweep(
            plan,
            directory=Path(folder),
            observer=Clock(),
            open_backend=lambda config: simulated_backend(cluster, LeaseOptions()),
            now_s=cluster.now_s,
        )
    return cluster.now_s(), max(ends)


if __name__ == "__main__":
    main()
