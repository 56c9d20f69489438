"""The layouts of a sweep's grid with what one optimizer step costs there: probed, trained, or predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gasweep.analysis.cost import GridPoint, StepTime
from gasweep.analysis.step_time import ProbePoint, StepTimeModel, fit_step_time
from gasweep.report.data import Layout
from gasweep.results.queries import measured_layouts
from gasweep.results.reader import JournalReader
from gasweep.results.records import RunResult
from gasweep.results.step_time import probe_point, step_times
from gasweep.results.stored import StoredRun


def sweep_layouts(
    reader: JournalReader, results: dict[str, RunResult], *, axes: dict[str, Any]
) -> tuple[Layout, ...]:
    """Probed layouts first, then those that only convergence runs used, under these values of the axes.

    A layout without a measurement gets a prediction where enough others were measured; it says so.
    """
    layouts = [Layout(**vars(found)) for found in measured_layouts(reader, axes=axes)]
    known = {layout.point for layout in layouts if layout.step_time is not None}
    listed = {layout.point: index for index, layout in enumerate(layouts)}
    for trained in _trained_layouts(reader, results, axes):
        if trained.point in known:
            continue
        known.add(trained.point)
        if trained.point in listed:
            layouts[listed[trained.point]] = trained
        else:
            layouts.append(trained)
    return tuple(_with_predictions(layouts))


def _trained_layouts(
    reader: JournalReader, results: dict[str, RunResult], axes: dict[str, Any]
) -> list[Layout]:
    found = []
    for run in reader.runs(current_only=True):
        result = results.get(run.run_id)
        mine = run.kind == "convergence" and run.axes.items() <= axes.items()
        if mine and result is not None and result.throughput is not None:
            found.append(_trained(run, result))
    return found


def _trained(run: StoredRun, result: RunResult) -> Layout:
    """As it ran, which need not be as it was planned."""
    throughput = result.throughput
    assert throughput is not None
    point = GridPoint(effective_batch_size=run.effective_batch_size, **result.layout)
    return Layout(
        point=point,
        step_time=step_times({point: throughput})[point],
        peak_memory_bytes=throughput.peak_memory_bytes,
    )


def _with_predictions(layouts: Sequence[Layout]) -> list[Layout]:
    if all(layout.step_time is not None for layout in layouts):
        return list(layouts)
    model = fit_step_time([_probe_point(layout) for layout in layouts])
    return [_predicted(layout, model) for layout in layouts]


def _predicted(layout: Layout, model: StepTimeModel | None) -> Layout:
    if layout.step_time is not None or model is None:
        return layout
    seconds = model.predict(_probe_point(layout))
    if seconds.value is None:
        return layout
    return dataclasses.replace(layout, step_time=StepTime(seconds=seconds, source="predicted"))


def _probe_point(layout: Layout) -> ProbePoint:
    return probe_point(layout.point, None if layout.step_time is None else layout.step_time.seconds.value)
