"""How far steps to target scatter over factorisations of one run, beside how far they do over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gasweep.analysis.steps_to_target import TargetRule, crossing
from gasweep.analysis.study import TargetReport
from gasweep.results.queries import SettingReport, curve_points
from gasweep.results.reader import JournalReader


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Standard deviations of log steps (0.05 is 5 %) at the chosen learning rates, pooled over groups.

    factorisations: between layouts of the same (B, learning rate, seed); None where no run was repeated in
        another layout (a factorized sweep).
    seeds: between seeds of the same (B, learning rate); None where no two seeds reached the target.
    """

    target: str
    axes: dict[str, Any]
    factorisations: float | None
    num_layout_groups: int
    seeds: float | None
    num_seed_groups: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "axes": self.axes,
            "factorisation_log_sd": self.factorisations,
            "num_layout_groups": self.num_layout_groups,
            "seed_log_sd": self.seeds,
            "num_seed_groups": self.num_seed_groups,
        }


def spreads(reader: JournalReader, reports: Sequence[SettingReport]) -> list[Spread]:
    """For each setting and target, both scatters at the learning rate chosen for each batch size.

    Rates that lost are left out: near their edge of stability seeds scatter far more, and no answer rests on
    them.
    """
    return [
        _spread(reader, report, target, target.rule)
        for report in reports
        for target in report.report.targets
        if target.rule is not None
    ]


def _spread(reader: JournalReader, report: SettingReport, target: TargetReport, rule: TargetRule) -> Spread:
    chosen = {
        (batch.batch_size, batch.choice.winner.learning_rate)
        for batch in target.batches
        if batch.choice.winner is not None
    }
    layouts: dict[tuple[int, int], list[float]] = {}
    for run in reader.runs(current_only=True):
        wanted = run.kind == "convergence" and run.finished and run.axes == report.setting.axes
        if wanted and (run.effective_batch_size, run.learning_rate) in chosen:
            steps = crossing(curve_points(reader.evaluations(run.run_id), rule.metric), rule).steps
            if steps:
                key = (run.effective_batch_size, run.seed)
                layouts.setdefault(key, []).append(math.log(steps))
    seeds: dict[int, list[float]] = {}
    for (batch, _), values in layouts.items():
        seeds.setdefault(batch, []).append(values[0])
    layout_sd, num_layout_groups = _pooled_sd(layouts.values())
    seed_sd, num_seed_groups = _pooled_sd(seeds.values())
    return Spread(
        target=target.target,
        axes=report.setting.axes,
        factorisations=layout_sd,
        num_layout_groups=num_layout_groups,
        seeds=seed_sd,
        num_seed_groups=num_seed_groups,
    )


def _pooled_sd(groups: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """Within-group standard deviation pooled over groups of two or more, and how many there are."""
    squares, freedom, count = 0.0, 0, 0
    for values in groups:
        if len(values) > 1:
            mean = math.fsum(values) / len(values)
            squares += math.fsum((value - mean) ** 2 for value in values)
            freedom += len(values) - 1
            count += 1
    return (math.sqrt(squares / freedom) if freedom else None), count
