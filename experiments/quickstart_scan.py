"""Where is the knee? The convergence runs of a config in a plain loop, without gasweep's trainer.

    python experiments/quickstart_scan.py
    python experiments/quickstart_scan.py configs/digits.yaml grid.seed=[0] target.value=0.3

The config's (B, lr, seed), each trained by torch alone on one thread, on the whole effective batch: a fresh
permutation per epoch, the config's evaluation spacing and budget, the first crossing interpolated linearly.
Prints mean steps to target per (B, lr), the best rate per B, whether it lies at an edge, a least-squares
hyperbola log S = log S_min + log(1 + B_crit/B), and the core-seconds of all runs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import least_squares

from gasweep.config.load import load_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import OptimizerConfig
from gasweep.data import IndexStream
from gasweep.tasks import Task, resolve_task
from gasweep.tasks.base import Batch, Data

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.yaml"
Steps = dict[int, dict[float, list[float | None]]]  # B -> rate -> steps per seed, None: not reached


class Scan:
    """One task, its data read once."""

    def __init__(self, spec: RunSpec) -> None:
        config = spec.config
        self.config = config
        self.task: Task = resolve_task(config.task)
        self.data: Data = self.task.train_data(root=config.data.root)
        self.eval_batches: list[Batch] = self.task.eval_batches(
            root=config.data.root,
            batch_size=config.evaluation.batch_size,
            max_examples=config.evaluation.max_examples,
        )

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> float:
        model.eval()
        sums = [self.task.eval_sums(model, batch)["eval_loss"] for batch in self.eval_batches]
        model.train()
        return sum(total for total, _ in sums) / sum(count for _, count in sums)

    def steps_to_target(self, spec: RunSpec) -> float | None:
        """Interpolated optimizer steps; None when the budget ends first or the loss explodes."""
        config, budget, batch_size = self.config, self.config.budget, spec.effective_batch_size
        torch.manual_seed(spec.seed)
        model = self.task.build_model()
        optimizer = build_optimizer(model, config.optimizer, spec.learning_rate)
        stream = IndexStream(num_examples=len(self.data), seed=spec.seed, sampling=config.data.sampling)
        limit = min(budget.max_optimizer_steps or math.inf, (budget.max_examples or math.inf) // batch_size)
        last_step, last_loss = 0, self.evaluate(model)
        explosion, next_evaluation, step = budget.divergence_factor * last_loss, 1, 0
        while step < limit:
            indices = stream.take(step * batch_size, batch_size)
            train_step(self.task, model, optimizer, self.data.batch(indices), config.optimizer.max_grad_norm)
            step += 1
            if step < min(next_evaluation, limit):
                continue
            loss = self.evaluate(model)
            if not loss <= explosion:
                return None
            if loss <= config.target.value:
                return last_step + (last_loss - config.target.value) / (last_loss - loss) * (step - last_step)
            last_step, last_loss = step, loss
            next_evaluation = step + max(1, math.ceil(step * config.evaluation.spacing_fraction))
        return None


def train_step(
    task: Task,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    max_grad_norm: float | None,
) -> None:
    optimizer.zero_grad()
    summed = task.loss(model, batch)
    (summed.total / summed.num_items).backward()
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()


def build_optimizer(model: torch.nn.Module, config: OptimizerConfig, rate: float) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=config.momentum)
    adam = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    betas = (config.betas[0], config.betas[1])
    return adam(model.parameters(), lr=rate, betas=betas, weight_decay=config.weight_decay)


def fit_hyperbola(batch_sizes: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    """(S_min, B_crit) by least squares in log space."""

    def residuals(theta: np.ndarray) -> np.ndarray:
        return theta[0] + np.log1p(np.exp(theta[1]) / batch_sizes) - np.log(steps)

    found = least_squares(residuals, [np.log(steps.min()), np.log(np.median(batch_sizes))])
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))


def report_rates(steps: Steps) -> dict[int, float]:
    """Print every B's mean steps by rate; returns the best mean where all seeds reached the target."""
    best = {}
    for batch_size, by_rate in sorted(steps.items()):
        rates = sorted(by_rate)
        means = [math.inf if None in by_rate[rate] else float(np.mean(by_rate[rate])) for rate in rates]
        winner = int(np.argmin(means))
        edge = "" if 0 < winner < len(rates) - 1 else "  EDGE"
        cells = "  ".join(f"{rate:.3g}: {mean:.1f}" for rate, mean in zip(rates, means, strict=True))
        print(f"B={batch_size:5d}  best lr {rates[winner]:.3g}{edge}   ({cells})")
        if math.isfinite(means[winner]):
            best[batch_size] = means[winner]
            print("         seeds " + ", ".join(f"{value:.1f}" for value in by_rate[rates[winner]]))
    return best


def report_law(best: dict[int, float]) -> None:
    s_min, b_crit = fit_hyperbola(np.array(list(best)), np.array(list(best.values())))
    print(f"S_min {s_min:.1f}  B_crit {b_crit:.0f}  E_min {s_min * b_crit:.0f}")
    for batch_size, mean in best.items():
        fitted = s_min * (1 + b_crit / batch_size)
        print(f"  B={batch_size:5d}  S={mean:8.1f}  E={batch_size * mean:9.0f}  S/fitted {mean / fitted:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("config", nargs="?", default=str(QUICKSTART))
    parser.add_argument("overrides", nargs="*", help="key=value, as for gasweep run")
    parser.add_argument("--verbose", action="store_true", help="print every run as it ends")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = plan_sweep(load_sweep_config(args.config, args.overrides)).runs
    scan = Scan(runs[0])
    steps: Steps = defaultdict(lambda: defaultdict(list))
    seconds: dict[int, float] = defaultdict(float)
    for spec in runs:
        started = time.process_time()
        found = scan.steps_to_target(spec)
        seconds[spec.effective_batch_size] += time.process_time() - started
        steps[spec.effective_batch_size][spec.learning_rate].append(found)
        if args.verbose:
            print(f"{spec.effective_batch_size} {spec.learning_rate:.3g} {spec.seed}: {found}", flush=True)
    report_law(report_rates(steps))
    spent = ", ".join(f"B={batch_size}: {value:.1f}" for batch_size, value in sorted(seconds.items()))
    print(f"{len(runs)} runs, {sum(seconds.values()):.1f} core-seconds ({spent})")


if __name__ == "__main__":
    main()
