"""Synthetic studies and reports with planted constants, made by the estimators themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gasweep.analysis.cost import GridPoint, StepTime
from gasweep.analysis.estimate import Estimate
from gasweep.analysis.study import StudyRun, fit_study
from gasweep.report.data import Collapse, Layout, ReportData, RunRow, StudySection

BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
RATES = (0.03, 0.1, 0.3, 1.0)
MIN_STEPS, CRITICAL = 120.0, 90.0
MAX_STEPS = 4000.0


def planted_runs(
    *,
    batches: tuple[int, ...] = BATCHES,
    target: str = "eval_loss <= 0.5",
    factor: float = 1.0,
    seed: int = 0,
) -> list[StudyRun]:
    """Three seeds at each (B, rate): the best rate is 0.1, 1.0 diverges, few long runs miss the target."""
    rng = np.random.default_rng(seed)
    runs = []
    for batch in batches:
        for rate in RATES:
            for index in range(3):
                truth = factor * MIN_STEPS * (1 + CRITICAL / batch) * (1 + 0.25 * math.log(rate / 0.1) ** 2)
                steps = float(truth * np.exp(rng.normal(0, 0.06)))
                runs.append(_planted_run(batch, rate, index, steps, target))
    return runs


def _planted_run(batch: int, rate: float, seed: int, steps: float, target: str) -> StudyRun:
    common: dict[str, Any] = {"batch_size": batch, "learning_rate": rate, "seed": seed, "target": target}
    if rate == 1.0:
        return StudyRun(**common, last_step=20.0, state="diverged")
    if steps > MAX_STEPS:
        return StudyRun(**common, last_step=MAX_STEPS, state="censored")
    return StudyRun(**common, steps=steps, low=0.98 * steps, high=1.02 * steps)


def study_dict(runs: list[StudyRun] | None = None) -> dict[str, Any]:
    return fit_study(planted_runs() if runs is None else runs).to_dict()


def censored_study() -> dict[str, Any]:
    """No run reached the target."""
    common: dict[str, Any] = {"learning_rate": 0.1, "seed": 0, "last_step": 100.0, "state": "censored"}
    return study_dict([StudyRun(batch_size=b, **common) for b in (8, 16)])


def single_batch_study() -> dict[str, Any]:
    return study_dict([StudyRun(batch_size=8, learning_rate=0.1, seed=s, steps=100.0 + s) for s in range(3)])


def one_sided_study() -> dict[str, Any]:
    """Perfect scaling over the whole range: B_crit is only bounded below."""
    rng = np.random.default_rng(1)
    cells = [(b, s, float(64000 / b * np.exp(rng.normal(0, 0.03)))) for b in (4, 8, 16, 32) for s in range(3)]
    return study_dict(
        [StudyRun(batch_size=b, learning_rate=0.1, seed=s, steps=steps) for b, s, steps in cells]
    )


def edge_study() -> dict[str, Any]:
    """The best rate of the largest batch is the last one tried."""
    runs = planted_runs()
    extra = [
        StudyRun(batch_size=2048, learning_rate=rate, seed=s, target="eval_loss <= 0.5", steps=steps + s)
        for rate, steps in ((0.03, 300.0), (0.1, 200.0), (0.3, 140.0))
        for s in range(3)
    ]
    return study_dict([*runs, *extra])


def two_target_study() -> dict[str, Any]:
    harder = planted_runs(target="eval_loss <= 0.45", factor=2.1, seed=4)
    return study_dict([*planted_runs(), *harder])


def planted_layouts(*, memory: bool = True) -> tuple[Layout, ...]:
    """b × N × G of 3 × 2 × 3, seconds from a simple cost model, memory from b alone."""
    layouts = []
    for b in (8, 32, 128):
        for n in (1, 2):
            for g in (1, 4, 16):
                seconds = 0.0008 + g * (0.0004 + 9e-5 * b) + (0.0012 if n > 1 else 0.0)
                point = GridPoint(
                    micro_batch_size=b, world_size=n, accumulation_steps=g, effective_batch_size=b * n * g
                )
                interval = Estimate(value=seconds, low=0.96 * seconds, high=1.05 * seconds)
                peak = int(2**20 * (180 + 1.7 * b)) if memory else None
                layouts.append(
                    Layout(
                        point=point,
                        step_time=StepTime(seconds=interval, source="measured"),
                        peak_memory_bytes=peak,
                    )
                )
    return tuple(layouts)


def run_rows(count: int | None = None) -> tuple[RunRow, ...]:
    rows = []
    for index, run in enumerate(planted_runs()[:count]):
        state = run.state
        steps = int(run.steps or run.last_step or 0)
        rows.append(
            RunRow(
                run_id=f"c{index:011x}",
                kind="convergence",
                state=state,
                micro_batch_size=8,
                world_size=1 if run.batch_size == 8 else 2,
                accumulation_steps=max(int(run.batch_size) // 16, 1),
                effective_batch_size=int(run.batch_size),
                learning_rate=run.learning_rate,
                seed=int(run.seed or 0),
                optimizer_steps=steps,
                final_metric=0.5 if state == "reached" else 0.62,
                wall_s=steps * 0.004,
                examples_per_s=run.batch_size / 0.004,
                reason=None if state == "reached" else "training loss is nan at optimizer_step 20",
            )
        )
    return tuple(rows)


def section(study: dict[str, Any], **fields: Any) -> StudySection:
    return StudySection(**{"study": study, "layouts": planted_layouts(), **fields})


def report_data(**changes: Any) -> ReportData:
    fields: dict[str, Any] = {
        "name": "quickstart",
        "task": "gasweep.tasks.FashionMnist",
        "created_at": "2025-01-31 12:00 UTC",
        "worker": "worker",
        "studies": (StudySection(study=two_target_study(), layouts=planted_layouts()),),
        "runs": run_rows(),
        "collapse": Collapse(num_points=216, num_runs=96, num_probes=18, num_infeasible=0),
        "config_yaml": "name: quickstart\ntask:\n  _target_: gasweep.tasks.FashionMnist\n  hidden: 64\n",
        "environments": ({"device": "cpu", "threads": "1", "torch": "2.8.0", "runs": "96"},),
        "notes": (),
    }
    return ReportData(**{**fields, **changes})
