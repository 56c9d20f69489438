"""What the trainer costs beside a hand-written loop of the same maths.

Both loops train one three-layer network on the same random vectors, on one thread, and take its optimizer
steps in turn, in random order within each pair, so that whatever else the machine does falls on both. They
share model, data and optimizer: where a process happens to put its tensors makes a step faster or slower by
percents, and must do so to both. The process's allocator keeps what is freed (a loop that gives memory back
and takes it again times the kernel). Prints the median over pairs of the trainer's extra time, relative to
the hand-written step, with its 95 % interval (order statistics of the pairs). `hand-written` twice is the
same comparison of a loop with itself, which must come out as nothing.

    python experiments/trainer_overhead.py [--pairs 400] [--clock cpu] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from medians import median_interval
from torch import nn

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.data.index_stream import IndexStream
from gasweep.data.streams import run_data_seed
from gasweep.tasks.base import Batch, Data, SummedLoss, Task
from gasweep.training.advance import Stepper
from gasweep.training.build import Trainer, build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

CASES = [
    (32, (8, 1, 1), "trainer"),
    (32, (8, 1, 4), "trainer"),
    (2048, (32, 1, 8), "hand-written"),
    (2048, (32, 1, 8), "trainer"),
    (2048, (128, 1, 2), "trainer"),
    (2048, (128, 1, 8), "trainer"),
]
"""Width, (b, N, G) and what is set beside the hand-written loop. The first two tell what a step and a
micro-step cost by themselves; the third, what the comparison makes of no difference at all."""

WARMUP_PAIRS = 10


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


def trainer_step(trainer: Trainer) -> Callable[[], object]:
    """One optimizer step of gasweep's trainer per call."""
    stepper = Stepper(trainer, progress=RunProgress(), sink=_ignore, flags=lambda: (False, False))

    def step() -> None:
        stepper.attempt()
        stepper.log.hand_over()

    return step


def hand_written_step(trainer: Trainer) -> Callable[[], object]:
    """The same step as anyone would write it: index, forward, backward, SGD, loss read for the log."""
    spec, data = trainer.parts.spec, trainer.parts.data
    model, optimizer = trainer.parts.module, trainer.optimizer
    layout, total = spec.layout, spec.effective_batch_size
    stream = IndexStream(num_examples=len(data), seed=run_data_seed(0, spec.seed), sampling="epoch")
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
            torch.autograd.backward(loss / total)
            loss_sum += loss.detach()
        optimizer.step()
        losses.append(loss_sum.item() / total)

    return step


def compare(
    process: ProcessContext, *, width: int, layout: tuple[int, int, int], pairs: int, clock: str, against: str
) -> dict[str, list[float]]:
    """Seconds per step of both loops, pair by pair."""
    now = time.perf_counter if clock == "wall" else time.process_time
    trainer = build_trainer(_spec(width=width, layout=layout), process=process)
    build = {"trainer": trainer_step, "hand-written": hand_written_step}
    steps = {"hand": hand_written_step(trainer), "other": build[against](trainer)}
    found: dict[str, list[float]] = {name: [] for name in steps}
    order = random.Random(0)
    for pair in range(WARMUP_PAIRS + pairs):
        for name in order.sample(list(steps), len(steps)):
            started = now()
            steps[name]()
            if pair >= WARMUP_PAIRS:
                found[name].append(now() - started)
    return found


def measure(**case: Any) -> dict[str, Any]:
    """`compare` in a process of its own: the median extra time with its 95 % interval."""
    with LocalRanks(timeout_s=7200) as ranks:
        (found,) = ranks.run(1, compare, **case)
    hand = np.array(found["hand"])
    ratios = np.array(found["other"]) / hand - 1
    low, high = median_interval(ratios)
    return {
        "width": case["width"],
        "layout": "x".join(map(str, case["layout"])),
        "against": case["against"],
        "hand_written_ms": 1e3 * float(np.median(hand)),
        "overhead_ms": 1e3 * float(np.median(np.array(found["other"]) - hand)),
        "overhead": float(np.median(ratios)),
        "overhead_low": low,
        "overhead_high": high,
        "pairs": case["pairs"],
    }


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor seconds of the process, for a machine that others use too",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    rows = []
    for width, layout, against in CASES:
        row = measure(width=width, layout=layout, against=against, pairs=options.pairs, clock=options.clock)
        rows.append(row)
        if not options.json:
            print(_line(row), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


def _line(row: dict[str, Any]) -> str:
    return (
        f"width {row['width']:>5}  b x N x G {row['layout']:>8}  "
        f"hand-written {row['hand_written_ms']:8.3f} ms  {row['against']:>12} {row['overhead_ms']:+.3f} ms  "
        f"{row['overhead']:+.2%} [{row['overhead_low']:+.2%}, {row['overhead_high']:+.2%}] "
        f"({row['pairs']} pairs)"
    )


if __name__ == "__main__":
    main()
