"""Where is the knee? Steps to target over (B, lr, seed), in a plain loop without gasweep's trainer.

    python experiments/quickstart_scan.py                      the grid of configs/quickstart.yaml
    python experiments/quickstart_scan.py --learning-rates 0.02 0.05 ... --base-batch-size 0 --seeds 0

The loop is what a sweep's convergence runs do: fp32, one thread, SGD, a fresh permutation per epoch,
evaluation on the same held-out examples at a spacing of 5 % of the steps taken, first crossing interpolated.
It prints S per (B, lr, seed), the best rate per B and where it lies in the grid, a least-squares hyperbola
log S = log S_min + log(1 + B_crit/B), and the seconds that all runs took.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import least_squares

from gasweep.tasks import FashionMnist
from gasweep.tasks.base import Batch, Data, Task


@dataclass(frozen=True, kw_only=True)
class Budget:
    max_examples: int
    max_optimizer_steps: int
    divergence_factor: float = 10.0


def index_stream(num_examples: int, *, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Indices of successive optimizer steps: permutations laid end to end, cut every `batch_size`."""
    generator = np.random.Generator(np.random.PCG64(seed))
    held = np.empty(0, dtype=np.int64)
    while True:
        while len(held) < batch_size:
            held = np.concatenate([held, generator.permutation(num_examples)])
        yield held[:batch_size]
        held = held[batch_size:]


@torch.no_grad()
def evaluate(task: Task, model: torch.nn.Module, batches: list[Batch]) -> float:
    sums = [task.eval_sums(model, batch)["eval_loss"] for batch in batches]
    return sum(total for total, _ in sums) / sum(count for _, count in sums)


def steps_to_target(
    task: Task,
    data: Data,
    eval_batches: list[Batch],
    *,
    batch_size: int,
    learning_rate: float,
    seed: int,
    target: float,
    budget: Budget,
) -> float | None:
    """Interpolated steps at the first crossing; None when the budget ends first or the loss explodes."""
    torch.manual_seed(seed)
    model = task.build_model()
    parameters = list(model.parameters())
    previous_step, previous_loss = 0, evaluate(task, model, eval_batches)
    first_loss, next_evaluation = previous_loss, 1
    limit = min(budget.max_optimizer_steps, budget.max_examples // batch_size)
    for step, indices in enumerate(index_stream(len(data), batch_size=batch_size, seed=seed), start=1):
        summed = task.loss(model, data.batch(indices))
        gradients = torch.autograd.grad(summed.total / summed.num_items, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-learning_rate)
        if step == next_evaluation or step >= limit:
            loss = evaluate(task, model, eval_batches)
            if not np.isfinite(loss) or loss > budget.divergence_factor * first_loss:
                return None
            if loss <= target:
                share = (previous_loss - target) / (previous_loss - loss)
                return previous_step + share * (step - previous_step)
            previous_step, previous_loss = step, loss
            next_evaluation = max(step + 1, int(np.ceil(step * 1.05)))
        if step >= limit:
            return None
    raise AssertionError("the index stream never ends")


def fit_hyperbola(batch_sizes: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    """(S_min, B_crit) by least squares in log space, as `gasweep.analysis` starts its own fit."""

    def residuals(theta: np.ndarray) -> np.ndarray:
        return theta[0] + np.log1p(np.exp(theta[1]) / batch_sizes) - np.log(steps)

    found = least_squares(residuals, [np.log(steps.min()), np.log(np.median(batch_sizes))])
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))


def report(args: argparse.Namespace, steps: dict[tuple[int, float, int], float | None]) -> None:
    best = {}
    for batch_size in args.batch_sizes:
        means = []
        for rate in args.learning_rates:
            runs = [steps[batch_size, rate, seed] for seed in args.seeds]
            means.append(float(np.mean(runs)) if None not in runs else np.inf)
        winner = int(np.argmin(means))
        edge = "" if 0 < winner < len(means) - 1 else "   EDGE"
        best[batch_size] = means[winner]
        cells = "  ".join(f"{mean:9.1f}" for mean in means)
        rate = args.learning_rates[winner]
        runs = ", ".join(f"{steps[batch_size, rate, seed] or np.nan:.1f}" for seed in args.seeds)
        print(f"B={batch_size:5d}  {cells}  best {rate:g}: {runs}{edge}")
    reached = {b: s for b, s in best.items() if np.isfinite(s)}
    batch_sizes, mean_steps = np.array(list(reached)), np.array(list(reached.values()))
    s_min, b_crit = fit_hyperbola(batch_sizes, mean_steps)
    print(f"S_min {s_min:.1f}  B_crit {b_crit:.0f}  E_min {s_min * b_crit:.0f}")
    for b, s in reached.items():
        print(f"  B={b:5d}  S={s:8.1f}  E={b * s:9.0f}  fit {s / (s_min * (1 + b_crit / b)):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[2**k for k in range(3, 13)])
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--base-batch-size", type=int, default=64, help="0: the rates are absolute")
    parser.add_argument("--base-learning-rate", type=float, default=0.1)
    parser.add_argument("--power", type=float, default=0.5, help="0.5: square-root scaling; 1: linear")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.6)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--max-examples", type=int, default=400_000)
    parser.add_argument("--max-optimizer-steps", type=int, default=20_000)
    parser.add_argument("--eval-examples", type=int, default=2000)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    task = FashionMnist(hidden=args.hidden, layers=args.layers)
    data = task.train_data(root=None)
    eval_batches = task.eval_batches(root=None, batch_size=2048, max_examples=args.eval_examples)
    budget = Budget(max_examples=args.max_examples, max_optimizer_steps=args.max_optimizer_steps)
    steps, seconds = {}, {}
    for batch_size, multiplier, seed in itertools.product(args.batch_sizes, args.learning_rates, args.seeds):
        rate = multiplier
        if args.base_batch_size:
            rate *= args.base_learning_rate * (batch_size / args.base_batch_size) ** args.power
        started = time.process_time()
        steps[batch_size, multiplier, seed] = steps_to_target(
            task,
            data,
            eval_batches,
            batch_size=batch_size,
            learning_rate=rate,
            seed=seed,
            target=args.target,
            budget=budget,
        )
        seconds[batch_size, multiplier, seed] = time.process_time() - started
        if args.verbose:
            print(batch_size, multiplier, seed, steps[batch_size, multiplier, seed], flush=True)
    report(args, steps)
    for batch_size in args.batch_sizes:
        spent = sum(value for (b, _, _), value in seconds.items() if b == batch_size)
        print(f"  B={batch_size:5d}  {spent:6.1f} core-seconds")
    print(f"total {sum(seconds.values()):.1f} core-seconds in {len(seconds)} runs")


if __name__ == "__main__":
    main()
