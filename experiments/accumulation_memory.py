"""Peak memory against accumulation steps at a fixed micro-batch: it must not grow with G.

Probes a text model at b = 4 for several G, each in processes that have run nothing before, under single, DDP
and FSDP on two ranks, fast and bitwise. Prints the peak resident set per rank (the larger one) and its growth
over G = 1.

    python experiments/accumulation_memory.py [--steps 1 8 64] [--determinism fast bitwise] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.training import ProcessContext, train_run
from gasweep.training.local_ranks import LocalRanks

MICRO_BATCH_SIZE = 4
TASK = {"_target_": "gasweep.tasks.TextLm", "width": 256, "depth": 4}


def peak_bytes(process: ProcessContext, *, spec: dict[str, Any]) -> int | None:
    result = train_run(
        RunSpec.from_dict(spec),
        process=process,
        sink=lambda **_: None,
        run_directory=None,
        should_stop=lambda: False,
    )
    return None if result is None or result.throughput is None else result.throughput.peak_memory_bytes


def measure(*, accumulation_steps: list[int], modes: list[str]) -> list[dict[str, Any]]:
    rows = []
    for mode, (strategy, world_size) in itertools.product(modes, (("single", 1), ("ddp", 2), ("fsdp", 2))):
        for steps in accumulation_steps:
            spec = _spec(
                strategy,
                mode,
                Layout(micro_batch_size=MICRO_BATCH_SIZE, world_size=world_size, accumulation_steps=steps),
            )
            with LocalRanks() as ranks:
                peak = ranks.run(world_size, peak_bytes, spec=spec.to_dict())[0]
            rows.append(
                {
                    "strategy": strategy,
                    "determinism": mode,
                    "accumulation_steps": steps,
                    "peak_memory_bytes": peak,
                }
            )
    return rows


def _spec(strategy: str, mode: str, layout: Layout) -> RunSpec:
    config = SweepConfig(task=dict(TASK), strategy=strategy, determinism=mode, grain=MICRO_BATCH_SIZE)
    config.optimizer.name = "adamw"
    config.sweep.probe_optimizer_steps = 2
    config.sweep.probe_warmup_optimizer_steps = 1
    return RunSpec(
        run_id="memory",
        kind="probe",
        effective_batch_size=layout.micro_batch_size * layout.world_size * layout.accumulation_steps,
        layout=layout,
        learning_rate=1e-3,
        seed=0,
        config=config,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--determinism", nargs="+", default=["fast", "bitwise"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(accumulation_steps=options.steps, modes=options.determinism)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    first: dict[tuple[str, str], int] = {}
    for row in rows:
        base = first.setdefault((row["strategy"], row["determinism"]), row["peak_memory_bytes"])
        growth = (row["peak_memory_bytes"] - base) / 2**20
        print(
            f"{row['strategy']:>7}  {row['determinism']:<7}  b = {MICRO_BATCH_SIZE}  "
            f"G = {row['accumulation_steps']:>3}  peak {row['peak_memory_bytes'] / 2**20:7.1f} MiB  "
            f"({growth:+.1f} MiB over the first)"
        )


if __name__ == "__main__":
    main()
