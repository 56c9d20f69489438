"""Exactness and cost on one GPU, in under two minutes: N = 1, fp32 and bf16, torch alone.

    python experiments/gpu_exactness.py [--device cuda] [--steps 20] [--grain 16] [--output FILE]

Trains one `text_lm` in five layouts of one effective batch (b from one grain to the whole batch). Per
precision and mode: how many bit patterns the parameters have after the steps (one in bitwise mode), the
largest deviation of a layout's first gradient from that of a single group, relative to its largest element,
and step time and peak memory of the smallest and the largest b. `--device cpu` is a smoke test.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import OptimizerConfig, SweepConfig
from gasweep.training import ProcessContext
from gasweep.training.bitwise.environment import kernel_fingerprint, kernels_of
from gasweep.training.build import build_trainer
from gasweep.training.fingerprint import parameter_sha256
from gasweep.training.peak_memory import PeakMemory

GRAINS = 8
WARMUP = 3
MODELS = {
    "cuda": {"width": 512, "depth": 6, "heads": 8, "context": 256, "dropout": 0.1},
    "cpu": {"width": 32, "depth": 1, "heads": 2, "context": 32, "dropout": 0.1},
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One layout of one precision and mode. gradient: the first step's, end to end."""

    b: int
    sha256: str
    gradient: torch.Tensor
    seconds: float
    peak_bytes: int | None


def spec_of(mode: str, precision: str, *, b: int, grain: int, model: dict[str, Any]) -> RunSpec:
    total = GRAINS * grain
    # Fast mode keys dropout by micro-step: its layouts are compared without.
    task = dict(model) if mode == "bitwise" else {**model, "dropout": 0.0}
    config = SweepConfig(
        task={"_target_": "gasweep.tasks.TextLm", **task},
        optimizer=OptimizerConfig(name="adamw", max_grad_norm=1.0),
        determinism=mode,
        precision=precision,
        grain=grain,
    )
    config.noise_scale.enabled = False
    config.budget.max_optimizer_steps = 1
    return RunSpec(
        run_id="gpu",
        kind="convergence",
        effective_batch_size=total,
        layout=Layout(micro_batch_size=b, world_size=1, accumulation_steps=-(-total // b)),
        learning_rate=1e-3,
        seed=0,
        config=config,
    )


def measure(spec: RunSpec, *, device: str, steps: int) -> Measured:
    with kernels_of(spec, device=torch.device(device)):
        memory = PeakMemory(torch.device(device))
        trainer = build_trainer(spec, process=ProcessContext(device=device))
        seconds, gradient = [], torch.empty(0)
        for step in range(steps):
            synchronize(device)
            started = time.perf_counter()
            plan = trainer.planner.plan(
                optimizer_step=step,
                contributions=step * spec.effective_batch_size,
                effective_batch_size=spec.effective_batch_size,
                micro_batch_size=spec.layout.micro_batch_size,
            )
            trainer.step.run(plan, learning_rate=1e-3)
            synchronize(device)
            seconds.append(time.perf_counter() - started)
            if step == 0:
                gradients = [t.grad for _, t in trainer.parts.parameters if t.grad is not None]
                gradient = torch.cat([g.detach().double().flatten().cpu() for g in gradients])
        timed = sorted(seconds[WARMUP:] or seconds)
        return Measured(
            b=spec.layout.micro_batch_size,
            sha256=parameter_sha256(trainer.parts.strategy.full_state()),
            gradient=gradient,
            seconds=timed[len(timed) // 2],
            peak_bytes=memory.read(),
        )


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def row(mode: str, precision: str, measured: list[Measured]) -> str:
    single = measured[-1].gradient
    apart = max(float((m.gradient - single).abs().max() / single.abs().max()) for m in measured)
    bits = len({m.sha256 for m in measured})
    ends = "  ".join(
        f"b={m.b}: {m.seconds * 1e3:.1f} ms, "
        + ("-" if m.peak_bytes is None else f"{m.peak_bytes / 2**20:.0f} MiB")
        for m in (measured[0], measured[-1])
    )
    return f"{precision:<5} {mode:<8} {bits} of {len(measured)} bit patterns  {apart:8.1e}  {ends}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--grain", type=int, default=16)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = "cuda:0" if options.device == "cuda" else options.device
    model = MODELS["cuda" if device.startswith("cuda") else "cpu"]
    grain, started = options.grain, time.perf_counter()
    lines = [
        str(kernel_fingerprint(device=torch.device(device))),
        f"text_lm {model}, {options.steps} AdamW steps, clipping, B={GRAINS * grain}, grain {grain}",
        "precision, mode, distinct parameters, gradient's deviation from one group, cost",
    ]
    for precision in ("fp32", "bf16"):
        for mode in ("fast", "bitwise"):
            measured = [
                measure(
                    spec_of(mode, precision, b=k * grain, grain=grain, model=model),
                    device=device,
                    steps=options.steps,
                )
                for k in (1, 2, 3, 4, GRAINS)
            ]
            lines.append(row(mode, precision, measured))
    lines.append(f"{time.perf_counter() - started:.0f} s")
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
