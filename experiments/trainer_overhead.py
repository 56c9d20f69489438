"""What the trainer costs beside a hand-written loop of the same maths.

Both loops train the same model on the same examples; their optimizer steps are timed in alternating blocks,
so that whatever else the machine does falls on both. Prints the median ratio of paired blocks with its 95 %
interval (order statistics of the pairs), per model size.

    python experiments/trainer_overhead.py [--pairs 40] [--clock cpu] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.data.index_stream import IndexStream
from gasweep.data.streams import run_data_seed
from gasweep.tasks.base import Batch, Data, SummedLoss, Task
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress


@dataclass(frozen=True, kw_only=True)
class Vectors(Data):
    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: np.ndarray[Any, Any]) -> Batch:
        picked = torch.from_numpy(indices)
        return self.x[picked], self.y[picked]


@dataclass(kw_only=True)
class Classifier(Task):
    """A three-layer network on random vectors; `width` sets how long a step takes."""

    width: int = 64
    num_examples: int = 4096

    def train_data(self, *, root: str | None) -> Data:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.num_examples, 64, generator=generator)
        return Vectors(x=x, y=torch.randint(0, 10, (self.num_examples,), generator=generator))

    def build_model(self) -> nn.Module:
        w = self.width
        return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 10))

    def loss(self, model: nn.Module, batch: Batch) -> SummedLoss:
        x, y = batch
        return SummedLoss(total=nn.functional.cross_entropy(model(x), y, reduction="sum"), num_items=len(y))

    def eval_batches(self, *, root: str | None, batch_size: int, max_examples: int | None) -> list[Batch]:
        return [self.train_data(root=root).batch(np.arange(32))]

    def eval_sums(self, model: nn.Module, batch: Batch) -> dict[str, tuple[float, float]]:
        return {"eval_loss": (float(self.loss(model, batch).total), float(len(batch[1])))}


def trainer_step(spec: RunSpec) -> Callable[[], object]:
    """One optimizer step of gasweep's trainer per call."""
    trainer = build_trainer(spec, process=ProcessContext())
    stepper = Stepper(trainer, progress=RunProgress(), sink=_ignore, flags=lambda: (False, False))

    def step() -> None:
        stepper.attempt()
        stepper.log.hand_over()

    return step


def hand_written_step(spec: RunSpec, task: Classifier) -> Callable[[], object]:
    """The same step as anyone would write it: index, forward, backward, SGD, loss read for the log."""
    layout, total = spec.layout, spec.effective_batch_size
    data = task.train_data(root=None)
    stream = IndexStream(num_examples=len(data), seed=run_data_seed(0, spec.seed), sampling="epoch")
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.learning_rate, foreach=True)
    losses: list[float] = []
    position = 0

    def step() -> None:
        nonlocal position
        indices = stream.take(position, total)
        position += total
        optimizer.zero_grad()
        loss_sum = torch.zeros(())
        for start in range(0, total, layout.micro_batch_size):
            x, y = data.batch(indices[start : start + layout.micro_batch_size])
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            (loss / total).backward()
            loss_sum += loss.detach()
        optimizer.step()
        losses.append(loss_sum.item() / total)

    return step


def compare(
    *, width: int, layout: tuple[int, int, int], pairs: int, block: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Paired ratios of trainer to hand-written step time."""
    task = Classifier(width=width)
    spec = _spec(width=width, layout=layout)
    contenders = {"hand": hand_written_step(spec, task), "trainer": trainer_step(spec)}
    for step in contenders.values():
        _seconds(step, block, clock)
    ratios, extra, base = [], [], []
    for pair in range(pairs):
        order = ("hand", "trainer") if pair % 2 == 0 else ("trainer", "hand")
        seconds = {name: _seconds(contenders[name], block, clock) for name in order}
        ratios.append(seconds["trainer"] / seconds["hand"])
        extra.append(seconds["trainer"] - seconds["hand"])
        base.append(seconds["hand"])
    low, high = median_interval(ratios)
    return {
        "width": width,
        "layout": "x".join(map(str, layout)),
        "hand_written_ms": 1e3 * float(np.median(base)),
        "overhead_ms": 1e3 * float(np.median(extra)),
        "ratio": float(np.median(ratios)),
        "ratio_low": low,
        "ratio_high": high,
        "pairs": pairs,
        "steps_per_block": block,
    }


def _seconds(step: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    """Mean seconds per call over `count` calls."""
    started = clock()
    for _ in range(count):
        step()
    return (clock() - started) / count


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the median from order statistics (binomial, normal approximation)."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    first = max(0, math.floor(len(ordered) / 2 - reach))
    last = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach) - 1)
    return ordered[first], ordered[last]


def _spec(*, width: int, layout: tuple[int, int, int]) -> RunSpec:
    b, n, g = layout
    config = SweepConfig(task={"_target_": f"{Classifier.__module__}.Classifier", "width": width})
    config.noise_scale.enabled = False
    return RunSpec(
        run_id="overhead",
        kind="convergence",
        effective_batch_size=b * n * g,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=g),
        learning_rate=0.01,
        seed=0,
        config=config,
    )


def _ignore(*, steps: list[Any], evaluations: list[Any]) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor seconds of this process, for a machine that others use too",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        {"width": 32, "layout": (8, 1, 1), "block": 200},
        {"width": 32, "layout": (8, 1, 4), "block": 60},
        {"width": 1024, "layout": (256, 1, 2), "block": 2},
        {"width": 1024, "layout": (64, 1, 8), "block": 2},
    ]
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rows = [compare(pairs=options.pairs, clock=clock, **case) for case in cases]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"width {row['width']:>5}  b x N x G {row['layout']:>8}  "
            f"hand-written {row['hand_written_ms']:8.3f} ms  "
            f"trainer +{row['overhead_ms']:.3f} ms  ratio {row['ratio']:.4f} "
            f"[{row['ratio_low']:.4f}, {row['ratio_high']:.4f}]  ({row['pairs']} pairs)"
        )


if __name__ == "__main__":
    main()
