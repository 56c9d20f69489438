"""The comparison of layouts: savings, seconds and memory side by side."""

from __future__ import annotations

from typing import Any

import pytest

from gasweep.report.from_sweep import read_report
from gasweep.report.html import render_report
from gasweep.report.layout_costs import HEADER, MAX_ROWS, layout_costs, layout_row
from gasweep.results.bench import bench_points
from gasweep.results.reader import JournalReader
from gasweep.results.step_time import grid_point
from tests.results.planted import plant

POINT: dict[str, Any] = {
    "micro_batch_size": 8,
    "world_size": 2,
    "accumulation_steps": 4,
    "effective_batch_size": 64,
    "axes": {"task.width": "<64>"},
    "strategy": "ddp",
    "seconds_per_optimizer_step": 0.0421,
    "seconds_per_optimizer_step_low": 0.0401,
    "seconds_per_optimizer_step_high": 0.0442,
    "seconds_split": {"exposed_communication": 0.0031},
    "examples_per_s": 1520.0,
    "bytes_per_optimizer_step": 7454760,
    "bytes_saved_fraction": 0.75,
    "seconds_saved_fraction": 0.661,
    "seconds_saved_fraction_low": None,
    "seconds_saved_fraction_high": None,
    "peak_memory_bytes": 400_000_000,
}


def test_a_row_holds_savings_seconds_and_memory() -> None:
    row = layout_row(POINT)
    assert len(row) == len(HEADER)
    assert row == [
        *("8×2×4", "64", "42.1 ms [40.1 ms, 44.2 ms]", "1,520", "7.45 MB", "75.0%", "66.1% [?, ?]"),
        *("3.1 ms", "381 MiB", "ddp task.width=<64>"),
    ]


def test_what_was_not_measured_is_a_dash() -> None:
    missing = POINT | {"seconds_split": {}, "seconds_saved_fraction": None, "peak_memory_bytes": None}
    assert layout_row(missing)[6:9] == ["-", "-", "-"]


def test_names_are_escaped_and_long_tables_cut() -> None:
    text = layout_costs([POINT] * (MAX_ROWS + 3))
    assert "&lt;64&gt;" in text
    assert "3 more layouts are not listed" in text


def test_no_probe_no_section() -> None:
    assert layout_costs([]) == ""


def test_a_sweeps_report_compares_its_layouts(tmp_path: Any) -> None:
    assert "What an optimizer step costs" in render_report(read_report(plant(tmp_path)))


def test_one_layouts_seconds_are_the_same_wherever_they_are_told(tmp_path: Any) -> None:
    """The mean, although the median of single steps is another number."""
    plant(tmp_path, seconds_mean=0.25)
    data = read_report(tmp_path)
    joined = {
        layout.point: layout.step_time.seconds for layout in data.studies[0].layouts if layout.step_time
    }
    with JournalReader.open(tmp_path) as reader:
        points = bench_points(reader)
    assert points
    for point in points:
        told = point.to_dict()
        seconds = joined[grid_point(point.run)]
        assert told["seconds_per_optimizer_step"] == seconds.value == 0.25
        assert told["seconds_per_optimizer_step_low"] == seconds.low
        assert told["seconds_per_optimizer_step_median"] == 0.1
        assert told["examples_per_s"] == pytest.approx(told["effective_batch_size"] / 0.25)
    assert {run.seconds_per_optimizer_step for run in data.runs if run.kind == "probe"} == {0.25}
