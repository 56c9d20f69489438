"""What the communication meter costs: optimizer steps with and without it, in turn, in one run.

Two ranks hold two trainers of the same run each; in one of them counting and reading the meter do nothing.
Their optimizer steps take turns, in random order within each pair, so that whatever else the machine does
falls on both. Prints the median extra time of the metered step with its 95 % interval (order statistics of
the pairs), and for comparison what a step's calls to the meter take by themselves.

    python experiments/meter_overhead.py [--pairs 300] [--strategies ddp fsdp] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from typing import Any

import numpy as np

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
    metered, plain = _stepper(process, spec), _stepper(process, spec)
    _silence(plain)
    order = random.Random(0)  # the same on every rank: both must step the same trainer
    seconds: dict[str, list[float]] = {"metered": [], "plain": []}
    for pair in range(WARMUP_PAIRS + pairs):
        turns = [("metered", metered), ("plain", plain)]
        order.shuffle(turns)
        for name, stepper in turns:
            started = time.perf_counter()
            stepper.attempt()
            if pair >= WARMUP_PAIRS:
                seconds[name].append(time.perf_counter() - started)
    model, control = metered.traffic.model.calls, metered.traffic.control.calls
    return {**seconds, "calls": sum(model.values()) + sum(control.values())}


def _stepper(process: ProcessContext, spec: dict[str, Any]) -> Stepper:
    trainer = build_trainer(RunSpec.from_dict(spec), process=process)
    return Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))


def _silence(stepper: Any) -> None:
    nothing = StepTraffic(model=Traffic(), control=Traffic(), unsynced_bytes=0)
    meter = stepper._trainer.parts.strategy.meter
    meter.count = meter.reset = lambda *_, **__: None
    stepper._metered = lambda _: nothing


def seconds_per_call(num_calls: int = 100_000) -> float:
    meter = CommunicationMeter(world_size=2)
    started = time.perf_counter()
    for _ in range(num_calls):
        meter.count("all_reduce", 4096)
    return (time.perf_counter() - started) / num_calls


def measure(strategy: str, *, pairs: int) -> dict[str, Any]:
    with LocalRanks() as ranks:
        found = ranks.run(2, compare, spec=spec_of(strategy).to_dict(), pairs=pairs)[0]
    plain = np.array(found["plain"])
    ratios = np.array(found["metered"]) / plain
    low, high = median_interval(list(ratios))
    return {
        "strategy": strategy,
        "layout": str(LAYOUT),
        "step_ms": 1e3 * float(np.median(plain)),
        "overhead": float(np.median(ratios)) - 1,
        "low": low - 1,
        "high": high - 1,
        "pairs": pairs,
        "calls": found["calls"],
        "calls_alone": found["calls"] * seconds_per_call() / float(np.median(plain)),
    }


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the median from order statistics (binomial, normal approximation)."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    first = max(0, math.floor(len(ordered) / 2 - reach))
    last = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach) - 1)
    return ordered[first], ordered[last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.json:
        print(json.dumps([measure(name, pairs=options.pairs) for name in options.strategies], indent=2))
        return
    print(f"Fashion-MNIST, MLP of width {TASK['hidden']}, each layer a unit; b x N x G = {LAYOUT}")
    for name in options.strategies:
        row = measure(name, pairs=options.pairs)
        print(
            f"{row['strategy']:>5}  {row['step_ms']:7.1f} ms/step  meter {row['overhead']:+.3%} "
            f"[{row['low']:+.3%}, {row['high']:+.3%}] ({row['pairs']} pairs); its {row['calls']} calls alone "
            f"{row['calls_alone']:.4%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
