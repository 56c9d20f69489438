"""How far is an accumulated gradient from the float64 gradient of the whole batch, and how far may it be?

    python experiments/gradient_error.py [--cases 200] [--seed 0] [--ranks 1 2 4] [--json FILE]

Draws random cases (B, b, N, G, ragged last groups, unequal numbers of valid items per example, item weights,
strategy, precision, fast or bitwise), takes the gradient of a weighted least-squares problem through the
whole trainer, and divides its largest error by a bound from the standard model of floating-point arithmetic,
element by element. A ratio above 1 would be a defect. Printed per precision and mode: cases, largest error
relative to the largest gradient element, median and largest ratio.

Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. 2002, lemma 3.1 (γ_n = nu/(1 - nu))
and section 4.2: n terms added in any order are within γ_(n-1) Σ|terms| of their sum.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.tasks.base import Batch, Data, SummedLoss, Task
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.process import ProcessContext

UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-8}
FEATURES = 7
TOKENS = 3
EXAMPLES = 64
PRECISIONS = ("fp32", "fp64", "bf16")

Array = np.ndarray[Any, np.dtype[Any]]
Taken = tuple[Array, Array, Array]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One random case. spread: the data's magnitudes span 2^spread."""

    effective_batch_size: int
    micro_batch_size: int
    world_size: int
    strategy: str
    precision: str
    determinism: str
    grain: int
    spread: int
    seed: int


