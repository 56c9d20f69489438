"""The memory table of `gasweep plan --memory`: what a rank will hold in every layout. Loads torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from gasweep.config.plan import SweepPlan
from gasweep.report.numbers import memory
from gasweep.training.memory.predict import MemoryPrediction, predict_memory

PARTS = (
    "parameters",
    "gradients",
    "optimizer",
    "sums",
    "activations",
    "backward",
    "gathered",
    "updating",
    "peak",
)
HEADER = ["b x N x G", *PARTS, "strategy"]


def predict_layouts(plan: SweepPlan) -> list[dict[str, Any]]:
    """One dict per layout and setting of the extra axes, JSON-ready."""
    rows = []
    for spec in plan.probes or plan.runs:
        found = predict_memory(spec)
        strategy = spec.config.strategy if spec.layout.world_size > 1 else "single"
        rows.append(
            {
                **dataclasses.asdict(spec.layout),
                "effective_batch_size": spec.effective_batch_size,
                "strategy": strategy,
                "axes": spec.axes,
                **_bytes(found),
            }
        )
    return rows


def memory_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The cells under `HEADER`."""
    return [
        [
            f"{row['micro_batch_size']}x{row['world_size']}x{row['accumulation_steps']}",
            *(memory(row[f"{part}_bytes"]) for part in PARTS),
            " ".join([row["strategy"], *(f"{path}={value}" for path, value in row["axes"].items())]),
        ]
        for row in rows
    ]


def memory_notes(rows: list[dict[str, Any]]) -> list[str]:
    reasons = dict.fromkeys(row["reason"] for row in rows if row["reason"])
    return [
        "memory: tensors of one rank; interpreter, libraries and an allocator's slack come on top",
        *(
            f"activations not counted: {reason}; `gasweep bench` measures the peak of each layout"
            for reason in reasons
        ),
    ]


def _bytes(found: MemoryPrediction) -> dict[str, Any]:
    return {**{f"{part}_bytes": getattr(found, part) for part in PARTS}, "reason": found.reason}
