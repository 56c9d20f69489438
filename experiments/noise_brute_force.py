"""Noise scale against brute force: per-example gradients (torch.func) of the whole data set.

    python experiments/noise_brute_force.py [--task digits|text_lm|text_lm_masked] [--epochs 8] [--json FILE]

The population is finite (digits: all 1,797 images; text_lm: the first 1,024 windows), so that its |G|² and
tr Σ are known exactly at any parameters. It is drawn by epochs without replacement, as training does, and
every step that stays within an epoch is measured by `GradientNoiseScale`:

    frozen     parameters held fixed over all epochs: z of the mean errors, |z| < 3 in unbiased estimates
    training   plain SGD; the truth is recomputed at every measured step

"uncorrected" is |G|² without adding tr Σ / D back, the bias that an infinite-data formula leaves. During
training the examples a step draws have not been trained on in this epoch while others have, so a small
difference from the whole population's gradient is real and no estimator's bias.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.tasks.base import Task
from gasweep.tasks.digits import Digits
from gasweep.tasks.text_lm import TextLm
from gasweep.training.gradient_noise import GradientNoiseScale

WINDOWS = 1024


@dataclass(frozen=True, kw_only=True)
class Row:
    """Means over steps, and z of the mean error against brute force at the same parameters."""

    task: str
    parameters: str
    steps: int
    groups: str
    true_sq_norm: float
    true_trace: float
    sq_norm: float
    sq_norm_z: float
    uncorrected_sq_norm_z: float
    trace: float
    trace_z: float


def build(name: str) -> tuple[Task, nn.Module, int, int]:
    """Task, model, D, and micro-batch size."""
    torch.manual_seed(0)
    if name == "digits":
        task: Task = Digits(eval_fraction=0.0)
        return task, task.build_model(), len(task.train_data(root=None)), 16
    task = TextLm(depth=1, width=32, context=32, mask_fraction=0.4 if name == "text_lm_masked" else 0.0)
    return task, task.build_model(), WINDOWS, 8


def per_example(task: Task, model: nn.Module, batch: Any) -> Tensor:
    """[n, P] fp64: the gradient of each example's own summed loss."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    class Bound(nn.Module):
        def __init__(self, values: dict[str, Tensor]) -> None:
            super().__init__()
            self.values = values

        def forward(self, inputs: Tensor) -> Any:
            return functional_call(model, self.values, (inputs,))

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.group_losses(Bound(values), (x[None], y[None])).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, *batch)
    return torch.cat([gradients[name].flatten(1).double() for name in parameters], dim=1)


def truth(task: Task, model: nn.Module, population: Any) -> tuple[float, float]:
    """|G|² and tr Σ (divisor D − 1) of the item-weighted mean gradient over the population."""
    data, items, chunk = population
    count = len(items)
    total, square, cross = None, 0.0, None
    item_sq = float((items**2).sum())
    for start in range(0, count, chunk):
        rows = per_example(task, model, data(np.arange(start, min(start + chunk, count))))
        weight = items[start : start + len(rows)]
        square += float(rows.square().sum())
        total = rows.sum(dim=0) if total is None else total + rows.sum(dim=0)
        cross = weight @ rows if cross is None else cross + weight @ rows
    assert total is not None
    assert cross is not None
    mean = total / float(items.sum())
    residual = square - 2.0 * float(cross @ mean) + item_sq * float(mean @ mean)
    return float(mean @ mean), residual / (count - 1) / (float(items.sum()) / count) ** 2


def run(name: str, *, trains: bool, epochs: int, rng: np.random.Generator) -> Row:
    task, model, count, b = build(name)
    source = task.train_data(root=None)
    items = torch.tensor(
        [float(task.count_items(source.batch(np.array([i])))) for i in range(count)], dtype=torch.float64
    )
    differ = bool((items != items[0]).any())
    noise = GradientNoiseScale(model, loss_reduction="sum", items_differ=differ, every=1, dataset_size=count)
    learning_rate, groups = (0.1 if trains else 0.0), 4
    population = (source.batch, items, 256 if name == "digits" else 64)
    fixed = None if trains else truth(task, model, population)
    errors, plain = [], []
    for _ in range(epochs):
        order = rng.permutation(count)
        for start in range(0, count - b * groups + 1, b * groups):
            drawn = order[start : start + b * groups]
            exact = fixed or truth(task, model, population)
            result = one_step(task, model, noise, source.batch, drawn, items, b, learning_rate)
            errors.append((result.grad_sq_norm - exact[0], result.grad_noise_trace - exact[1]))
            plain.append((exact[0], exact[1], result.grad_sq_norm, result.grad_noise_trace))
    noise.close()
    error, mean = np.array(errors), np.array(plain).mean(axis=0)
    uncorrected = error[:, 0] - np.array(plain)[:, 3] / count
    return Row(
        task=name,
        parameters="training" if trains else "frozen",
        steps=len(errors),
        groups=f"{groups} of {b}",
        true_sq_norm=float(mean[0]),
        true_trace=float(mean[1]),
        sq_norm=float(mean[2]),
        sq_norm_z=z_of(error[:, 0]),
        uncorrected_sq_norm_z=z_of(uncorrected),
        trace=float(mean[3]),
        trace_z=z_of(error[:, 1]),
    )


def one_step(
    task: Task,
    model: nn.Module,
    noise: GradientNoiseScale,
    batch_of: Callable[[Any], Any],
    drawn: Any,
    items: Tensor,
    b: int,
    learning_rate: float,
) -> NoiseMeasurement:
    model.zero_grad()
    total = float(items[drawn].sum())
    for first in range(0, len(drawn), b):
        chosen = drawn[first : first + b]
        with noise.group(num_examples=len(chosen), num_items=float(items[chosen].sum())):
            (task.loss(model, batch_of(chosen)).total / total).backward()
    result = noise.step(loss_divisor=total)
    assert isinstance(result, NoiseMeasurement), result
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= learning_rate * parameter.grad
    return result


def z_of(values: Any) -> float:
    return float(np.mean(values) / np.std(values, ddof=1) * math.sqrt(len(values)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("digits", "text_lm", "text_lm_masked"), action="append")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.task or ("digits", "text_lm", "text_lm_masked"):
        for trains in (False, True):
            epochs = arguments.epochs * (1 if trains else 4)
            if trains and name != "digits":
                epochs = max(1, arguments.epochs // 4)
            rows.append(run(name, trains=trains, epochs=epochs, rng=np.random.default_rng(arguments.seed)))
            print(rows[-1], flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
