"""What each way of saving communication costs in memory: resident bytes per rank beyond an empty trainer's.

Two ranks train a stack of equal layers, each a sharded unit of its own, at G = 4, in processes that have run
a tiny model before (so that the libraries are loaded) and whose allocator gives every freed tensor back to
the system at once (MALLOC_MMAP_THRESHOLD_), so that the resident set follows the tensors. P is the size of
the parameters, fp32; plain SGD, which has no state.

held: after a micro-step that is not the last of its optimizer step. peak: within two optimizer steps.
predicted: the peak that `gasweep plan --memory` counts.

    python experiments/reshard_memory.py [--layers 8] [--width 1536] [--micro-batch-size 4] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from trainer_overhead import Classifier

from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import StrategyOptions, SweepConfig
from gasweep.training.advance import Stepper
from gasweep.training.build import build_trainer
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.memory.predict import predict_memory
from gasweep.training.peak_memory import PeakMemory
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress

ACCUMULATION_STEPS = 4
KEPT = {"reshard_after_forward": False, "reshard_after_backward": False}
OPTIONS: list[tuple[str, str, dict[str, bool]]] = [
    ("ddp", "ddp", {}),
    ("fsdp, every micro-step synced", "fsdp", {"sync_every_micro_step": True}),
    ("fsdp", "fsdp", {}),
    ("fsdp, no reshard after forward", "fsdp", {"reshard_after_forward": False}),
    ("fsdp, kept unsharded", "fsdp", KEPT),
]


@dataclass(kw_only=True)
class Layers(Classifier):
    """`layers` square layers, each a unit of its own; next to no data."""

    layers: int = 8
    num_examples: int = 64

    def build_model(self) -> nn.Module:
        square = [nn.Linear(self.width, self.width, bias=False) for _ in range(self.layers)]
        return nn.Sequential(nn.Linear(64, self.width), *square, nn.Linear(self.width, 10))

    def parallelize(self, model: nn.Module) -> list[nn.Module]:
        return list(model.children())


def count_bytes(process: ProcessContext, *, small: dict[str, Any], spec: dict[str, Any]) -> dict[str, int]:
    """Bytes of this rank over two optimizer steps, and the traffic of the second."""
    _train(process, small)
    gc.collect()
    before = _resident()
    memory = PeakMemory(torch.device("cpu"))
    held, units = _train(process, spec)
    peak = memory.read()
    assert peak is not None, "needs Linux"
    return {"held": max(held) - before, "peak": peak - before, "units": units}


def _train(process: ProcessContext, spec: dict[str, Any]) -> tuple[list[int], int]:
    """Resident bytes between the second step's micro-steps (the first has not allocated all), its units."""
    trainer = build_trainer(RunSpec.from_dict(spec), process=process)
    held = _watch_micro_steps(trainer.accumulator)
    stepper = Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))
    for _ in range(2):
        stepper.attempt()
    units = stepper.traffic.model.units
    trainer.parts.strategy.close()
    return held[ACCUMULATION_STEPS:-1], units


def _watch_micro_steps(accumulator: Any) -> list[int]:
    held, accumulate = [], accumulator.accumulate

    def watched(*args: Any, **kwargs: Any) -> None:
        accumulate(*args, **kwargs)
        held.append(_resident())

    accumulator.accumulate = watched
    return held


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(*, width: int, layers: int, micro_batch_size: int) -> list[dict[str, Any]]:
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    rows = []
    for label, strategy, options in OPTIONS:
        chosen = {"strategy": strategy, "options": options, "b": micro_batch_size}
        small = _spec(width=64, layers=layers, **chosen)
        spec = _spec(width=width, layers=layers, **chosen)
        with LocalRanks() as ranks:
            found = ranks.run(2, count_bytes, small=small.to_dict(), spec=spec.to_dict())[0]
        rows.append({"option": label, **found, "predicted": predict_memory(spec).peak})
    return rows


def _spec(*, width: int, layers: int, strategy: str, options: dict[str, bool], b: int) -> RunSpec:
    config = SweepConfig(
        task={"_target_": f"{Layers.__module__}.Layers", "width": width, "layers": layers},
        strategy=strategy,
        strategy_options=StrategyOptions(**options),
    )
    return RunSpec(
        run_id="memory",
        kind="probe",
        effective_batch_size=b * 2 * ACCUMULATION_STEPS,
        layout=Layout(micro_batch_size=b, world_size=2, accumulation_steps=ACCUMULATION_STEPS),
        learning_rate=1e-3,
        seed=0,
        config=config,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(width=options.width, layers=options.layers, micro_batch_size=options.micro_batch_size)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    model = Layers(width=options.width, layers=options.layers).build_model()
    size = sum(parameter.nbytes for parameter in model.parameters())
    print(f"P = {size / 1e6:.1f} MB in {options.layers} layers, N = 2, G = {ACCUMULATION_STEPS}, plain SGD")
    for row in rows:
        print(
            f"{row['option']:32} held {row['held'] / 1e6:7.2f} MB = {row['held'] / size:4.2f} P   "
            f"peak {row['peak'] / 1e6:7.2f} MB = {row['peak'] / size:4.2f} P   "
            f"predicted {row['predicted'] / size:4.2f} P   {row['units']:>3} units"
        )


if __name__ == "__main__":
    main()
