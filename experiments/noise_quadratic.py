"""Noise scale against the truth, through the trainer: every (b, N, G) under single, DDP and FSDP2.

    python experiments/noise_quadratic.py [--runs 200] [--steps 24] [--batch-size 16|64] [--strategy NAME]
        [--json FILE]

Trains the noisy quadratic, whose |G|² and tr Σ are known at every θ, over many data seeds, and measures every
optimizer step. Per layout and strategy: z of the summed errors of |G|² and tr Σ over all runs (|z| < 3 in
unbiased estimates), and how often the interval of a run's window covers its true ratio of means.
Runs on two CPU processes where N = 2. Layouts of the same B see the same examples in other groups: the last
columns are z of their window means against those of the first layout of that B, 0 where the groups are the
same and the numbers agree to rounding.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.analysis.noise_scale_window import noise_scale
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.tasks.noisy_quadratic import NoisyQuadratic
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.gradient_noise_observer import NoiseObserver
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.parts import StepPlan, TrainingParts
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

SETTINGS: list[tuple[str, tuple[int, int, int]]] = [
    ("single", (8, 1, 2)),
    ("single", (4, 1, 4)),
    ("single", (1, 1, 16)),
    ("ddp", (8, 2, 1)),
    ("ddp", (4, 2, 2)),
    ("fsdp", (8, 2, 1)),
    ("fsdp", (2, 2, 4)),
    ("single", (64, 1, 1)),
    ("single", (16, 1, 4)),
    ("ddp", (16, 2, 2)),
    ("fsdp", (16, 2, 2)),
]
# Every run has examples of its own: one data set of D differs from the unlimited one whose truth is known by
# a relative 1e-3 in tr Σ, which thousands of steps on the same examples would show as a bias.
TASK: dict[str, Any] = {
    "dimension": 32,
    "condition_number": 20.0,
    "noise_scale": 10.0,
    "num_examples": 1 << 16,
}


@dataclass(frozen=True, kw_only=True)
class Row:
    strategy: str
    layout: tuple[int, int, int]
    num_groups: int
    runs: int
    sq_norm_z: float
    trace_z: float
    covered: float
    two_sided: float
    median_width: float | None
    same_batch_sq_norm_z: float | None
    same_batch_trace_z: float | None


class TruthObserver(NoiseObserver):
    """Also notes the true |G|² and tr Σ before each measured step. Collective under FSDP2."""

    truths: list[tuple[float, float]]

    def begin_step(self, plan: StepPlan) -> None:
        task = self.parts.task
        assert isinstance(task, NoisyQuadratic)
        module = self.parts.module
        self.truths.append((task.true_grad_sq_norm(module), task.true_grad_noise_trace(module)))
        super().begin_step(plan)


class Keep:
    """A sink that keeps the step records."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def __call__(self, *, steps: list[Any], evaluations: list[Any]) -> None:
        self.steps += steps


def spec(strategy: str, layout: tuple[int, int, int], *, data_seed: int) -> RunSpec:
    task = {"_target_": "gasweep.tasks.NoisyQuadratic", **TASK, "example_seed": data_seed}
    config = SweepConfig(task=task, strategy=strategy)
    config.data.seed = data_seed
    config.budget.max_optimizer_steps = 10**9
    config.noise_scale.every_optimizer_steps = 1
    b, n, g = layout
    return RunSpec(
        run_id="noise",
        kind="convergence",
        effective_batch_size=b * n * g,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=g),
        learning_rate=0.02,
        seed=0,
        config=config,
    )


def train(
    process: ProcessContext, *, strategy: str, layout: tuple[int, int, int], seeds: list[int], steps: int
) -> list[dict[str, Any]]:
    """Per run: signed errors and truths of every step, and whether its interval covers."""
    return [_train_one(process, spec(strategy, layout, data_seed=seed), steps) for seed in seeds]


