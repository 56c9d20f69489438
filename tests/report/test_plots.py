"""What is on the plots: points, bands, bounds and marks, whatever could be resolved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from gasweep.report.plots import (
    draw_critical_batch_size,
    draw_learning_rates,
    plot_critical_batch_size,
    plot_learning_rates,
)
from tests.report import examples

EVERY_STUDY = [examples.censored_study, examples.single_batch_study, examples.two_target_study]


def curves(study: dict[str, Any]) -> list[Any]:
    """The two axes: optimizer steps, examples."""
    figure = Figure()
    draw_critical_batch_size(figure, study)
    return list(figure.axes)


def points(axis: Any, marker: str, *, filled: bool) -> list[tuple[float, float]]:
    """Large markers of one kind, as (x, y)."""
    found = []
    for line in axis.lines:
        hollow = line.get_markerfacecolor() == "white"
        if line.get_marker() == marker and hollow is not filled:
            found.append((float(line.get_xdata()[0]), float(line.get_ydata()[0])))
    return found


def verticals(axis: Any) -> list[float]:
    return [float(line.get_xdata()[0]) for line in axis.lines if list(line.get_ydata()) == [0, 1]]


def test_every_batch_size_is_a_filled_point_at_its_seed_mean() -> None:
    study = examples.study_dict()
    steps, in_examples = curves(study)
    expected = [
        (o["effective_batch_size"], o["steps_to_target"]["value"])
        for o in study["targets"][0]["observations"]
    ]
    assert points(steps, "o", filled=True) == expected
    assert points(in_examples, "o", filled=True) == [(b, b * s) for b, s in expected]


def test_the_band_is_drawn_around_the_law_and_the_critical_batch_is_marked() -> None:
    study = examples.study_dict()
    critical = study["targets"][0]["critical_batch_size"]
    for axis in curves(study):
        assert len(axis.collections) > 0
        assert verticals(axis) == [pytest.approx(critical["value"])]
        spans = [patch.get_extents().transformed(axis.transData.inverted()) for patch in axis.patches]
        assert [(s.x0, s.x1) for s in spans] == [pytest.approx((critical["low"], critical["high"]))]


def test_runs_that_missed_the_target_are_open_triangles_at_their_bound() -> None:
    steps, in_examples = curves(examples.censored_study())
    assert points(steps, "^", filled=False) == [(8, 100), (16, 100)]
    assert points(in_examples, "^", filled=False) == [(8, 800), (16, 1600)]
    assert points(steps, "o", filled=True) == []


def test_an_edge_learning_rate_is_an_open_point() -> None:
    """C06: the best rate is the last one tried, so the steps only bound the best from above."""
    steps, _ = curves(examples.edge_study())
    assert points(steps, "o", filled=False) == [(2048, 141)]
    assert len(points(steps, "o", filled=True)) == len(examples.BATCHES)


def test_a_one_sided_answer_is_an_arrow_at_the_axis_end_not_a_line_in_the_data() -> None:
    study = examples.one_sided_study()
    low = study["targets"][0]["critical_batch_size"]["low"]
    steps, _ = curves(study)
    assert verticals(steps) == [pytest.approx(steps.get_xlim()[1])]
    assert low > steps.get_xlim()[1]
    assert [text.get_text() for text in steps.texts] == [f"$B_{{crit}}$ ≥ {low:.1f} →"]


def test_a_single_batch_size_is_a_point_without_a_law() -> None:
    steps, _ = curves(examples.single_batch_study())
    assert points(steps, "o", filled=True) == [(8, 101)]
    assert verticals(steps) == []
    assert steps.get_ylim()[1] / steps.get_ylim()[0] >= 2


def test_targets_are_told_apart_by_colour_and_marker_and_named_in_the_legend() -> None:
    figure = Figure()
    draw_critical_batch_size(figure, examples.two_target_study())
    steps = figure.axes[0]
    assert len(points(steps, "o", filled=True)) == len(points(steps, "s", filled=True)) == 8
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[0].startswith("eval_loss <= 0.5:  $B_{crit}$ = ")
    assert texts[1].startswith("eval_loss <= 0.45:")


@pytest.mark.parametrize("study", EVERY_STUDY)
def test_both_plots_are_written_as_png_and_svg(study: Any, tmp_path: Path) -> None:
    for plot in (plot_critical_batch_size, plot_learning_rates):
        path = plot(study(), tmp_path / "plots" / f"{plot.__name__}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.with_suffix(".svg").read_text().rstrip().endswith("</svg>")


def test_a_study_without_targets_says_so(tmp_path: Path) -> None:
    figure = Figure()
    draw_critical_batch_size(figure, {"targets": []})
    assert figure.get_suptitle() == "No target was evaluated"
    assert plot_learning_rates({"targets": []}, tmp_path / "rates.png").exists()


def test_svg_is_the_same_each_time(tmp_path: Path) -> None:
    study = examples.study_dict()
    first = plot_critical_batch_size(study, tmp_path / "a.png").with_suffix(".svg").read_text()
    assert plot_critical_batch_size(study, tmp_path / "b.png").with_suffix(".svg").read_text() == first


def test_a_dollar_in_a_target_name_is_not_a_formula(tmp_path: Path) -> None:
    study = examples.study_dict()
    study["targets"][0]["target"] = r"cost $\frac{ <= 5$"
    assert plot_critical_batch_size(study, tmp_path / "a.png").exists()
    assert plot_learning_rates(study, tmp_path / "b.png").exists()


def test_diverged_rates_are_crosses_on_the_upper_edge() -> None:
    figure = Figure()
    draw_learning_rates(figure, examples.study_dict())
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert {float(line.get_xdata()[0]) for line in crosses} == {1.0}
    assert len(crosses) == len(examples.BATCHES)


def test_plotting_loads_no_pyplot_and_importing_loads_no_matplotlib(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, gasweep.report.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"plots.plot_critical_batch_size({{'targets': []}}, pathlib.Path({str(tmp_path / 'a.png')!r}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
