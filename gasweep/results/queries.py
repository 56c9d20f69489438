"""From a sweep's journal to what the analysis takes: runs per setting, targets, step times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gasweep.analysis.cost import GridPoint, StepTime
from gasweep.analysis.steps_to_target import TargetRule
from gasweep.analysis.study import StudyReport, StudyRun, fit_study
from gasweep.analysis.study_report import TargetReport
from gasweep.results.noise import noise_scale_at_target
from gasweep.results.reader import JournalReader
from gasweep.results.records import EvalRecord, Throughput
from gasweep.results.states import RunState
from gasweep.results.step_time import grid_point, step_times
from gasweep.results.stored import StoredRun


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The convergence runs that share the values of the extra grid axes: one study.

    runs: finished ones by run id, one per (B, learning rate, seed). num_open: runs of the setting without a
        result; num_infeasible: those of them that this cluster cannot run.
    flags: what its config alone says about every estimate.
    """

    axes: dict[str, Any]
    runs: dict[str, StudyRun]
    num_open: int
    num_infeasible: int
    flags: list[str]

    @property
    def label(self) -> str:
        """E.g. "task.width=64"; empty when there is no extra axis."""
        return ", ".join(f"{path}={value}" for path, value in self.axes.items())


@dataclass(frozen=True, kw_only=True)
class SettingReport:
    """One setting's fit and how sure one may be that it is complete."""

    setting: Setting
    report: StudyReport

    def to_dict(self) -> dict[str, Any]:
        """`fit`'s object; each target names the setting's `axes` where there are any."""
        content = self.report.to_dict()
        for target in content["targets"]:
            if self.setting.axes:
                target["axes"] = self.setting.axes
            target["flags"] += [*_missing_flags(self.setting), *self.setting.flags]
        return content


def _missing_flags(setting: Setting) -> list[str]:
    """What the estimates are without."""
    waiting = setting.num_open - setting.num_infeasible
    flags = []
    if waiting:
        have = "run has" if waiting == 1 else "runs have"
        flags.append(f"{waiting} {have} no result yet: the estimates may change")
    if setting.num_infeasible:
        runs = "run" if setting.num_infeasible == 1 else "runs"
        flags.append(f"{setting.num_infeasible} {runs} cannot be run here (infeasible) and are not in them")
    return flags


@dataclass(frozen=True, kw_only=True)
class MeasuredLayout:
    """A layout of the grid with what its probe measured; both None where there is no probe yet."""

    point: GridPoint
    step_time: StepTime | None
    peak_memory_bytes: int | None


def stored_config(reader: JournalReader) -> dict[str, Any]:
    """The resolved config the sweep last ran under; empty before its driver has recorded one."""
    versions = reader.config_versions()
    return versions[-1].config if versions else {}


def stored_targets(reader: JournalReader) -> list[TargetRule]:
    """The sweep's targets, as configured last; none where it trains until its budget ends."""
    target = stored_config(reader).get("target", {})
    value = target.get("value")
    values = value if isinstance(value, list) else [value]
    return [
        TargetRule(
            metric=target["metric"],
            value=float(one),
            mode=target["mode"],
            rule=target["rule"],
            window_fraction=target["window_fraction"],
        )
        for one in values
        if one is not None
    ]


def fit_sweep(
    reader: JournalReader,
    *,
    targets: Sequence[TargetRule] | None = None,
    base_batch_size: float | None = None,
) -> list[SettingReport]:
    """Estimates of every setting of a sweep, from the runs of its current grid that have ended.

    targets: others than the sweep's own, e.g. an easier value to read off the same curves.
    """
    rules = stored_targets(reader) if targets is None else list(targets)
    metric = rules[0].metric if rules else "eval_loss"
    return [
        SettingReport(setting=setting, report=_fit(reader, setting, rules, base_batch_size))
        for setting in settings(reader, metric=metric)
    ]


