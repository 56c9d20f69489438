"""What the trainer costs beside a hand-written loop of the same maths.

Both loops train the same three-layer network on the same random vectors, on one thread; their optimizer steps
take turns in pairs of blocks, so that whatever else the machine does falls on both. Where a process happens
to put its tensors makes one loop faster than the other by percents, for as long as they live: both are built
anew for each pair, in the one order and the other in turn, in a process whose allocator keeps what is freed
(a loop that gives memory back and takes it again times the kernel). Prints the mean ratio with its 95 %
interval over pairs.

    python experiments/trainer_overhead.py [--pairs 120] [--clock cpu] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student_t
from torch import nn

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.data.index_stream import IndexStream
from gasweep.data.streams import run_data_seed
from gasweep.tasks.base import Batch, Data, SummedLoss, Task
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
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
    process: ProcessContext, *, width: int, layout: tuple[int, int, int], block: int, pairs: int, clock: str
) -> dict[str, list[float]]:
    """Seconds per step of both loops, pair by pair."""
    now = time.perf_counter if clock == "wall" else time.process_time
    found: dict[str, list[float]] = {"hand": [], "trainer": []}
    spec = _spec(width=width, layout=layout)
    build: dict[str, Callable[[], Callable[[], object]]] = {
        "hand": lambda: hand_written_step(spec, Classifier(width=width)),
        "trainer": lambda: trainer_step(spec),
    }
    for pair in range(pairs):
        order = ("hand", "trainer") if pair % 2 == 0 else ("trainer", "hand")
        steps = {name: build[name]() for name in order}
        for step in steps.values():
            _seconds(step, 2, now)
        # Both orders of timing under each order of building.
        for name in order if pair % 4 < 2 else reversed(order):
            found[name].append(_seconds(steps[name], block, now))
    return found


def measure(*, layout: tuple[int, int, int], **case: Any) -> dict[str, Any]:
    """`compare` in a process of its own: mean ratio with its 95 % interval."""
    with LocalRanks() as ranks:
        (found,) = ranks.run(1, compare, layout=layout, **case)
    ratios = np.array(found["trainer"]) / np.array(found["hand"])
    reach = float(student_t.ppf(0.975, len(ratios) - 1)) * float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    hand = float(np.median(found["hand"]))
    return {
        "width": case["width"],
        "layout": "x".join(map(str, layout)),
        "hand_written_ms": 1e3 * hand,
        "overhead_ms": 1e3 * float(ratios.mean() - 1) * hand,
        "ratio": float(ratios.mean()),
        "ratio_low": float(ratios.mean()) - reach,
        "ratio_high": float(ratios.mean()) + reach,
        "pairs": case["pairs"],
        "steps_per_block": case["block"],
    }


def _seconds(step: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    """Mean seconds per call over `count` calls."""
    started = clock()
    for _ in range(count):
        step()
    return (clock() - started) / count


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
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor seconds of the process, for a machine that others use too",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    cases = [
        {"width": 32, "layout": (8, 1, 1), "block": 60},
        {"width": 32, "layout": (8, 1, 4), "block": 20},
        {"width": 2048, "layout": (64, 1, 2), "block": 3},
        {"width": 2048, "layout": (16, 1, 8), "block": 3},
    ]
    rows = []
    for case in cases:
        rows.append(measure(pairs=options.pairs, clock=options.clock, **case))
        if not options.json:
            print(_line(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


def _line(row: dict[str, Any]) -> str:
    return (
        f"width {row['width']:>5}  b x N x G {row['layout']:>8}  "
        f"hand-written {row['hand_written_ms']:8.3f} ms  trainer {row['overhead_ms']:+.3f} ms  "
        f"ratio {row['ratio']:.4f} [{row['ratio_low']:.4f}, {row['ratio_high']:.4f}]  ({row['pairs']} pairs)"
    )


if __name__ == "__main__":
    main()
