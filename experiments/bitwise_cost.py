"""What does `determinism: bitwise` cost beside `fast`, in step time and memory?

    python experiments/bitwise_cost.py [--pairs 15] [--grain 8] [--output FILE]

Time: both modes train the default `text_lm` with AdamW and clipping on the same examples, at b = grain
(G = 8) and at b = 8 x grain (G = 1); their optimizer steps alternate in one process, so that whatever
else the machine does falls on both. Printed: median step times, and the median and 95 % interval (order
statistics) of the ratio of neighbouring steps, in wall time and in CPU time.

Memory: a larger `text_lm`, one fresh process per mode and b: growth of the resident set from before the model
is built to its peak over three optimizer steps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import OptimizerConfig, SweepConfig
from gasweep.training import ProcessContext
from gasweep.training.bitwise.environment import kernels_of
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.peak_memory import PeakMemory

GROUPS = 8
LARGE = {"width": 512, "depth": 4, "heads": 8, "context": 32}
LARGE_GRAIN = 4
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of alternating steps, fast and bitwise."""

    fast: list[float]
    bitwise: list[float]

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Median of paired ratios, and its 95 % interval by order statistics."""
        ratios = sorted(b / f for f, b in zip(self.fast, self.bitwise, strict=True))
        spread = 1.96 * math.sqrt(len(ratios)) / 2
        low = max(0, math.floor(len(ratios) / 2 - spread) - 1)
        high = min(len(ratios) - 1, math.ceil(len(ratios) / 2 + spread))
        return float(np.median(ratios)), ratios[low], ratios[high]


def spec_of(determinism: str, *, grain: int, b: int, task: dict[str, Any]) -> RunSpec:
    total = GROUPS * grain
    config = SweepConfig(
        task={"_target_": "gasweep.tasks.TextLm", **task},
        optimizer=OptimizerConfig(name="adamw", max_grad_norm=1.0),
        determinism=determinism,
        grain=grain,
    )
    config.noise_scale.enabled = False
    config.budget.max_optimizer_steps = 1
    return RunSpec(
        run_id="cost",
        kind="convergence",
        effective_batch_size=total,
        layout=Layout(micro_batch_size=b, world_size=1, accumulation_steps=total // b),
        learning_rate=1e-3,
        seed=0,
        config=config,
    )


def stepper(spec: RunSpec) -> Callable[[], None]:
    """Takes the run's next optimizer step, under its kernels."""
    trainer = build_trainer(spec, process=ProcessContext())
    done = 0

    def step() -> None:
        nonlocal done
        with kernels_of(spec, device=torch.device("cpu")):
            plan = trainer.planner.plan(
                optimizer_step=done,
                contributions=done * spec.effective_batch_size,
                effective_batch_size=spec.effective_batch_size,
                micro_batch_size=spec.layout.micro_batch_size,
            )
            trainer.step.run(plan, learning_rate=1e-3)
        done += 1

    return step


def time_pairs(*, grain: int, b: int, pairs: int) -> tuple[Timing, Timing]:
    """(wall, CPU) of `pairs` alternating steps after three warm-up steps each."""
    torch.set_num_threads(1)
    steps = [stepper(spec_of(mode, grain=grain, b=b, task={})) for mode in ("fast", "bitwise")]
    for step in steps * 3:
        step()
    wall: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for _ in range(pairs):
        for mode, step in enumerate(steps):
            started, started_cpu = time.perf_counter(), time.process_time()
            step()
            wall[mode].append(time.perf_counter() - started)
            cpu[mode].append(time.process_time() - started_cpu)
    return Timing(fast=wall[0], bitwise=wall[1]), Timing(fast=cpu[0], bitwise=cpu[1])


def peak_growth(process: ProcessContext, *, spec: RunSpec) -> tuple[int, int]:
    """(bytes by which the resident set grew at its peak, parameters of the model)."""
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read()
    step = stepper(spec)
    for _ in range(3):
        step()
    after = memory.read()
    if before is None or after is None:
        raise SystemExit("the resident set's peak cannot be reset on this system")
    parameters = build_trainer(spec, process=process).parts.parameters
    return after - before, sum(tensor.numel() for _, tensor in parameters)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--grain", type=int, default=8)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        f"time: text_lm, AdamW, clipping, grain {options.grain}, B={GROUPS * options.grain}, one thread, "
        f"{options.pairs} pairs of steps",
        f"{'b':>4}  {'G':>2}  {'clock':<5}  {'fast, ms':>8}  {'bitwise, ms':>11}  bitwise / fast",
    ]
    for b in (options.grain, GROUPS * options.grain):
        timings = time_pairs(grain=options.grain, b=b, pairs=options.pairs)
        for clock, timing in zip(("wall", "CPU"), timings, strict=True):
            middle, low, high = timing.ratio
            lines.append(
                f"{b:>4}  {GROUPS * options.grain // b:>2}  {clock:<5}  {np.median(timing.fast) * 1e3:8.1f}  "
                f"{np.median(timing.bitwise) * 1e3:11.1f}  {middle:.2f} [{low:.2f}, {high:.2f}]"
            )
    lines += ["", f"memory: text_lm {LARGE}, AdamW, clipping, grain {LARGE_GRAIN}, B={GROUPS * LARGE_GRAIN}"]
    lines.append(f"{'b':>4}  {'G':>2}  {'fast, MiB':>9}  {'bitwise, MiB':>12}  of parameters, MiB")
    for b in (LARGE_GRAIN, GROUPS * LARGE_GRAIN):
        grown = []
        for mode in ("fast", "bitwise"):
            with LocalRanks() as ranks:
                spec = spec_of(mode, grain=LARGE_GRAIN, b=b, task=LARGE)
                (outcome,) = ranks.run(1, peak_growth, spec=spec)
                grown.append(outcome)
        (fast, count), (bitwise, _) = grown
        groups = GROUPS * LARGE_GRAIN // b
        lines.append(f"{b:>4}  {groups:>2}  {fast / MIB:9.0f}  {bitwise / MIB:12.0f}  {4 * count / MIB:.0f}")
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