def _fit(
    reader: JournalReader, setting: Setting, rules: Sequence[TargetRule], base: float | None
) -> StudyReport:
    report = fit_study(list(setting.runs.values()), rules, base_batch_size=base)
    return replace(
        report, targets=tuple(_with_noise(reader, target, setting.runs) for target in report.targets)
    )


def _with_noise(reader: JournalReader, target: TargetReport, runs: Mapping[str, StudyRun]) -> TargetReport:
    estimate, source = noise_scale_at_target(reader, target, runs)
    flags = [] if source is None else source.flags()
    return replace(target, noise_scale=estimate, noise_source=source, flags=(*target.flags, *flags))


def settings(reader: JournalReader, *, metric: str) -> list[Setting]:
    """The convergence runs of the current grid, grouped by the values of its extra axes.

    Where a full sweep ran one (B, learning rate, seed) in several layouts, the first finished one speaks for
    it: they are the same run, and counting them as seeds would claim more than is known.
    """
    groups: dict[str, list[StoredRun]] = {}
    for run in reader.runs(current_only=True):
        if run.kind == "convergence":
            groups.setdefault(json.dumps(run.axes, sort_keys=True), []).append(run)
    return [
        Setting(
            axes=members[0].axes,
            runs={
                run.run_id: _study_run(run, reader.evaluations(run.run_id), metric)
                for run in _representatives(members)
            },
            num_open=sum(not run.finished for run in members),
            num_infeasible=sum(run.state is RunState.INFEASIBLE for run in members),
            flags=_schedule_flags(members[0].spec["config"]["schedule"]),
        )
        for members in groups.values()
    ]


def measured_layouts(reader: JournalReader, *, axes: dict[str, Any] | None = None) -> list[MeasuredLayout]:
    """Every layout of the current grid's probes, in grid order.

    axes: only probes under exactly these values of the extra grid axes, which may change what a step costs.
    """
    found: dict[GridPoint, Throughput | None] = {}
    for run in reader.runs(current_only=True):
        if run.kind != "probe" or (axes is not None and run.axes != axes):
            continue
        point = grid_point(run)
        if found.get(point) is None:
            result = reader.result(run.run_id)
            found[point] = None if result is None else result.throughput
    times = step_times({point: one for point, one in found.items() if one is not None})
    return [
        MeasuredLayout(
            point=point,
            step_time=times.get(point),
            peak_memory_bytes=None if one is None else one.peak_memory_bytes,
        )
        for point, one in found.items()
    ]


def _representatives(runs: Sequence[StoredRun]) -> list[StoredRun]:
    first: dict[tuple[int, float, int], StoredRun] = {}
    for run in runs:
        if run.finished:
            first.setdefault((run.effective_batch_size, run.learning_rate, run.seed), run)
    return list(first.values())


def _study_run(run: StoredRun, evaluations: Sequence[EvalRecord], metric: str) -> StudyRun:
    return StudyRun(
        batch_size=run.effective_batch_size,
        learning_rate=run.learning_rate,
        seed=run.seed,
        points=curve_points(evaluations, metric),
        state=run.state.value,
        source=f"run {run.run_id}",
        warmup_steps=float(run.spec["config"]["schedule"]["warmup_optimizer_steps"]),
    )


def _schedule_flags(schedule: dict[str, Any]) -> list[str]:
    """A decaying rate makes steps to target follow the horizon that was guessed for it."""
    if schedule["name"] == "constant":
        return []
    return [
        f"schedule: under a {schedule['name']} decay over {schedule['horizon_examples']} examples a target "
        "is often reached only in the decay's tail, so steps to target follow the horizon; they compare with "
        "runs of the same horizon alone (a constant rate has none)"
    ]


def curve_points(evaluations: Sequence[EvalRecord], metric: str) -> list[tuple[float, float | None]]:
    """(optimizer step, metric) at each evaluation; None where it was not measured."""
    return [(record.optimizer_step, record.metrics.get(metric)) for record in evaluations]