class Examples(Data):
    """x [TOKENS, FEATURES], y and weight [TOKENS] per example; weight 0: not valid."""

    def __init__(self, *, spread: int, seed: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        scale = 2.0 ** torch.randint(-spread, 1, (EXAMPLES, 1, 1), generator=generator)
        self.x = (torch.randn(EXAMPLES, TOKENS, FEATURES, generator=generator) * scale).to(dtype)
        self.y = torch.randn(EXAMPLES, TOKENS, generator=generator).to(dtype)
        weight = torch.randint(1, 5, (EXAMPLES, TOKENS), generator=generator)
        valid = torch.arange(TOKENS) < torch.randint(0, TOKENS + 1, (EXAMPLES, 1), generator=generator)
        self.weight = (weight * valid).to(dtype)

    def __len__(self) -> int:
        return EXAMPLES

    def batch(self, indices: Array) -> Batch:
        picked = torch.from_numpy(indices)
        return self.x[picked], self.y[picked], self.weight[picked]


@dataclass(kw_only=True)
class WeightedLeastSquares(Task):
    """Σ weight (x·w - y)² / 2 over the valid tokens of a group."""

    spread: int = 0
    data_seed: int = 0
    dtype: str = "float32"

    def train_data(self, *, root: str | None) -> Examples:
        return Examples(spread=self.spread, seed=self.data_seed, dtype=getattr(torch, self.dtype))

    def build_model(self) -> nn.Module:
        return nn.Linear(FEATURES, 1, bias=False)

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y, weight = batch
        residual = model(x)[..., 0] - y
        return SummedLoss(total=(weight * residual.square()).sum() / 2, num_items=self.count_items(batch))

    def count_items(self, batch: Batch) -> int:
        return int((batch[2] > 0).sum())

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        return [self.train_data(root=root).batch(np.arange(4))]

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        loss = self.loss(model, batch)
        return {"eval_loss": (float(loss.total), float(max(loss.num_items, 1)))}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case's largest error, absolute and relative to the largest gradient element, and error / bound."""

    case: Case
    relative_error: float
    ratio: float


def draw_case(
    generator: random.Random, *, ranks: list[int], precisions: tuple[str, ...] = PRECISIONS
) -> Case:
    world_size = generator.choice(ranks)
    determinism = generator.choice(["fast", "bitwise"])
    grain = generator.choice([1, 2, 4]) if determinism == "bitwise" else 1
    return Case(
        effective_batch_size=generator.randint(world_size, 60),
        micro_batch_size=generator.randint(1, 16 // grain) * grain,
        world_size=world_size,
        strategy=generator.choice(["ddp", "fsdp"]),
        precision=generator.choice(list(precisions)),
        determinism=determinism,
        grain=grain,
        spread=generator.choice([0, 6, 12]),
        seed=generator.randrange(2**31),
    )


def spec_of(case: Case) -> RunSpec:
    config = SweepConfig()
    dtype = "float64" if case.precision == "fp64" else "float32"
    config.task = {
        "_target_": "experiments.gradient_error.WeightedLeastSquares",
        "spread": case.spread,
        "data_seed": case.seed,
        "dtype": dtype,
    }
    config.strategy, config.precision = case.strategy, case.precision
    config.determinism, config.grain = case.determinism, case.grain
    config.budget.max_optimizer_steps = 1
    units = math.ceil(case.effective_batch_size / case.grain)
    share = math.ceil(units / case.world_size) * case.grain
    return RunSpec(
        run_id="case",
        kind="convergence",
        effective_batch_size=case.effective_batch_size,
        layout=Layout(
            micro_batch_size=case.micro_batch_size,
            world_size=case.world_size,
            accumulation_steps=math.ceil(share / case.micro_batch_size),
        ),
        learning_rate=0.1,
        seed=case.seed,
        config=config,
    )


def gradient_of(process: ProcessContext, *, spec: RunSpec) -> Taken:
    """(gradient, the parameters and the data set indices it was taken at) of a run's first optimizer step."""
    trainer = build_trainer(spec, process=process)
    ((_, tensor),) = trainer.parts.parameters
    start = _whole(tensor).double().flatten().numpy().copy()
    plan = trainer.planner.plan(
        optimizer_step=0,
        contributions=0,
        effective_batch_size=spec.effective_batch_size,
        micro_batch_size=spec.layout.micro_batch_size,
    )
    trainer.step.run(plan, learning_rate=0.0)
    gradient = np.zeros(FEATURES)
    if tensor.grad is not None:
        gradient = _whole(tensor.grad).double().flatten().numpy().copy()
    indices = trainer.parts.stream.take(0, spec.effective_batch_size)
    trainer.parts.strategy.close()
    return gradient, start, indices


def exact_and_bound(case: Case, spec: RunSpec, parameters: Array, indices: Array) -> tuple[Array, Array]:
    """The float64 gradient of the whole batch, and the largest error arithmetic allows, per element.

    One term is weight · r · x / items, r = x·w - y. Its own operations commit at most FEATURES + 4 roundings
    on |x|·|w| + |y|, and 6 more after it; adding m terms, in any order and grouping, at most m more on
    |term|. Low precision rounds the inputs, the products' results and each group's sum once each, in bf16.
    Bitwise mode rounds each of K grains to a grid of its step's largest element, 2^-(53 - log2 K) of it.
    """
    data = WeightedLeastSquares(spread=case.spread, data_seed=case.seed, dtype=spec.config.task["dtype"])
    x, y, weight = (
        t.double().numpy().reshape(-1, *t.shape[2:]) for t in data.train_data(root=None).batch(indices)
    )
    items = max(int((weight > 0).sum()), 1)
    residual = x @ parameters - y
    exact = (weight * residual) @ x / items
    reach = np.abs(x) @ np.abs(parameters) + np.abs(y)
    high = UNIT["fp64" if case.precision == "fp64" else "fp32"]
    low = UNIT[case.precision]
    own = _gamma(FEATURES + 4, high) + _gamma(8, low)
    order = _gamma(len(x) + 6, high) + (_gamma(3, low) if low != high else 0.0)
    terms = weight[:, None] * np.abs(x) / items
    largest = float((np.abs(residual)[:, None] * terms).sum(0).max())
    bound = (own * reach[:, None] * terms).sum(0) * (1 + order) + order * (
        np.abs(residual)[:, None] * terms
    ).sum(0)
    if case.determinism == "bitwise":
        grains = math.ceil(case.effective_batch_size / case.grain)
        bound = bound + grains / 2 * largest * 2.0 ** -(53 - (grains - 1).bit_length())
    return exact, bound + np.finfo(np.float32).tiny


def examine(case: Case, run: Callable[[RunSpec], Taken]) -> Outcome:
    """run: gives `gradient_of` a spec, on as many ranks as it has."""
    spec = spec_of(case)
    gradient, parameters, indices = run(spec)
    exact, bound = exact_and_bound(case, spec, parameters, indices)
    error = np.abs(gradient - exact)
    scale = max(float(np.abs(exact).max()), np.finfo(np.float32).tiny)
    return Outcome(case=case, relative_error=float(error.max() / scale), ratio=float((error / bound).max()))


def _gamma(count: int, unit: float) -> float:
    return count * unit / (1 - count * unit)


def _whole(tensor: Tensor) -> Tensor:
    whole = tensor.detach()
    return whole.full_tensor() if isinstance(whole, DTensor) else whole


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    with LocalRanks(timeout_s=7200) as ranks:

        def run(spec: RunSpec) -> Taken:
            outcome: Taken = ranks.run(spec.layout.world_size, gradient_of, spec=spec)[0]
            return outcome

        outcomes = [examine(draw_case(generator, ranks=options.ranks), run) for _ in range(options.cases)]
    print("precision  mode     cases  largest error  error / bound: median  largest")
    for precision in PRECISIONS:
        for mode in ("fast", "bitwise"):
            chosen = [o for o in outcomes if (o.case.precision, o.case.determinism) == (precision, mode)]
            if chosen:
                ratios = [outcome.ratio for outcome in chosen]
                largest = max(outcome.relative_error for outcome in chosen)
                print(
                    f"{precision:<10} {mode:<8} {len(chosen):5d}  {largest:13.1e}  "
                    f"{statistics.median(ratios):21.3f}  {max(ratios):7.3f}"
                )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


if __name__ == "__main__":
    main()
