"""One GPU in under four minutes: MFU, the largest micro-batch, activation checkpointing; torch alone.

    python experiments/gpu_bench.py [--device cuda] [--output FILE]
    python experiments/gpu_bench.py --tiny --device cpu      # a smoke test, no figure worth keeping

A GPT of at least 100 M parameters, bf16, AdamW, one rank, with and without activation checkpointing:
time, tokens/s, MFU and peak memory of an optimizer step, beside the peak that `gasweep plan --memory`
predicts; then the largest micro-batch that `gasweep size --probe-memory` finds (within 5 %), against the true
limit, the last size that fits when every bisection is carried to its end.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from gasweep.config import RunSpec, SweepPlan, parse_sweep_config, plan_sweep
from gasweep.training import ProcessContext, train_run
from gasweep.training.memory.predict import predict_memory
from gasweep.training.memory.probe import probe_largest_micro_batch

LARGE = {"depth": 8, "width": 1024, "heads": 16, "context": 512}
TINY = {"depth": 1, "width": 32, "heads": 2, "context": 16}
RESOLUTION = 0.05


def plan_of(*, tiny: bool, checkpointing: bool, micro_batch_size: int) -> SweepPlan:
    return plan_sweep(
        parse_sweep_config(
            {
                "task": {"_target_": "gasweep.tasks.TextLm", **(TINY if tiny else LARGE)},
                "optimizer": {"name": "adamw"},
                "precision": "bf16",
                "strategy": "single",
                "strategy_options": {"activation_checkpointing": checkpointing},
                "grid": {
                    "micro_batch_size": micro_batch_size,
                    "accumulation_steps": 2,
                    "learning_rate": 1e-4,
                },
                "target": {"value": 0.0},
                "budget": {"max_optimizer_steps": 10},
                "sweep": {"probe_optimizer_steps": 10, "probe_warmup_optimizer_steps": 3},
            }
        )
    )


def bench(spec: RunSpec, *, device: str) -> str:
    """One line on a step of `spec`."""
    result = train_run(
        spec,
        process=ProcessContext(device=device),
        sink=lambda **_: None,
        run_directory=None,
        should_stop=lambda: False,
    )
    assert result is not None
    assert result.throughput is not None
    found, mfu = result.throughput, result.extra["mfu"]
    predicted = predict_memory(spec).peak
    return (
        f"b = {spec.layout.micro_batch_size}, G = 2: {found.mean_seconds * 1e3:.1f} ms/step, "
        f"{found.tokens_per_s or 0:,.0f} tokens/s, MFU {'unknown' if mfu is None else f'{mfu:.1%}'}, "
        f"peak {_megabytes(found.peak_memory_bytes)}, predicted {_megabytes(predicted)}"
    )


def largest(plan: SweepPlan, *, device: str, limit: int) -> str:
    """One line on the probe's answer and the true limit."""
    started = time.perf_counter()
    settings: dict[str, Any] = {"world_size": 1, "device": device, "limit": limit}
    found = probe_largest_micro_batch(plan, resolution=RESOLUTION, **settings).search
    seconds = time.perf_counter() - started
    assert found.largest is not None, "not even one example fits"
    exact = probe_largest_micro_batch(plan, start=found.largest, **settings).search
    capped = " (the search's own limit, not the memory's)" if exact.reached_limit else ""
    return (
        f"largest b: {found.largest} in {len(found.tried)} trials, {seconds:.0f} s; true limit "
        f"{exact.largest}{capped}: {found.largest / (exact.largest or 1):.1%} of it"
    )


def _megabytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand parameters")
    parser.add_argument("--micro-batch-size", type=int, default=None)
    parser.add_argument("--output", type=Path, help="also write the lines here")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; --tiny --device cpu is the smoke test")
    size = options.micro_batch_size or (4 if options.tiny else 64)
    device = "cuda:0" if options.device == "cuda" else "cpu"
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    lines = [f"torch {torch.__version__}, {name}, bf16, {TINY if options.tiny else LARGE}"]
    for checkpointing in (False, True):
        plan = plan_of(tiny=options.tiny, checkpointing=checkpointing, micro_batch_size=size)
        lines.append(f"activation checkpointing {'on' if checkpointing else 'off'}")
        lines.append("  " + bench(plan.probes[0], device=device))
        if options.device == "cuda":
            torch.cuda.empty_cache()  # the trials run in processes of their own
        limit = 8 if options.tiny else 65536
        lines.append("  " + largest(plan, device=options.device, limit=limit))
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
