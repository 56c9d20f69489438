"""What is on the plot of a bench: every number at its place, intervals cut where they leave the axis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from gasweep.report.bench_plot import (
    BYTES_SAVED,
    MAX_ROWS,
    OWN,
    SECONDS_SAVED,
    TWIN,
    Mark,
    bench_rows,
    draw_bench,
    plot_bench,
)

Bounded = tuple[float | None, float | None, float | None]
KEY, SAVED = "seconds_per_optimizer_step", "seconds_saved_fraction"


def point(b: int, n: int, g: int, **changes: Any) -> dict[str, Any]:
    """DDP of 1 MB: a sync per optimizer step where the twin has G, 10 ms per micro-step, a fifth saved."""
    size = 1_000_000 if n > 1 else 0
    seconds, has_twin = 0.01 * g, n > 1 and g > 1
    return {
        "micro_batch_size": b,
        "world_size": n,
        "accumulation_steps": g,
        "strategy": "ddp" if n > 1 else "single",
        "axes": {},
        "bytes_per_optimizer_step": size,
        "bytes_per_optimizer_step_unsaved": size * g,
        "bytes_saved_fraction": 1 - 1 / g if size else None,
        **bounded(KEY, (seconds, 0.9 * seconds, 1.2 * seconds)),
        f"{KEY}_unsaved": 1.25 * seconds if has_twin else None,
        **bounded(SAVED, (0.2, -0.1, 0.4) if has_twin else (None, None, None)),
        **changes,
    }


def bounded(name: str, sides: Bounded) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), sides, strict=True))


GRID = [point(8, n, g) for g in (4, 1, 2) for n in (2, 1)]


def drawn(points: list[dict[str, Any]]) -> tuple[Figure, Any, Any, Any]:
    figure = Figure()
    draw_bench(figure, points)
    return (figure, *figure.axes)


def marks(axis: Any, mark: Mark, *, is_open: bool = False) -> dict[int, float]:
    """Row -> value."""
    return {
        round(float(y) - mark.offset): float(x)
        for line in axis.lines
        if line.get_label() == mark.label and (line.get_markerfacecolor() == "white") is is_open
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def intervals(axis: Any, mark: Mark) -> dict[int, list[float]]:
    found = {}
    for lines in axis.collections:
        ((left, y), (right, _)) = lines.get_segments()[0]
        found[round(y - mark.offset)] = [pytest.approx(left), pytest.approx(right)]
    return found


def arrows(axis: Any) -> list[tuple[str, float]]:
    return [
        (line.get_marker(), float(line.get_xdata()[0])) for line in axis.lines if line.get_marker() in "<>"
    ]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_rows_run_over_g_within_each_micro_batch_and_number_of_ranks() -> None:
    _, axis, *_ = drawn([*GRID, point(2, 2, 1)])
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["2×2×1", "8×1×1", "8×1×2", "8×1×4", "8×2×1", "8×2×2", "8×2×4"]
    assert [row.group for row in bench_rows([*GRID, point(2, 2, 1)])] == [0, 1, 1, 1, 2, 2, 2]
    assert axis.get_ylim() == (6.5, -0.5)


def test_bytes_stand_beside_those_of_a_sync_on_every_micro_step() -> None:
    _, axis, *_ = drawn(GRID)
    assert marks(axis, OWN) == {3: 1e6, 4: 1e6, 5: 1e6}
    assert marks(axis, TWIN) == {3: 1e6, 4: 2e6, 5: 4e6}
    assert axis.get_xlim()[0] == 0
    assert [axis.xaxis.get_major_formatter()(value, 0) for value in (0, 2e6)] == ["0 B", "2 MB"]


def test_one_rank_sends_nothing_also_where_the_axis_is_logarithmic() -> None:
    _, axis, *_ = drawn([point(8, 1, 1), point(8, 2, 1), point(8, 2, 64)])
    assert axis.get_xscale() == "log"
    assert axis.get_xlim()[0] > 0
    assert marks(axis, TWIN) == {1: 1e6, 2: 64e6}
    assert [(text.get_text(), text.get_position()[1]) for text in axis.texts] == [("0 B", 0)]


def test_milliseconds_have_their_interval_and_the_twin_where_it_was_measured() -> None:
    _, _, axis, _ = drawn(GRID)
    assert marks(axis, OWN) == {y: pytest.approx(0.01 * g) for y, g in enumerate([1, 2, 4] * 2)}
    assert marks(axis, TWIN) == {4: pytest.approx(0.025), 5: pytest.approx(0.05)}
    assert intervals(axis, OWN) == {y: [0.009 * g, 0.012 * g] for y, g in enumerate([1, 2, 4] * 2)}
    assert axis.get_xlabel().startswith("milliseconds")
    assert axis.xaxis.get_major_formatter()(0.02, 0) == "20"


def test_shares_saved_may_be_below_zero() -> None:
    _, _, _, axis = drawn(GRID)
    assert marks(axis, BYTES_SAVED) == {3: 0.0, 4: 0.5, 5: 0.75}
    assert marks(axis, SECONDS_SAVED) == {4: 0.2, 5: 0.2}
    assert intervals(axis, SECONDS_SAVED) == {4: [-0.1, 0.4], 5: [-0.1, 0.4]}
    assert axis.get_xlim()[0] < -0.1
    assert arrows(axis) == []


def test_a_mean_without_an_interval_is_open_and_explained() -> None:
    figure, _, _, axis = drawn([point(8, 2, 2, **bounded(SAVED, (0.2, None, None))), point(8, 2, 4)])
    assert marks(axis, SECONDS_SAVED, is_open=True) == {0: 0.2}
    assert marks(axis, SECONDS_SAVED) == {1: 0.2}
    assert set(intervals(axis, SECONDS_SAVED)) == {1}
    assert "too few steps for an interval" in legend(figure)
    assert "too few steps for an interval" not in legend(drawn(GRID)[0])


def test_an_interval_beyond_the_axis_ends_in_an_arrow_and_squeezes_no_other_row() -> None:
    wild = bounded(KEY, (0.02, 1e-9, 1e3)) | bounded(SAVED, (0.2, -1e5, 1.0))
    figure, _, time_axis, saved_axis = drawn([point(8, 2, 2, **wild), point(8, 2, 4)])
    assert time_axis.get_xlim()[1] < 0.2
    assert saved_axis.get_xlim()[0] == pytest.approx(-1.05)
    assert arrows(saved_axis) == [("<", saved_axis.get_xlim()[0])]
    assert (">", time_axis.get_xlim()[1]) in arrows(time_axis)
    assert "95 % interval (arrow: beyond the axis)" in legend(figure)


def test_a_loss_larger_than_the_step_itself_is_still_on_the_axis() -> None:
    _, _, _, axis = drawn([point(8, 2, 2, **bounded(SAVED, (-3.0, -9.0, -1.5)))])
    assert axis.get_xlim()[0] < -3.0
    assert arrows(axis) == [("<", axis.get_xlim()[0])]


def test_settings_are_named_where_they_differ() -> None:
    axes = {"strategy_options.reshard_after_forward": False, "task.hidden": 64}
    points = [point(8, 2, 1, axes=axes), point(8, 2, 1, axes=axes | {"task.hidden": 128})]
    assert [row.label for row in bench_rows(points)] == ["hidden=64  8×2×1", "hidden=128  8×2×1"]
    mixed = [point(8, 2, 1), point(8, 2, 1, strategy="fsdp"), point(8, 1, 1)]
    assert [row.label for row in bench_rows(mixed)] == ["ddp  8×2×1", "fsdp  8×2×1", "8×1×1"]


def test_axes_of_the_same_last_name_are_told_apart_and_a_dollar_is_no_formula(tmp_path: Path) -> None:
    points = [point(8, 2, 1, axes={"a.x": f"${i}", "b.x": i}) for i in range(2)]
    assert [row.label for row in bench_rows(points)] == [
        r"a.x=\$0 b.x=0  8×2×1",
        r"a.x=\$1 b.x=1  8×2×1",
    ]
    assert plot_bench(points, tmp_path / "a.png").exists()


def test_too_many_layouts_are_cut_and_the_figure_says_so() -> None:
    points = [point(b, 2, g) for b in range(1, 37) for g in (1, 2)]
    figure, axis, *_ = drawn(points)
    assert len(axis.get_yticks()) == len(marks(axis, OWN)) == MAX_ROWS
    assert figure.get_suptitle().endswith(f"the first {MAX_ROWS} of 72 layouts")
    assert "first" not in drawn(points[:MAX_ROWS])[0].get_suptitle()


def test_no_point_and_points_of_one_rank_are_drawn_all_the_same(tmp_path: Path) -> None:
    assert drawn([])[0].get_suptitle() == "No layout was measured"
    figure, _, _, saved_axis = drawn([point(8, 1, 1), point(8, 1, 2)])
    assert [text.get_text() for text in saved_axis.texts] == ["no sync to skip"]
    assert legend(figure) == ["no_sync", "95 % interval"]
    for name, points in (("none", []), ("one", [point(8, 1, 1)])):
        assert plot_bench(points, tmp_path / f"{name}.png").exists()


def test_png_and_svg_are_written_without_pyplot_and_the_same_each_time(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, gasweep.report.bench_plot as bench_plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"bench_plot.plot_bench({GRID!r}, pathlib.Path({str(tmp_path / 'a.png')!r}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    again = plot_bench(GRID, tmp_path / "folder" / "b.png")
    assert again.read_bytes().startswith(b"\x89PNG")
    assert again.with_suffix(".svg").read_text() == (tmp_path / "a.svg").read_text()
