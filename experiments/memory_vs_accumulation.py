"""Does memory grow with the number of accumulation steps?

    python experiments/memory_vs_accumulation.py [--steps 1 8 64] [--output FILE]

Peak memory of a rank at G = 1, 8, 64, fixed micro-batch, for DDP and FSDP2 on two ranks, fast and bitwise:
growth of the resident set from before the model is built to its peak over two optimizer steps, the larger
of the two ranks, in fresh processes. FSDP2 at G > 1 holds unsharded gradients between micro-steps, which is
4·P·(1 - 1/N) bytes for P fp32 parameters (`sync_every_micro_step` gives them back for more traffic); bitwise
mode holds 8-byte integer sums of all P instead.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import OptimizerConfig, SweepConfig
from gasweep.training import ProcessContext
from gasweep.training.bitwise.environment import kernels_of
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.peak_memory import PeakMemory

RANKS = 2
B = 2  # examples per micro-batch
TASK = {"_target_": "gasweep.tasks.TextLm", "width": 512, "depth": 4, "heads": 8, "context": 32}
MIB = 2**20


def spec_of(strategy: str, determinism: str, *, steps: int, syncs_every: bool) -> RunSpec:
    config = SweepConfig(
        task=dict(TASK),
        optimizer=OptimizerConfig(name="adamw", max_grad_norm=1.0),
        strategy=strategy,
        determinism=determinism,
        grain=B,
    )
    config.strategy_options = dataclasses.replace(config.strategy_options, sync_every_micro_step=syncs_every)
    config.noise_scale.enabled = False
    config.budget.max_optimizer_steps = 2
    return RunSpec(
        run_id="memory",
        kind="convergence",
        effective_batch_size=B * RANKS * steps,
        layout=Layout(micro_batch_size=B, world_size=RANKS, accumulation_steps=steps),
        learning_rate=1e-3,
        seed=0,
        config=config,
    )


def peak_growth(process: ProcessContext, *, spec: RunSpec) -> tuple[int, int]:
    """(growth of this rank's resident set in bytes, parameters of the whole model)."""
    memory = PeakMemory(torch.device(process.device))
    before = memory.read()
    with kernels_of(spec, device=torch.device(process.device)):
        trainer = build_trainer(spec, process=process)
        for step in range(2):
            plan = trainer.planner.plan(
                optimizer_step=step,
                contributions=step * spec.effective_batch_size,
                effective_batch_size=spec.effective_batch_size,
                micro_batch_size=B,
            )
            trainer.step.run(plan, learning_rate=1e-3)
    after = memory.read()
    if before is None or after is None:
        raise SystemExit("the resident set's peak cannot be reset on this system")
    return after - before, sum(tensor.numel() for _, tensor in trainer.parts.parameters)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    header = "  ".join(f"G={steps:<3}" for steps in options.steps)
    lines = [f"text_lm, N={RANKS}, b={B}, AdamW; growth of the resident set, MiB per rank", ""]
    lines.append(f"{'strategy':<8}  {'mode':<22}  {header}  of parameters")
    for strategy, mode, syncs in (
        ("ddp", "fast", False),
        ("ddp", "bitwise", False),
        ("fsdp", "fast", False),
        ("fsdp", "fast", True),
        ("fsdp", "bitwise", False),
    ):
        grown = []
        for steps in options.steps:
            with LocalRanks(timeout_s=7200) as ranks:
                spec = spec_of(strategy, mode, steps=steps, syncs_every=syncs)
                outcomes = ranks.run(RANKS, peak_growth, spec=spec)
            grown.append(max(growth for growth, _ in outcomes))
        told = f"{mode}{', syncing every micro-step' if syncs else ''}"
        figures = "  ".join(f"{growth / MIB:5.0f}" for growth in grown)
        lines.append(f"{strategy:<8}  {told:<22}  {figures}  {4 * outcomes[0][1] / MIB:.0f}")
        print(lines[-1], flush=True)
    print("\n".join(["", *lines]))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
