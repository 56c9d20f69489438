"""From runs to the report: what enters the fit, what is shown only, and the JSON that others read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from gasweep.analysis.estimate import Estimate
from gasweep.analysis.steps_to_target import TargetRule
from gasweep.analysis.study import StudyRun, fit_study
from gasweep.report.tables import steps_table
from tests.analysis.planted import BATCHES, runs, steps


def batch(report: dict[str, Any], size: float) -> dict[str, Any]:
    found = [one for one in report["observations"] if one["effective_batch_size"] == size]
    assert len(found) == 1
    return dict(found[0])


def fitted(items: list[StudyRun], **options: Any) -> dict[str, Any]:
    report = fit_study(items, **options).to_dict()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    return dict(report["targets"][0])


def test_planted_study_is_recovered_with_the_json_shape_of_the_design() -> None:
    report = fitted(runs())
    keys = {
        "target", "critical_batch_size", "min_steps", "min_examples", "critical_batch_size_20pct",
        "noise_scale", "flags", "observations",
    }  # fmt: skip
    assert keys <= set(report)
    estimate = report["critical_batch_size"]
    assert set(estimate) == {"value", "low", "high", "reason"}
    assert estimate["low"] < 128.0 < estimate["high"]
    assert report["flags"] == []
    assert {one["learning_rate"] for one in report["observations"]} == {0.1}
    assert {one["learning_rate_label"] for one in report["observations"]} == {"bracketed"}
    assert {one["role"] for one in report["observations"]} == {"exact"}


def test_c04_mean_over_reached_is_not_the_mean_and_the_median_is_exact() -> None:
    """C04: budget 200, seeds at 100, 120, not reached: mean >= 140, median 120, never 110."""
    seeds = [
        StudyRun(batch_size=8, seed=0, steps=100.0),
        StudyRun(batch_size=8, seed=1, steps=120.0),
        StudyRun(batch_size=8, seed=2, last_step=200.0, state="censored"),
    ]
    one = batch(fitted(seeds), 8)
    assert one["steps_to_target"] == {
        "value": None,
        "low": 140.0,
        "high": None,
        "reason": "1 of 3 seeds did not reach the target",
    }
    assert one["median_steps_to_target"] == 120.0
    assert (one["num_seeds"], one["num_reached"], one["num_censored"]) == (3, 2, 1)


def test_c04_batch_whose_best_rate_is_censored_is_shown_and_not_fitted() -> None:
    unreached = [
        StudyRun(batch_size=2, learning_rate=rate, seed=seed, last_step=500.0, state="censored")
        for rate in (0.05, 0.1, 0.2)
        for seed in range(3)
    ]
    report = fitted([*unreached, *runs()])
    one = batch(report, 2)
    assert (one["role"], one["learning_rate_label"], one["num_censored"]) == ("excluded", "none", 9)
    assert one["steps_to_target"]["value"] is None
    assert any("batch 2: " in flag and "shown, not fitted" in flag for flag in report["flags"])
    assert report["critical_batch_size"] == fitted(runs())["critical_batch_size"]


def test_c04_the_only_rate_not_reached_is_an_inequality() -> None:
    items = [
        StudyRun(batch_size=size, seed=seed, steps=steps(size) * (1 + 0.02 * seed))
        for size in BATCHES
        for seed in range(3)
    ]
    items += [StudyRun(batch_size=2, seed=seed, last_step=3000.0, state="censored") for seed in range(3)]
    one = batch(fitted(items), 2)
    assert (one["role"], one["steps_to_target"]["low"]) == ("lower bound", 3000.0)
    assert one["fitted_steps"]["value"] == pytest.approx(steps(2.0), rel=0.1)


def test_c06_edge_winner_enters_as_an_upper_bound_and_is_flagged_with_the_next_rate() -> None:
    edge = [
        StudyRun(batch_size=2048, learning_rate=rate, seed=seed, steps=value + seed)
        for rate, value in ((1e-4, 400.0), (3e-4, 250.0), (1e-3, 180.0))
        for seed in range(3)
    ]
    report = fitted([*runs(), *edge])
    one = batch(report, 2048)
    assert (one["role"], one["learning_rate_label"], one["learning_rate_proposed"]) == (
        "upper bound",
        "edge",
        3e-3,
    )
    assert any("0.001 is the edge of its grid, not bracketed; try 0.003" in flag for flag in report["flags"])
    said = [flag for seen in report["observations"] for flag in seen["flags"]]
    assert any("0.001 is the edge of its grid" in flag for flag in said)
    assert report["critical_batch_size"]["value"] == pytest.approx(
        fitted(runs())["critical_batch_size"]["value"], rel=0.01
    )


def test_a_study_of_edges_only_has_no_answer_and_says_why() -> None:
    report = fitted(runs((0.2, 0.4)))
    assert report["critical_batch_size"]["value"] is None
    assert "brackets" in report["critical_batch_size"]["reason"]


def test_c29_noise_scale_is_reported_apart_from_the_fit() -> None:
    """C29: B_simple is a proxy under its own name; it does not touch B_crit."""
    noise = Estimate(value=16.0, low=12.0, high=20.0)
    report = fitted(runs(), noise_scale=noise)
    assert report["noise_scale"] == noise.to_dict()
    assert report["critical_batch_size"] == fitted(runs())["critical_batch_size"]
    assert fitted(runs())["noise_scale"]["reason"] == "not measured"


def test_all_diverged_batch_is_shown_with_its_reason() -> None:
    bad = [StudyRun(batch_size=4096, learning_rate=rate, seed=0, state="diverged") for rate in (0.1, 0.2)]
    one = batch(fitted([*runs(), *bad]), 4096)
    assert (one["role"], one["reason"], one["num_diverged"]) == (
        "excluded",
        "every learning rate diverged",
        2,
    )


def test_finer_grid_is_anticipated() -> None:
    """Rates straddle the best one by different amounts; without the shift S(B) would be off by up to 10 %."""
    items = []
    for index, size in enumerate(BATCHES):
        place = 0.3 * math.sin(2.0 * index)
        for rate in (-1.4, -0.7, 0.0, 0.7, 1.4):
            for seed in range(3):
                value = steps(size) * math.exp(0.9 * (rate - place) ** 2 + 0.003 * (seed - 1))
                items.append(StudyRun(batch_size=size, learning_rate=math.exp(rate), seed=seed, steps=value))
    report = fitted(items)
    assert report["critical_batch_size"]["value"] == pytest.approx(128.0, rel=0.02)
    for one in report["observations"]:
        assert one["fitted_steps"]["value"] == pytest.approx(steps(one["effective_batch_size"]), rel=0.02)


def curve(size: float, factor: float) -> list[tuple[float, float | None]]:
    """A loss that reaches 1.0 at S(B) and 0.5 after 3 * S(B) of another law, B_crit 256."""
    first, second = factor * steps(size), factor * 3.0 * steps(size, critical=256.0)
    points = [(first * k / 10, 2.0 - k / 10) for k in range(11)]
    return points + [(first + second * k / 10, 1.0 - 0.05 * k) for k in range(1, 11)]


def curves() -> list[StudyRun]:
    return [
        StudyRun(batch_size=size, seed=seed, points=curve(size, factor), state="censored")
        for size in BATCHES
        for seed, factor in enumerate((0.98, 1.0, 1.02))
    ]


def test_several_targets_from_one_run_and_the_local_b_crit_between_them() -> None:
    rules = [TargetRule(metric="eval_loss", value=value) for value in (1.0, 0.5)]
    report = fit_study(curves(), rules).to_dict()
    values = [target["critical_batch_size"]["value"] for target in report["targets"]]
    assert values[0] == pytest.approx(128.0, rel=0.01)
    assert values[1] == pytest.approx(224.0, rel=0.01)
    assert [point["target"] for point in report["growth"]] == ["eval_loss <= 1", "eval_loss <= 0.5"]
    assert report["growth"][0]["local_critical_batch_size"] is None
    assert report["growth"][1]["local_critical_batch_size"]["value"] == pytest.approx(256.0, rel=0.01)


def test_growth_orders_targets_by_difficulty_whatever_the_order_given() -> None:
    rules = [TargetRule(metric="eval_loss", value=value) for value in (0.5, 1.0)]
    points = fit_study(curves(), rules).growth
    assert [point.target for point in points] == ["eval_loss <= 1", "eval_loss <= 0.5"]


def test_run_that_reached_and_then_diverged_has_reached() -> None:
    rule = TargetRule(metric="eval_loss", value=1.0)
    run = StudyRun(batch_size=8, points=[(0, 2.0), (10, 0.5), (20, None)], state="diverged")
    report = fit_study([run], [rule]).targets[0]
    assert report.batches[0].steps.value == pytest.approx(20 / 3)


def test_untrained_model_at_the_target_is_flagged_and_left_out() -> None:
    rule = TargetRule(metric="eval_loss", value=1.0)
    report = fit_study(
        [StudyRun(batch_size=8, points=[(0, 0.5), (10, 0.4)], source="run a")], [rule]
    ).targets[0]
    assert report.flags[0] == "run a: the untrained model already meets the target; run left out"


def test_no_runs_no_targets() -> None:
    assert fit_study([]).to_dict() == {"targets": [], "growth": []}


def test_outlier_seed_is_marked_in_its_batch() -> None:
    items = runs((0.1,))
    items[4] = replace(items[4], steps=(items[4].steps or 0.0) * 12.0)
    report = fitted(items)
    marked = [
        (one["effective_batch_size"], s["seed"])
        for one in report["observations"]
        for s in one["seeds"]
        if s["outlier"]
    ]
    assert marked == [(16.0, 1)]


def test_u_shaped_examples_are_said() -> None:
    """Fixed Adam betas make the smallest batches wasteful: E(B) falls before it rises."""
    items = [replace(run, steps=(run.steps or 0.0) * (1.0 + 6.0 / run.batch_size)) for run in runs((0.1,))]
    flags = fitted(items)["flags"]
    assert any(
        flag.startswith("U-shape: examples to target fall from") and "batch 8 to" in flag for flag in flags
    )
    assert not any(flag.startswith("U-shape") for flag in fitted(runs((0.1,)))["flags"])


def test_steps_that_rise_with_the_batch_are_said() -> None:
    items = [
        replace(run, steps=(run.steps or 0.0) * (2.0 if run.batch_size >= 512 else 1.0))
        for run in runs((0.1,))
    ]
    assert any(flag.startswith("steps to target rise from") for flag in fitted(items)["flags"])


def test_constant_warmup_is_flagged_with_the_bias_it_implies() -> None:
    """50 steps lost everywhere turn B_crit 134 into 24: E_min / (S_min + 50) instead of E_min / S_min."""
    min_steps, critical, delay = 10.9, 134.0, 50.0
    items = [
        StudyRun(
            batch_size=size,
            seed=seed,
            steps=min_steps * (1 + critical / size) + delay + 0.1 * (seed - 1),
            warmup_steps=2.0 * delay,
        )
        for size in BATCHES
        for seed in range(3)
    ]
    report = fitted(items)
    assert report["critical_batch_size"]["value"] == pytest.approx(24.0, rel=0.02)
    flag = next(flag for flag in report["flags"] if flag.startswith("delay"))
    assert float(flag.rsplit(" ", 1)[1]) == pytest.approx(critical, rel=0.01)


def test_short_warmup_is_not_flagged() -> None:
    items = [replace(run, warmup_steps=5.0) for run in runs((0.1,))]
    assert not any(flag.startswith("delay") for flag in fitted(items)["flags"])


def test_thin_data_are_said() -> None:
    two = [run for run in runs((0.1,)) if run.batch_size in (8, 1024)]
    assert any("two batch sizes only" in flag for flag in fitted(two)["flags"])
    single = [run for run in runs((0.1,)) if run.seed == 0]
    assert any("one seed per batch size" in flag for flag in fitted(single)["flags"])


def test_seeds_tied_by_coarse_evaluations_are_said() -> None:
    items = [replace(run, steps=50.0 * math.ceil((run.steps or 0.0) / 50.0)) for run in runs((0.1,))]
    assert any("evaluations are coarse" in flag for flag in fitted(items)["flags"])


def test_outlier_seed_neither_widens_nor_costs_its_rate_the_choice() -> None:
    """The corrupt seed sits at the best rate; with it the rate's mean would lose to its neighbours."""
    items = runs()
    index = next(k for k, run in enumerate(items) if run.batch_size == 64 and run.learning_rate == 0.1)
    items[index] = replace(items[index], steps=(items[index].steps or 0.0) * 12.0)
    report = fitted(items)
    assert batch(report, 64)["learning_rate"] == 0.1
    assert [
        (one["effective_batch_size"], one["learning_rate"], one["seed"]) for one in report["outliers"]
    ] == [(64.0, 0.1, 0)]
    assert report["flags"][0].startswith("outlier: seed 0 at batch 64, learning rate 0.1, took")
    assert report["critical_batch_size"]["value"] == pytest.approx(128.0, rel=0.1)


