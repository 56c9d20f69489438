"""What the communication meter costs: optimizer steps with and without it, in turn, in one run.

Two ranks train one run; in every other optimizer step, in random order within each pair, counting and reading
the meter do nothing. The same trainer takes both, so that neither what else the machine does nor where its
tensors happen to lie tells them apart. Prints the median extra time of the metered step with its 95 %
interval (order statistics of the pairs), by the wall clock and by the processor time of one rank, and for
comparison what a step's calls to the meter take alone.

    python experiments/meter_overhead.py [--pairs 1000] [--strategies ddp fsdp] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from medians import median_interval

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.meter import CommunicationMeter, StepTraffic, Traffic
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

TASK = {"_target_": "link.LayeredMnist", "hidden": 1024, "layers": 2}
LAYOUT = Layout(micro_batch_size=64, world_size=2, accumulation_steps=4)
WARMUP_PAIRS = 5
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def spec_of(strategy: str) -> RunSpec:
    config = SweepConfig(task=dict(TASK), strategy=strategy)
    config.noise_scale.enabled = False
    return RunSpec(
        run_id="meter",
        kind="convergence",
        effective_batch_size=LAYOUT.micro_batch_size * LAYOUT.world_size * LAYOUT.accumulation_steps,
        layout=LAYOUT,
        learning_rate=0.01,
        seed=0,
        config=config,
    )


def compare(process: ProcessContext, *, spec: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Seconds of each step of both trainers on this rank, and the calls of one metered step."""
    trainer = build_trainer(RunSpec.from_dict(spec), process=process)
    stepper = Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))
    order = random.Random(0)  # the same on every rank
    seconds: dict[str, list[dict[str, float]]] = {"metered": [], "plain": []}
    calls = 0
    for pair in range(WARMUP_PAIRS + pairs):
        for name in order.sample(list(seconds), len(seconds)):
            with contextlib.nullcontext() if name == "metered" else silenced(stepper, trainer):
                began = {clock: now() for clock, now in CLOCKS.items()}
                stepper.attempt()
                took = {clock: now() - began[clock] for clock, now in CLOCKS.items()}
            if name == "metered":
                traffic = stepper.traffic
                calls = sum(traffic.model.calls.values()) + sum(traffic.control.calls.values())
            if pair >= WARMUP_PAIRS:
                seconds[name].append(took)
    return {**seconds, "calls": calls}


@contextlib.contextmanager
def silenced(stepper: Any, trainer: Any) -> Iterator[None]:
    """In the block the meter's methods are there and do nothing."""
    nothing = StepTraffic(model=Traffic(), control=Traffic(), unsynced_bytes=0)
    meter = trainer.parts.strategy.meter
    meter.count = meter.reset = lambda *_, **__: None
    stepper._metered = lambda _: nothing
    try:
        yield
    finally:
        del meter.count, meter.reset, stepper._metered


def seconds_per_call(num_calls: int = 100_000) -> float:
    meter = CommunicationMeter(world_size=2)
    payload = torch.empty(1024)
    started = time.perf_counter()
    for _ in range(num_calls):
        meter.count("all_reduce", payload)
    return (time.perf_counter() - started) / num_calls


def measure(strategy: str, *, pairs: int) -> list[dict[str, Any]]:
    with LocalRanks(timeout_s=7200) as ranks:
        found = ranks.run(2, compare, spec=spec_of(strategy).to_dict(), pairs=pairs)[0]
    return [_row(strategy, clock, found) for clock in CLOCKS]


def _row(strategy: str, clock: str, found: dict[str, Any]) -> dict[str, Any]:
    metered, plain = (np.array([took[clock] for took in found[name]]) for name in ("metered", "plain"))
    ratios = metered / plain - 1
    low, high = median_interval(ratios)
    return {
        "strategy": strategy,
        "layout": str(LAYOUT),
        "clock": clock,
        "step_ms": 1e3 * float(np.median(plain)),
        "overhead": float(np.median(ratios)),
        "low": low,
        "high": high,
        "pairs": len(plain),
        "calls": found["calls"],
        "calls_alone": found["calls"] * seconds_per_call() / float(np.median(plain)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"Fashion-MNIST, MLP of width {TASK['hidden']}, each layer a unit; b x N x G = {LAYOUT}")
    rows = []
    for name in options.strategies:
        rows += measure(name, pairs=options.pairs)
        if not options.json:
            print(*map(_line, rows[-len(CLOCKS) :]), sep="\n", flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['strategy']:>5}  {row['clock']:>4}  {row['step_ms']:7.1f} ms/step  meter "
        f"{row['overhead']:+.3%} [{row['low']:+.3%}, {row['high']:+.3%}] ({row['pairs']} pairs); "
        f"its {row['calls']} calls alone {row['calls_alone']:.4%}"
    )


if __name__ == "__main__":
    main()
