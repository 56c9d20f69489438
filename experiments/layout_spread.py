"""Steps to target over layouts of one batch, beside steps to target over seeds.

In float32 two layouts of one (B, lr, seed) drift apart by rounding. The factorisation may be trusted as long
as that moves steps-to-target less than another seed does. Runs every layout with every seed on the digits
data, prints the table of interpolated steps, the spread over layouts (pooled over seeds) and the spread over
seeds (of the layouts' means).

    python experiments/layout_spread.py [--seeds 5] [--learning-rate 0.1] [--json]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from gasweep.analysis.steps_to_target import TargetRule, crossing
from gasweep.config.run_spec import Layout, RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.training import ProcessContext, train_run
from gasweep.training.local_ranks import LocalRanks

BATCH_SIZE = 32
LAYOUTS = [(32, 1, 1), (16, 1, 2), (8, 1, 4), (1, 1, 32), (16, 2, 1), (8, 2, 2), (4, 2, 4), (1, 2, 16)]
TARGET = 0.25


def steps_to_target(process: ProcessContext, *, spec: dict[str, Any]) -> float | None:
    """One run, on this rank; its interpolated crossing on rank 0."""
    result = train_run(
        RunSpec.from_dict(spec),
        process=process,
        sink=lambda **_: None,
        run_directory=None,
        should_stop=lambda: False,
    )
    if result is None:
        return None
    points = [(e.optimizer_step, e.metrics["eval_loss"]) for e in result.evaluations]
    return crossing(points, TargetRule(metric="eval_loss", value=TARGET)).steps


def measure(*, seeds: int, learning_rate: float) -> dict[str, Any]:
    """Interpolated steps, shape [layouts, seeds], and the two spreads."""
    with LocalRanks() as ranks:
        table = np.array(
            [
                [
                    ranks.run(layout[1], steps_to_target, spec=_spec(layout, seed, learning_rate).to_dict())[
                        0
                    ]
                    for seed in range(seeds)
                ]
                for layout in LAYOUTS
            ],
            dtype=float,
        )
    return {
        "layouts": ["x".join(map(str, layout)) for layout in LAYOUTS],
        "steps": table.tolist(),
        "mean_steps": float(table.mean()),
        "spread_over_layouts": float(np.sqrt(table.var(axis=0, ddof=1).mean())),
        "spread_over_seeds": float(table.mean(axis=0).std(ddof=1)),
    }


def _spec(layout: tuple[int, int, int], seed: int, learning_rate: float) -> RunSpec:
    b, n, g = layout
    config = SweepConfig(task={"_target_": "gasweep.tasks.Digits"}, strategy="ddp")
    config.target.value = TARGET
    config.budget.max_optimizer_steps = 5000
    config.noise_scale.enabled = False
    return RunSpec(
        run_id="spread",
        kind="convergence",
        effective_batch_size=BATCH_SIZE,
        layout=Layout(micro_batch_size=b, world_size=n, accumulation_steps=g),
        learning_rate=learning_rate,
        seed=seed,
        config=config,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(seeds=options.seeds, learning_rate=options.learning_rate)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"B = {BATCH_SIZE}, lr = {options.learning_rate:g}: steps to eval_loss {TARGET:g} by seed")
    for layout, steps in zip(found["layouts"], found["steps"], strict=True):
        print(f"  b x N x G {layout:>8}  " + "  ".join(f"{value:9.4f}" for value in steps))
    print(
        f"spread over layouts {found['spread_over_layouts']:.4f} steps, over seeds "
        f"{found['spread_over_seeds']:.4f} steps (standard deviations; mean {found['mean_steps']:.1f})"
    )


if __name__ == "__main__":
    main()
