"""A sweep directory read into what a report is made of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gasweep.config.load import parse_sweep_config
from gasweep.config.plan import plan_sweep
from gasweep.errors import GasweepError
from gasweep.report.data import Collapse, ReportData, RunRow, StudySection
from gasweep.report.sweep_layouts import sweep_layouts
from gasweep.results.bench import bench_points
from gasweep.results.directory import SWEEP_FILE
from gasweep.results.noise_course import NoiseCourse, noise_courses
from gasweep.results.queries import SettingReport, fit_sweep, stored_config, stored_targets
from gasweep.results.reader import JournalReader
from gasweep.results.records import RunResult
from gasweep.results.states import RunState
from gasweep.results.stored import StoredRun, config_changes

NUM_CHANGES = 8


def read_report(directory: Path, *, now: datetime | None = None) -> ReportData:
    """Everything the journal holds by now; works while a driver is writing.

    now: when the report is made (default: the clock).
    Raises SweepDirectoryError when `directory` holds no sweep.
    """
    with JournalReader.open(directory) as reader:
        config = stored_config(reader)
        results = reader.results()
        runs = reader.runs()
        rules = stored_targets(reader) if config else []
        metric = rules[0].metric if rules else None
        return ReportData(
            name=str(config.get("name", directory.name)),
            task=str(config.get("task", {}).get("_target_", "")),
            created_at=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
            worker=_worker(results),
            studies=tuple(_sections(reader, results, fit_sweep(reader) if rules else [])),
            runs=tuple(_run_row(run, results.get(run.run_id), metric) for run in runs),
            collapse=_collapse(config, runs),
            config_yaml=_config_text(directory),
            environments=_environments(results),
            notes=tuple(_notes(reader, runs)),
            layout_costs=tuple(point.to_dict() for point in bench_points(reader)),
        )


def _worker(results: dict[str, RunResult]) -> str:
    devices = {result.environment.device for result in results.values()}
    return "GPU" if devices and "cpu" not in devices else "worker"


def _sections(
    reader: JournalReader, results: dict[str, RunResult], reports: Sequence[SettingReport]
) -> list[StudySection]:
    """A section for each study and each further value of axes that change only what a step costs.

    Without a target there are no studies, but layouts to show all the same.
    """
    sections = []
    studies = [(report.setting.axes, report.to_dict(), _noise(reader, report)) for report in reports]
    for shared, study, noise in studies or [({}, {"targets": []}, ())]:
        for axes in _probe_axes(reader, shared) or [shared]:
            label = ", ".join(f"{path}={value}" for path, value in axes.items())
            layouts = sweep_layouts(reader, results, axes=axes)
            sections.append(StudySection(study=study, layouts=layouts, label=label, noise=noise))
    return sections


def _noise(reader: JournalReader, report: SettingReport) -> tuple[NoiseCourse, ...]:
    return tuple(noise_courses(reader, report.report.targets, report.setting.runs))


def _probe_axes(reader: JournalReader, shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The distinct axis values of probes that agree with `shared`, in grid order."""
    found: list[dict[str, Any]] = []
    for run in reader.runs(current_only=True):
        if run.kind == "probe" and shared.items() <= run.axes.items() and run.axes not in found:
            found.append(run.axes)
    return found


def _run_row(run: StoredRun, result: RunResult | None, metric: str | None) -> RunRow:
    probe = run.kind == "probe"
    throughput = result.throughput if result else None
    last = result.evaluations[-1].metrics if result and result.evaluations else {}
    return RunRow(
        run_id=run.run_id,
        kind=run.kind,
        state=run.state.value if run.current else f"{run.state.value} (earlier grid)",
        micro_batch_size=run.micro_batch_size,
        world_size=run.world_size,
        accumulation_steps=run.accumulation_steps,
        effective_batch_size=run.effective_batch_size,
        learning_rate=None if probe else run.learning_rate,
        seed=None if probe else run.seed,
        optimizer_steps=result.optimizer_steps if result else None,
        final_metric=last.get(metric) if metric else None,
        wall_s=result.wall_s if result else None,
        seconds_per_optimizer_step=throughput.mean_seconds if throughput else None,
        examples_per_s=throughput.examples_per_s if throughput else None,
        num_attempts=run.num_attempts,
        axes=", ".join(f"{path}={value}" for path, value in run.axes.items()),
        reason=run.reason,
    )


def _collapse(config: dict[str, Any], runs: Sequence[StoredRun]) -> Collapse | None:
    """None for a config that this version can no longer plan."""
    try:
        num_points = len(plan_sweep(parse_sweep_config(config)).points)
    except GasweepError:
        return None
    current = [run for run in runs if run.current]
    return Collapse(
        num_points=num_points,
        num_runs=sum(run.kind == "convergence" for run in current),
        num_probes=sum(run.kind == "probe" for run in current),
        num_infeasible=sum(run.state is RunState.INFEASIBLE for run in current),
    )


def _config_text(directory: Path) -> str:
    try:
        return (directory / SWEEP_FILE).read_text(encoding="utf-8")
    except OSError:
        return ""


def _environments(results: dict[str, RunResult]) -> tuple[dict[str, str], ...]:
    """The distinct places that results come from, with the number of runs of each."""
    counts: dict[tuple[tuple[str, str], ...], int] = {}
    for result in results.values():
        place = result.environment
        cells = {
            "device": place.device,
            "host": place.hostname,
            "threads per worker": str(place.num_threads),
            **place.versions,
            "code revision": (place.code_revision or "")[:12],
        }
        key = tuple(cells.items())
        counts[key] = counts.get(key, 0) + 1
    return tuple(dict(key) | {"runs": str(count)} for key, count in counts.items())


def _notes(reader: JournalReader, runs: Sequence[StoredRun]) -> list[str]:
    notes = []
    current = [run for run in runs if run.current]
    for state in (RunState.FAILED, RunState.INFEASIBLE, RunState.INTERRUPTED):
        members = [run for run in current if run.state is state]
        if members:
            why = next((run.reason for run in members if run.reason), "no reason recorded")
            count = "1 run" if len(members) == 1 else f"{len(members)} runs"
            notes.append(f"{count} {state.value}; first: {why}")
    versions = reader.config_versions()
    changes = [
        line for old, new in itertools.pairwise(versions) for line in config_changes(old.config, new.config)
    ]
    if changes:
        more = f" and {len(changes) - NUM_CHANGES} more" if len(changes) > NUM_CHANGES else ""
        notes.append(f"the config changed between drivers: {'; '.join(changes[:NUM_CHANGES])}{more}")
    revisions = {version.environment.get("code_revision") for version in versions} - {None}
    if len(revisions) > 1:
        notes.append(f"the sweep ran under {len(revisions)} code revisions")
    return notes
