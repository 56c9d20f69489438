"""Do all layouts of one effective batch train to the same bits under single process, DDP and FSDP2?

    python experiments/bitwise_matrix.py [--steps 200] [--every 1] [--output FILE]

Trains `text_lm` with AdamW, gradient clipping, dropout and a warm-up under `determinism: bitwise`, in twelve
layouts (b, N, G) of one effective batch for each strategy, ragged ones included (b that does not divide a
rank's share). Prints for each run the SHA-256 of all parameters and buffers, of all per-step training losses
and gradient norms, and of all evaluations. Exit code 1 when any differs.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import EvaluationConfig, OptimizerConfig, ScheduleConfig, SweepConfig
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.training import ProcessContext, train_run
from gasweep.training.local_ranks import LocalRanks

B = 64
GRAIN = 4
TASK = {"width": 32, "heads": 2, "context": 16, "dropout": 0.1, "mask_fraction": 0.2}
LAYOUTS = {
    "single": [(b, 1) for b in (4, 8, 12, 16, 20, 28, 32, 36, 40, 48, 56, 64)],
    "ddp": [(b, 2) for b in (4, 8, 12, 16, 20, 24, 28, 32)] + [(b, 4) for b in (4, 8, 12, 16)],
    "fsdp": [(b, 2) for b in (4, 8, 12, 16, 20, 24, 28, 32)] + [(b, 4) for b in (4, 8, 12, 16)],
}


@dataclass(frozen=True, kw_only=True)
class Bits:
    """SHA-256 of everything a run produced."""

    parameters: str
    losses: str
    evaluations: str


class Records:
    """A sink that keeps every record."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.evaluations: list[EvalRecord] = []

    def __call__(self, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        self.steps += steps
        self.evaluations += evaluations


def spec_of(strategy: str, b: int, n: int, *, steps: int, **changes: Any) -> RunSpec:
    config = SweepConfig(
        task={"_target_": "gasweep.tasks.TextLm", **TASK},
        optimizer=OptimizerConfig(name="adamw", weight_decay=0.01, max_grad_norm=1.0),
        schedule=ScheduleConfig(warmup_optimizer_steps=10),
        evaluation=EvaluationConfig(
            every_optimizer_steps=max(1, steps // 4), batch_size=64, max_examples=256
        ),
        determinism="bitwise",
        grain=GRAIN,
        strategy=strategy,
    )
    config.budget.max_optimizer_steps = steps
    for name, value in changes.items():
        setattr(config, name, value)
    share = math.ceil(math.ceil(B / GRAIN) / n) * GRAIN
    layout = Layout(micro_batch_size=b, world_size=n, accumulation_steps=math.ceil(share / b))
    return RunSpec(
        run_id="bitwise",
        kind="convergence",
        effective_batch_size=B,
        layout=layout,
        learning_rate=3e-3,
        seed=0,
        config=config,
    )


def train(process: ProcessContext, *, spec: RunSpec, folder: Path | None = None) -> Bits | None:
    """The run's bits on rank 0."""
    records = Records()
    result = train_run(spec, process=process, sink=records, run_directory=folder, should_stop=lambda: False)
    if result is None:
        return None
    losses = [(record.loss, record.grad_norm) for record in records.steps]
    return Bits(
        parameters=str(result.parameter_sha256),
        losses=_sha256(losses),
        evaluations=_sha256([record.metrics for record in result.evaluations]),
    )


def matrix(ranks: LocalRanks, *, steps: int, every: int = 1) -> Iterator[tuple[str, Layout, Bits, float]]:
    """(strategy, layout, bits, seconds) of each run; `every` takes each k-th layout only."""
    for strategy, layouts in LAYOUTS.items():
        for b, n in layouts[::every]:
            spec = spec_of(strategy, b, n, steps=steps)
            started = time.perf_counter()
            bits: Bits = ranks.run(n, train, spec=spec)[0]
            yield strategy, spec.layout, bits, time.perf_counter() - started


def _sha256(values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        f"text_lm {TASK}",
        f"{options.steps} AdamW steps, B={B}, grain {GRAIN}, clipping at 1, one thread per rank",
        "",
        f"{'strategy':<8}  {'b x N x G':>9}  {'parameters':<16}  {'losses, norms':<16}  {'evaluations':<16}",
    ]
    print("\n".join(lines), flush=True)
    seen = set()
    with LocalRanks(timeout_s=7200) as ranks:
        for strategy, layout, bits, seconds in matrix(ranks, steps=options.steps, every=options.every):
            seen.add(bits)
            hashes = "  ".join(value[:16] for value in (bits.parameters, bits.losses, bits.evaluations))
            lines.append(f"{strategy:<8}  {layout!s:>9}  {hashes}")
            print(f"{lines[-1]}  {seconds:6.1f} s", flush=True)
    same = len(seen) == 1
    lines += [
        "",
        f"{len(lines) - 4} runs: {'one set of bits' if same else f'{len(seen)} DIFFERENT sets of bits'}",
    ]
    if same:
        (bits,) = seen
        lines += [
            f"parameters  {bits.parameters}",
            f"losses      {bits.losses}",
            f"evaluations {bits.evaluations}",
        ]
    print("\n".join(lines[-5 if same else -1 :]))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
