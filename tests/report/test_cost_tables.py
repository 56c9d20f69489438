"""Time and cost in plain text and JSON: the front and the answers to a deadline and a budget."""

from __future__ import annotations

import json

import pytest

from gasweep.errors import ConfigError
from gasweep.report.cost_tables import cost_dict, cost_lines
from gasweep.report.data import Layout
from tests.report import examples


def test_front_is_listed_fastest_first_with_intervals() -> None:
    lines = cost_lines(examples.study_dict(), examples.planted_layouts())
    assert lines[0] == "target eval_loss <= 0.5: time and cost (95 % intervals), the Pareto front"
    assert lines[1].split()[:2] == ["b×N×G", "B"]
    assert lines[2].split()[0] == "32×2×1"
    assert all("[" in line for line in lines[2:])


def test_limits_are_answered_and_a_close_call_names_the_sure_one() -> None:
    lines = cost_lines(
        examples.study_dict(), examples.planted_layouts(), deadline_s=1.9, budget_gpu_hours=1.0
    )
    text = "\n".join(lines)
    assert "cheapest within 1.9 s: b×N×G = 32×1×1" in text
    assert "its interval crosses the limit; surely within it: b×N×G = 32×2×1" in text
    assert "fastest within 1 GPU-hours: b×N×G = 32×2×1" in text


def test_what_is_missing_is_said() -> None:
    bare = tuple(Layout(point=layout.point) for layout in examples.planted_layouts())
    text = "\n".join(cost_lines(examples.study_dict(), bare, deadline_s=5.0))
    assert "none: seconds per optimizer step were not measured here" in text
    assert "none: no grid point has both steps to target and seconds per step" in text
    assert "none: the sweep has no layout" in "\n".join(cost_lines(examples.study_dict(), ()))


def test_what_is_out_of_reach_is_told_in_the_limits_own_unit() -> None:
    lines = cost_lines(
        examples.study_dict(), examples.planted_layouts(), deadline_s=0.001, budget_gpu_hours=1e-6
    )
    assert lines[-2].startswith("cheapest within 1 ms: none: the least of any layout is 1")
    assert lines[-2].endswith(" s")
    assert lines[-1].startswith("fastest within 1e-06 GPU-hours: none: the least of any layout is 0.000")
    assert lines[-1].endswith(" GPU-hours")


def test_layouts_left_out_are_counted() -> None:
    some = examples.planted_layouts()
    mixed = (*some[:6], *(Layout(point=layout.point) for layout in some[6:]))
    text = "\n".join(cost_lines(examples.study_dict(), mixed, deadline_s=100.0))
    assert "12 layouts lack a measurement and are left out" in text


def test_json_has_a_point_for_each_layout_and_the_vocabulary() -> None:
    found = cost_dict(examples.study_dict(), examples.planted_layouts(), deadline_s=5.0, budget_gpu_hours=1.0)
    json.dumps(found, allow_nan=False)
    target = found["targets"][0]
    assert len(target["points"]) == 18
    point = target["points"][0]
    assert point["effective_batch_size"] == (
        point["micro_batch_size"] * point["world_size"] * point["accumulation_steps"]
    )
    assert set(point["wall_clock_s"]) == {"value", "low", "high", "reason"}
    assert {p["standing"] for p in target["points"]} <= {"front", "close", "dominated", "unresolved"}
    expected = target["cheapest_within_deadline"]["expected"]
    assert expected["wall_clock_s"]["value"] <= 5.0
    assert target["fastest_within_budget"]["reason"] is None


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="budget_gpu_hours=0 must be a positive number"):
        cost_lines(examples.study_dict(), examples.planted_layouts(), budget_gpu_hours=0)
