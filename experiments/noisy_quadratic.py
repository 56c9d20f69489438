"""Steps to target on the noisy quadratic: trained, against the exact recursion, and the law's planted truth.

    python experiments/noisy_quadratic.py [--seeds 8]

1. At the best constant rate of each batch size: S(B) by the exact moment recursion, and by gasweep's trainer
   (one thread, evaluation after every step), from the seeds' mean loss at the recursion's crossing. A single
   run's first crossing comes earlier where its loss fluctuates about the target.
2. With the per-step optimal rate of McCandlish et al. 2018, where S = S_min(1 + B_crit/B) is exact: the fit
   of `gasweep.analysis` to trained runs against the planted pair.
3. How far the law is off at the best constant rate: hyperbolas fitted to the recursion's own S(B).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field

import numpy as np
import torch

from gasweep.analysis.fit import fit_critical_batch_size
from gasweep.analysis.hyperbola import fit_hyperbola
from gasweep.analysis.noisy_quadratic import (
    Array,
    QuadraticProblem,
    best_learning_rate,
    expected_loss,
    steps_to_target,
)
from gasweep.analysis.observation import Observation
from gasweep.analysis.optimal_rate import optimal_rates, planted_law
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import BudgetConfig, DataConfig, EvaluationConfig, SweepConfig, TargetConfig
from gasweep.data import IndexStream
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.tasks import NoisyQuadratic
from gasweep.training.process import ProcessContext
from gasweep.training.run import train_run

BATCH_SIZES = [2**k for k in range(3, 11)]
TARGET = 0.05
MARGIN = 1.5  # steps trained over steps expected, so that a late run crosses too


@dataclass
class Curve:
    """The sink of one run: its evaluation losses, the initial one first."""

    losses: list[float] = field(default_factory=list)

    def __call__(self, *, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        self.losses += [record.metrics["eval_loss"] for record in evaluations]


def first_crossing(losses: Array, target: float) -> float:
    """Interpolated linearly in the loss; nan if the curve ends above the target."""
    below = np.flatnonzero(losses <= target)
    if len(below) == 0:
        return math.nan
    step = int(below[0])
    return step - 1 + (losses[step - 1] - target) / (losses[step - 1] - losses[step])


def train_constant(
    task: dict[str, object], *, batch_size: int, rate: float, seed: int, num_steps: int
) -> Array:
    """The evaluation losses of gasweep's trainer after 0, 1, ..., `num_steps` optimizer steps."""
    micro_batch_size = min(batch_size, 64)
    spec = RunSpec(
        run_id=f"{batch_size}-{seed}",
        kind="convergence",
        effective_batch_size=batch_size,
        layout=Layout(
            micro_batch_size=micro_batch_size,
            world_size=1,
            accumulation_steps=batch_size // micro_batch_size,
        ),
        learning_rate=rate,
        seed=seed,
        config=SweepConfig(
            task={"_target_": "gasweep.tasks.NoisyQuadratic", **task},
            data=DataConfig(sampling="replacement"),
            target=TargetConfig(value=1e-9),
            evaluation=EvaluationConfig(every_optimizer_steps=1),
            budget=BudgetConfig(max_optimizer_steps=num_steps, divergence_factor=1e9),
        ),
    )
    curve = Curve()
    train_run(spec, process=ProcessContext(), sink=curve, run_directory=None, should_stop=lambda: False)
    return np.array(curve.losses)


def train_scheduled(task: NoisyQuadratic, *, batch_size: int, rates: list[float], seed: int) -> Array:
    """The evaluation losses of a plain loop with one rate per step, on examples no other run has drawn."""
    data, model = task.train_data(root=None), task.build_model()
    stream = IndexStream(num_examples=len(data), seed=1000 * batch_size + seed, sampling="replacement")
    (held_out,) = task.eval_batches(root=None, batch_size=1, max_examples=None)
    losses = [task.eval_sums(model.requires_grad_(False), held_out)["eval_loss"][0]]
    model.requires_grad_(True)
    for step, rate in enumerate(rates):
        result = task.loss(model, data.batch(stream.take(step * batch_size, batch_size)))
        (gradient,) = torch.autograd.grad(result.total / result.num_items, model.theta)
        with torch.no_grad():
            model.theta -= rate * gradient
            losses.append(task.eval_sums(model, held_out)["eval_loss"][0])
    return np.array(losses)


def trained_steps(
    problem: QuadraticProblem, curves: Array, *, batch_size: int, rate: float, exact: float
) -> tuple[float, float]:
    """(S, its standard error) from the seeds' mean loss at the recursion's crossing and the slope there.

    Reading the crossing off the mean curve instead would come early: the first dip of what is left of the
    noise below the target would count.
    """
    step = math.ceil(exact)
    before, after = (
        expected_loss(problem, optimizer_steps=t, batch_size=batch_size, learning_rate=rate)
        for t in (step - 1, step)
    )
    losses = curves[:, step]
    error = losses.std(ddof=1) / math.sqrt(len(losses))
    return exact + (losses.mean() - after) / (before - after), error / (before - after)