def test_neighbour_stopped_too_early_to_compare_does_not_bracket() -> None:
    """0.2 was stopped far before the winner's steps: it may be better, so the winner is at the edge."""
    items = [run for run in runs() if run.batch_size != 64 or run.learning_rate != 0.2]
    items += [
        StudyRun(batch_size=64, learning_rate=0.2, seed=seed, last_step=10.0, state="censored")
        for seed in range(3)
    ]
    one = batch(fitted(items), 64)
    assert (one["learning_rate"], one["learning_rate_label"], one["role"]) == (0.1, "edge", "upper bound")


def test_runs_that_say_nothing_do_not_bracket() -> None:
    items = [run for run in runs() if run.batch_size != 64 or run.learning_rate != 0.2]
    items += [StudyRun(batch_size=64, learning_rate=0.2, seed=0, state="censored")]
    report = fitted(items)
    assert batch(report, 64)["learning_rate_label"] == "edge"
    assert any("its last step is unknown" in flag for flag in report["flags"])


def test_evaluations_too_far_apart_to_interpolate_are_said() -> None:
    rule = TargetRule(metric="eval_loss", value=1.0)
    items = [
        StudyRun(
            batch_size=size,
            seed=seed,
            points=[(1.0, 4.0), (steps(size) * (0.7 + 0.01 * seed), 1.5), (1.5 * steps(size), 0.6)],
        )
        for size in BATCHES
        for seed in range(3)
    ]
    flags = fit_study(items, [rule]).targets[0].flags
    assert any("of the steps apart at batch" in flag for flag in flags)


def test_a_seed_that_diverged_is_not_said_of_all() -> None:
    runs = [
        StudyRun(batch_size=batch, seed=seed, steps=100.0 + seed if seed else None, state=state)
        for batch in (8.0, 16.0, 32.0)
        for seed, state in ((0, "diverged"), (1, "reached"), (2, "reached"))
    ]
    (report,) = fit_study(runs).targets
    assert all("some seed diverged" in str(batch.reason) for batch in report.batches)
    assert "none that did can be counted" in str(report.fit.critical_batch_size.reason)
    rows = steps_table(fit_study(runs).to_dict())[2:]
    assert all("2/3" in row for row in rows)
