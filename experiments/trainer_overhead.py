"""What the trainer costs beside a hand-written loop of the same maths.

Both loops train the same three-layer network on the same random vectors, on one thread; their optimizer steps
are timed in alternating blocks, so that whatever else the machine does falls on both. Where a process happens
to put its tensors makes one loop faster than the other by percents, for as long as it lives: the comparison
is repeated in several fresh processes, whose allocator keeps what is freed (a loop that gives memory back and
takes it again times the kernel), and the 95 % interval is of the mean over processes.

    python experiments/trainer_overhead.py [--processes 10] [--pairs 30] [--clock cpu] [--json]
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
) -> dict[str, float]:
    """Median ratio of trainer to hand-written step time over pairs, and medians of both, in this process."""
    task = Classifier(width=width)
    spec = _spec(width=width, layout=layout)
    now = time.perf_counter if clock == "wall" else time.process_time
    contenders = {"hand": hand_written_step(spec, task), "trainer": trainer_step(spec)}
    for step in contenders.values():
        _seconds(step, max(3, block), now)
    ratios, base = [], []
    for pair in range(pairs):
        order = ("hand", "trainer") if pair % 2 == 0 else ("trainer", "hand")
        seconds = {name: _seconds(contenders[name], block, now) for name in order}
        ratios.append(seconds["trainer"] / seconds["hand"])
        base.append(seconds["hand"])
    return {"ratio": float(np.median(ratios)), "hand_written_s": float(np.median(base))}


def replicate(*, processes: int, **case: Any) -> dict[str, Any]:
    """`compare` in fresh processes: mean ratio with its 95 % interval."""
    found = []
    for _ in range(processes):
        with LocalRanks() as ranks:
            found += ranks.run(1, compare, **case)
    ratios = [one["ratio"] for one in found]
    mean = float(np.mean(ratios))
    reach = float(student_t.ppf(0.975, processes - 1)) * float(np.std(ratios, ddof=1)) / math.sqrt(processes)
    hand = float(np.median([one["hand_written_s"] for one in found]))
    return {
        "width": case["width"],
        "layout": "x".join(map(str, case["layout"])),
        "hand_written_ms": 1e3 * hand,
        "overhead_ms": 1e3 * (mean - 1) * hand,
        "ratio": mean,
        "ratio_low": mean - reach,
        "ratio_high": mean + reach,
        "processes": processes,
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
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=30)
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
        {"width": 32, "layout": (8, 1, 1), "block": 100},
        {"width": 32, "layout": (8, 1, 4), "block": 30},
        {"width": 1024, "layout": (320, 1, 2), "block": 1},
        {"width": 1024, "layout": (64, 1, 8), "block": 1},
    ]
    common = {"processes": options.processes, "pairs": options.pairs, "clock": options.clock}
    rows = [replicate(**common, **case) for case in cases]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"width {row['width']:>5}  b x N x G {row['layout']:>8}  "
            f"hand-written {row['hand_written_ms']:8.3f} ms  "
            f"trainer {row['overhead_ms']:+.3f} ms  ratio {row['ratio']:.4f} "
            f"[{row['ratio_low']:.4f}, {row['ratio_high']:.4f}]  "
            f"({row['processes']} processes, {row['pairs']} pairs each)"
        )


if __name__ == "__main__":
    main()