def show_constant_rate(num_seeds: int) -> None:
    task = NoisyQuadratic(dimension=1024)
    problem = task.problem()
    print(f"1. Best constant rate, {task}, target {TARGET}, {num_seeds} seeds")
    print("       B      rate   recursion   trained (s.e.)            ratio   first crossings, mean")
    for batch_size in BATCH_SIZES:
        best = best_learning_rate(problem, batch_size=batch_size, target=TARGET)
        assert best is not None
        rate, exact = best
        num_steps = math.ceil(MARGIN * exact)
        curves = np.array(
            [
                train_constant(
                    {"dimension": 1024}, batch_size=batch_size, rate=rate, seed=seed, num_steps=num_steps
                )
                for seed in range(num_seeds)
            ]
        )
        trained, error = trained_steps(problem, curves, batch_size=batch_size, rate=rate, exact=exact)
        single = np.mean([first_crossing(curve, TARGET) for curve in curves])
        print(
            f"  {batch_size:6d}  {rate:8.4f}  {exact:10.2f}   {trained:8.2f} ± {error:5.2f}  "
            f"{trained / exact:12.3f}   {single:12.2f}",
            flush=True,
        )


def show_planted_law(task: NoisyQuadratic, *, damping: float, num_seeds: int) -> None:
    problem = task.problem()
    law = planted_law(problem, target=TARGET, damping=damping)
    print(f"2. Per-step optimal rate x {damping}, {task}, target {TARGET}, {num_seeds} seeds")
    observations, deviations = [], []
    for batch_size in BATCH_SIZES:
        _, exact = optimal_rates(problem, batch_size=batch_size, target=TARGET, damping=damping)
        rates, _ = optimal_rates(problem, batch_size=batch_size, target=TARGET / 2, damping=damping)
        deviations.append(exact / law.steps(batch_size) - 1.0)
        for seed in range(num_seeds):
            losses = train_scheduled(task, batch_size=batch_size, rates=rates, seed=seed)
            steps = first_crossing(losses, TARGET)
            observations.append(Observation(batch_size=batch_size, steps=steps, seed=seed))
    result = fit_critical_batch_size(observations)
    print(f"   the recursion is off the planted law by {min(deviations):+.2%} to {max(deviations):+.2%}")
    for name, planted, estimate in (
        ("S_min", law.min_steps, result.min_steps),
        ("B_crit", law.critical_batch_size, result.critical_batch_size),
        ("E_min", law.min_examples, result.min_examples),
    ):
        low, high = estimate.low or -math.inf, estimate.high or math.inf
        verdict = "inside" if low <= planted <= high else "OUTSIDE"
        print(f"   {name:6s} planted {planted:10.2f}   fitted {estimate}   {verdict}")
    for flag in result.flags:
        print(f"   flag: {flag}")


def show_constant_rate_misfit() -> None:
    print("3. The law fitted to the recursion's S(B) at the best constant rate, B = 1 to 4096: S/law - 1")
    problems = {f"condition {c:g}, additive": NoisyQuadratic(condition_number=c) for c in (3.0, 10.0, 100.0)}
    problems["condition 100, multiplicative"] = NoisyQuadratic(noise="multiplicative", noise_scale=100.0)
    cases = {name: task.problem() for name, task in problems.items()} | {
        f"one sharp direction, 63 flat ones {flat:g}": sharp_and_flat(flat) for flat in (0.1, 0.01)
    }
    for name, problem in cases.items():
        batch_sizes = 2.0 ** np.arange(13)
        steps = np.array(
            [steps_at_best_rate(problem, batch_size=float(batch_size)) for batch_size in batch_sizes]
        )
        fitted = fit_hyperbola(np.log(batch_sizes), np.log(steps), np.ones(len(steps)))
        off = np.expm1(fitted.residual)
        min_steps = math.exp(fitted.log_steps(np.array([100.0]))[0])
        print(
            f"   {name:40s} {off.min():+.1%} to {off.max():+.1%}   "
            f"(S_min {min_steps:.1f}, B_crit {math.exp(fitted.theta):.0f})"
        )


def sharp_and_flat(flat: float) -> QuadraticProblem:
    """A direction that limits the rate but holds no loss, beside many that hold it all."""
    curvatures = np.array([1.0, *[flat] * 63])
    initial = np.array([0.0, *[math.sqrt(2.0 / (63 * flat))] * 63])
    return QuadraticProblem(
        curvatures=curvatures, initial=initial, noise_variances=10.0 * flat * curvatures / curvatures.sum()
    )


def steps_at_best_rate(problem: QuadraticProblem, *, batch_size: float) -> float:
    best = best_learning_rate(problem, batch_size=batch_size, target=TARGET)
    assert best is not None
    found = steps_to_target(problem, batch_size=batch_size, learning_rate=best[0], target=TARGET)
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    show_constant_rate(args.seeds)
    # With damping below 1/condition_number no direction is ever stepped past its optimum.
    shape = {"dimension": 64, "condition_number": 10.0}
    multiplicative = NoisyQuadratic(**shape, noise="multiplicative", noise_scale=100.0)
    show_planted_law(multiplicative, damping=0.05, num_seeds=args.seeds)
    show_planted_law(NoisyQuadratic(**shape), damping=0.01, num_seeds=args.seeds)
    show_constant_rate_misfit()


if __name__ == "__main__":
    main()