def _train_one(process: ProcessContext, run: RunSpec, steps: int) -> dict[str, Any]:
    truths: list[tuple[float, float]] = []

    def observe(parts: TrainingParts) -> TruthObserver:
        # The quadratic is trained by plain SGD, so the optimizer holds nothing that the observer reads.
        observer = TruthObserver(parts, optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.0))
        observer.truths = truths
        return observer

    trainer = build_trainer(run, process=process, observe=observe)
    stepper = Stepper(trainer, progress=RunProgress(), sink=Keep(), flags=lambda: (False, False))
    measured = []
    for _ in range(steps):
        extra = stepper.attempt()[-1].record.extra
        measured.append(
            NoiseMeasurement(
                grad_sq_norm=extra["grad_sq_norm"],
                grad_noise_trace=extra["grad_noise_trace"],
                num_groups=int(extra["noise_num_groups"]),
                num_examples=int(extra["noise_num_examples"]),
            )
        )
    trainer.parts.strategy.close()
    estimate = noise_scale(measured).noise_scale
    sq_norm = sum(truth[0] for truth in truths) / steps
    trace = sum(truth[1] for truth in truths) / steps
    ratio = trace / sq_norm
    low, high = estimate.low or 0.0, math.inf if estimate.high is None else estimate.high
    return {
        "num_groups": measured[0].num_groups,
        "sq_norm": sum(m.grad_sq_norm for m in measured) / steps,
        "trace": sum(m.grad_noise_trace for m in measured) / steps,
        "sq_norm_error": sum(m.grad_sq_norm for m in measured) / steps - sq_norm,
        "trace_error": sum(m.grad_noise_trace for m in measured) / steps - trace,
        "covered": low <= ratio <= high,
        "width": (high - low) / ratio if estimate.value is not None else None,
    }


def z_of(values: list[float]) -> float:
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean() / tensor.std() * math.sqrt(len(values)))


def summarise(
    strategy: str,
    layout: tuple[int, int, int],
    runs: list[dict[str, Any]],
    first: list[dict[str, Any]] | None,
) -> Row:
    widths = [run["width"] for run in runs if run["width"] is not None]

    def against_first(key: str) -> float | None:
        if first is None:
            return None
        differences = [a[key] - b[key] for a, b in zip(runs, first, strict=True)]
        if all(abs(d) <= 1e-5 * b["trace"] for d, b in zip(differences, first, strict=True)):
            return 0.0
        return z_of(differences)

    return Row(
        strategy=strategy,
        layout=layout,
        num_groups=runs[0]["num_groups"],
        runs=len(runs),
        sq_norm_z=z_of([run["sq_norm_error"] for run in runs]),
        trace_z=z_of([run["trace_error"] for run in runs]),
        covered=sum(run["covered"] for run in runs) / len(runs),
        two_sided=len(widths) / len(runs),
        median_width=sorted(widths)[len(widths) // 2] if widths else None,
        same_batch_sq_norm_z=against_first("sq_norm"),
        same_batch_trace_z=against_first("trace"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch-size", type=int, help="only the settings of this B")
    parser.add_argument("--strategy", help="only these settings, and the first of each B to compare with")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    first_of: dict[int, list[dict[str, Any]]] = {}
    with LocalRanks() as ranks:
        for strategy, layout in SETTINGS:
            size = math.prod(layout)
            if arguments.batch_size not in (None, size):
                continue
            if size in first_of and arguments.strategy not in (None, strategy):
                continue
            runs: list[dict[str, Any]] = []
            # In pieces, since ranks that do not answer for ten minutes count as lost.
            for start in range(0, arguments.runs, 25):
                settings = {
                    "strategy": strategy,
                    "layout": layout,
                    "seeds": list(range(start, min(start + 25, arguments.runs))),
                    "steps": arguments.steps,
                }
                if layout[1] == 1:
                    runs += train(ProcessContext(), **settings)
                else:
                    runs += ranks.run(layout[1], train, **settings)[0]
            rows.append(summarise(strategy, layout, runs, first_of.get(size)))
            first_of.setdefault(size, runs)
            print(rows[-1], flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
