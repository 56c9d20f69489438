"""What measuring the gradient noise costs: measured and plain optimizer steps of one run, in turn.

    python experiments/noise_overhead.py [--pairs 60] [--task NAME] [--device cpu|cuda] [--json FILE]

Two trainers of the same run, one measuring, take optimizer steps in turn, one each in random order, so that
whatever else the machine does falls on both. A pair is a block of steps of each: at k = 1, eight times as
many pairs of one step; at the default k, which the run finds itself in its first steps, blocks of k. Prints
the median extra time of the measuring blocks relative to the plain ones, with its 95 % interval from the
order statistics of the pairs, by the wall clock and by this thread's processor time, on which other programs
weigh least.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.training.advance import Stepper
from gasweep.training.build import Trainer, build_trainer
from gasweep.training.gradient_noise_observer import NoiseObserver
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

TASKS: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "text_lm": ({"_target_": "gasweep.tasks.TextLm"}, (16, 1, 4)),
    "text_lm adamw": ({"_target_": "gasweep.tasks.TextLm"}, (16, 1, 4)),
    "text_lm wide": ({"_target_": "gasweep.tasks.TextLm", "depth": 4, "width": 256}, (8, 1, 2)),
    "fashion_mnist": ({"_target_": "gasweep.tasks.FashionMnist", "hidden": 256}, (1024, 1, 8)),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    task: str
    layout: str
    every: int
    pairs: int
    step_ms: float
    clock: str
    overhead: float
    low: float
    high: float

    def __str__(self) -> str:
        percent = [f"{100 * value:+.2f}" for value in (self.overhead, self.low, self.high)]
        return (
            f"{self.task:14s} {self.layout:18s} step {self.step_ms:6.1f} ms  k={self.every:<3d} "
            f"{self.pairs:4d} pairs  {self.clock:4s} {percent[0]} % [{percent[1]}, {percent[2]}]"
        )


def spec(name: str, *, measures: bool, every: int | None) -> RunSpec:
    task, (b, n, g) = TASKS[name]
    config = SweepConfig(task=dict(task), strategy="single")
    config.data.sampling = "replacement"
    config.noise_scale.enabled = measures
    config.budget.max_optimizer_steps = 10**9
    config.noise_scale.every_optimizer_steps = every
    if name.endswith("adamw"):
        config.optimizer.name = "adamw"
    return RunSpec(
        run_id="overhead",
        kind="convergence",
        effective_batch_size=b * n * g,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=g),
        learning_rate=1e-3,
        seed=0,
        config=config,
    )


class Loop:
    """One trainer, stepped."""

    def __init__(self, run: RunSpec, *, device: str) -> None:
        self.trainer: Trainer = build_trainer(run, process=ProcessContext(device=device))
        self._device = torch.device(device)
        self._stepper = Stepper(
            self.trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False)
        )

    def step(self, count: int) -> None:
        for _ in range(count):
            self._stepper.attempt()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


def measure(name: str, *, every: int | None, pairs: int, device: str) -> list[Row]:
    plain = Loop(spec(name, measures=False, every=None), device=device)
    measuring = Loop(spec(name, measures=True, every=every), device=device)
    observer = measuring.trainer.observer
    assert isinstance(observer, NoiseObserver)
    plain.step(5)
    measuring.step(5)
    while observer.spacing is None:
        measuring.step(1)
    block = observer.spacing
    rng = random.Random(0)
    taken = [timed_in_turn([plain, measuring], block, rng=rng) for _ in range(pairs)]
    layout = measuring.trainer.parts.spec.layout
    rows = []
    for clock in CLOCKS:
        ratios = [pair[measuring][clock] / pair[plain][clock] - 1.0 for pair in taken]
        low, high = median_interval(ratios)
        rows.append(
            Row(
                task=name,
                layout=f"b={layout.micro_batch_size} N=1 G={layout.accumulation_steps}",
                every=block,
                pairs=pairs,
                step_ms=1e3 * float(np.median([pair[plain]["wall"] / block for pair in taken])),
                clock=clock,
                overhead=float(np.median(ratios)),
                low=low,
                high=high,
            )
        )
    return rows


def timed_in_turn(loops: list[Loop], count: int, *, rng: random.Random) -> dict[Loop, dict[str, float]]:
    """Seconds of `count` optimizer steps of each loop by each clock, one step of each at a time."""
    taken = {loop: dict.fromkeys(CLOCKS, 0.0) for loop in loops}
    for _ in range(count):
        for loop in rng.sample(loops, len(loops)):
            began = {name: clock() for name, clock in CLOCKS.items()}
            loop.step(1)
            for name, clock in CLOCKS.items():
                taken[loop][name] += clock() - began[name]
    return taken


def median_interval(values: list[float]) -> tuple[float, float]:
    """A 95 % interval for the median from order statistics (normal approximation of the binomial)."""
    ordered, n = sorted(values), len(values)
    reach = 1.96 * math.sqrt(n) / 2.0
    low, high = math.floor(n / 2.0 - reach), math.ceil(n / 2.0 + reach)
    return ordered[max(low, 0)], ordered[min(high, n - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--task", choices=tuple(TASKS), action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in arguments.task or TASKS:
        for every, factor in ((1, 8), (None, 1)):
            found = measure(name, every=every, pairs=factor * arguments.pairs, device=arguments.device)
            rows += found
            print(*found, sep="\n", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
