"""gasweep's noise scale beside gns-pytorch's (PyPI, 0.1.5) on the very same gradients.

    pip install gns-pytorch
    python experiments/noise_against_gns_pytorch.py [--batches 300] [--task digits|text_lm] [--json FILE]

A small model is trained for a while, then held fixed; every batch of 32 examples, drawn without replacement,
gives both estimates from its per-example gradients. The truth is brute force over the whole data set.
Printed:

    same batch        largest relative difference of tr Σ / |G|² per batch, where |G|² is positive
    clamped           share of batches whose |G|² is negative, which gns-pytorch reports as 0
    their mean, EMA   what averaging gns-pytorch's values gives (its README: an EMA with decay 0.9)
    their defaults    the mean with its default arguments (ten random tensors, a quarter of the batch)
    ours              the ratio of means with its 95 % interval, finite-data correction included
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from noise_brute_force import build, per_example, truth
from torch import nn

from gasweep.analysis.noise_scale import NoiseMeasurement, measure_groups
from gasweep.analysis.noise_scale_window import noise_scale
from gasweep.tasks.base import Task

BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Row:
    task: str
    trained_steps: int
    batches: int
    true_noise_scale: float
    same_batch: float
    clamped: float
    their_mean: float
    their_ema: float
    their_defaults_mean: float
    ours: str


def train(
    task: Task, model: nn.Module, data: Any, count: int, *, steps: int, rng: np.random.Generator
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss(model, data(rng.integers(0, count, BATCH)))
        (loss.total / loss.num_items).backward()
        optimizer.step()


def run(name: str, *, steps: int, batches: int) -> Row:
    from gns_pytorch import compute_gns

    rng = np.random.default_rng(0)
    task, model, count, _ = build(name)
    data = task.train_data(root=None).batch
    train(task, model, data, count, steps=steps, rng=rng)
    items = torch.full((count,), float(task.count_items(data(np.arange(1)))), dtype=torch.float64)
    sq_norm, trace = truth(task, model, (data, items, 64))
    theirs, defaults, ours, differences = [], [], [], []
    for number in range(batches):
        batch = data(rng.permutation(count)[:BATCH])
        rows = per_example(task, model, batch) / float(items[0])
        norms = rows.square().sum(dim=1).tolist()
        mean = float(rows.mean(dim=0).square().sum())
        bare = measure_groups(norms, counts=[1] * BATCH, mean_sq_norm=mean)
        full = measure_groups(norms, counts=[1] * BATCH, mean_sq_norm=mean, dataset_size=count)
        assert isinstance(bare, NoiseMeasurement)
        ours.append(full)
        random.seed(number)
        theirs.append(
            compute_gns(
                task.group_losses(model, batch) / float(items[0]),
                model,
                param_percentage=1.0,
                batch_percentage=1.0,
            )
        )
        defaults.append(compute_gns(task.group_losses(model, batch) / float(items[0]), model))
        if bare.grad_sq_norm > 0.05 * mean:
            ratio = bare.grad_noise_trace / bare.grad_sq_norm
            differences.append(abs(theirs[-1] / ratio - 1.0))
    ema = theirs[0]
    for value in theirs[1:]:
        ema = 0.9 * ema + 0.1 * value
    return Row(
        task=name,
        trained_steps=steps,
        batches=batches,
        true_noise_scale=trace / sq_norm,
        same_batch=max(differences, default=float("nan")),
        clamped=sum(value == 0.0 for value in theirs) / batches,
        their_mean=float(np.mean(theirs)),
        their_ema=float(ema),
        their_defaults_mean=float(np.mean(defaults)),
        ours=str(noise_scale(ours).noise_scale),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--task", choices=("digits", "text_lm"), help="both without")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, steps in (("digits", 0), ("digits", 150), ("text_lm", 0), ("text_lm", 300)):
        if arguments.task not in (None, name):
            continue
        rows.append(run(name, steps=steps, batches=arguments.batches))
        print(rows[-1], flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
