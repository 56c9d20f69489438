"""What measuring the gradient noise costs: measured and plain optimizer steps of one run, in turn.

    python experiments/noise_overhead.py [--pairs 200] [--task NAME] [--found-only] [--device cpu|cuda]
        [--json FILE]

One trainer takes both kinds, in random order within each pair, so that neither what else the machine does nor
where its tensors happen to lie tells them apart. In a plain step there is no observer. A pair is a block of
steps of each: at k = 1, twice as many pairs of one step; at the default k, which the run finds itself in its
first steps, blocks of k, of which one step is measured. Prints the median extra time of the measuring blocks
relative to the plain ones, with its 95 % interval from the order statistics of the pairs, by the wall clock
and by this thread's processor time, on which other programs weigh least.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from medians import median_interval

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


WARMUP_PAIRS = 5


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


def spec(name: str, *, every: int | None) -> RunSpec:
    task, (b, n, g) = TASKS[name]
    config = SweepConfig(task=dict(task), strategy="single")
    config.data.sampling = "replacement"
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
    """One trainer, stepped with its observer or as if it had none."""

    def __init__(self, run: RunSpec, *, device: str) -> None:
        self.trainer: Trainer = build_trainer(run, process=ProcessContext(device=device))
        assert isinstance(self.trainer.observer, NoiseObserver)
        self.observer = self.trainer.observer
        self._device = torch.device(device)
        self._stepper: Any = Stepper(
            self.trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False)
        )
        self._due = self.observer.observes

    def find_spacing(self) -> int:
        while self.observer.spacing is None:
            self._stepper.attempt()
        return self.observer.spacing

    def step(self, kind: str) -> None:
        """plain: no observer; due, waiting: it is asked, as in a run, and measures, or does not."""
        if kind == "plain":
            self.observer.observes = lambda **_: False  # type: ignore[method-assign]
        else:
            self.observer.observes = (  # type: ignore[method-assign]
                lambda **asked: [self._due(**asked), kind == "due"][1]
            )
        self._stepper.attempt()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


def measure(name: str, *, every: int | None, pairs: int, device: str) -> list[Row]:
    loop = Loop(spec(name, every=every), device=device)
    block = loop.find_spacing()
    for kind in ("plain", "due") * WARMUP_PAIRS:
        loop.step(kind)
    rng = random.Random(0)
    taken = [timed_in_turn(loop, block, rng=rng) for _ in range(pairs)]
    layout = loop.trainer.parts.spec.layout
    rows = []
    for clock in CLOCKS:
        ratios = [pair["measuring"][clock] / pair["plain"][clock] - 1.0 for pair in taken]
        low, high = median_interval(ratios)
        rows.append(
            Row(
                task=name,
                layout=f"b={layout.micro_batch_size} N=1 G={layout.accumulation_steps}",
                every=block,
                pairs=pairs,
                step_ms=1e3 * float(np.median([pair["plain"]["wall"] / block for pair in taken])),
                clock=clock,
                overhead=float(np.median(ratios)),
                low=low,
                high=high,
            )
        )
    return rows


def timed_in_turn(loop: Loop, count: int, *, rng: random.Random) -> dict[str, dict[str, float]]:
    """Seconds of `count` optimizer steps of each kind by each clock, one step of each at a time."""
    taken = {side: dict.fromkeys(CLOCKS, 0.0) for side in ("plain", "measuring")}
    for index in range(count):
        kinds = {"plain": "plain", "measuring": "due" if index == 0 else "waiting"}
        for side in rng.sample(list(kinds), len(kinds)):
            began = {name: clock() for name, clock in CLOCKS.items()}
            loop.step(kinds[side])
            for name, clock in CLOCKS.items():
                taken[side][name] += clock() - began[name]
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--task", choices=tuple(TASKS), action="append")
    parser.add_argument("--found-only", action="store_true", help="not at k = 1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in arguments.task or TASKS:
        for every, factor in ((None, 1),) if arguments.found_only else ((1, 2), (None, 1)):
            found = measure(name, every=every, pairs=factor * arguments.pairs, device=arguments.device)
            rows += found
            print(*found, sep="\n", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
