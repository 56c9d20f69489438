"""A sweep directory read into a report: nothing is lost, settings are kept apart, gaps are said."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gasweep.config.load import config_to_dict
from gasweep.errors import SweepDirectoryError
from gasweep.report.cost_tables import cost_dict
from gasweep.report.data import Collapse
from gasweep.report.from_sweep import read_report
from gasweep.report.html import render_report
from gasweep.results.journal import Journal
from gasweep.results.states import RunState
from tests.report.sweeps import CRITICAL, planted_config, planted_sweep

NOW = datetime(2025, 1, 31, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_sweep(tmp_path_factory.mktemp("sweep"))


def test_the_planted_critical_batch_size_is_in_the_report(whole: Path) -> None:
    data = read_report(whole, now=NOW)
    critical = data.studies[0].study["targets"][0]["critical_batch_size"]
    assert critical["low"] < CRITICAL < critical["high"]
    assert f"{critical['value']:.2f}" in render_report(data)


def test_every_run_is_a_row_and_probes_have_no_learning_rate(whole: Path) -> None:
    data = read_report(whole, now=NOW)
    assert data.collapse == Collapse(num_points=108, num_runs=72, num_probes=12, num_infeasible=0)
    assert len(data.runs) == 72 + 12
    convergence = [row for row in data.runs if row.kind == "convergence"]
    probes = [row for row in data.runs if row.kind == "probe"]
    assert {row.state for row in data.runs} == {"reached"}
    assert all(row.final_metric is not None and row.final_metric < 0.5 for row in convergence)
    assert all(row.learning_rate is None and row.seconds_per_optimizer_step for row in probes)


def test_layouts_carry_their_probe(whole: Path) -> None:
    layouts = read_report(whole, now=NOW).studies[0].layouts
    assert len(layouts) == 12
    assert all(layout.step_time is not None for layout in layouts)
    assert {layout.peak_memory_bytes for layout in layouts} == {104 * 2**20, 116 * 2**20}


def test_header_config_and_environment(whole: Path) -> None:
    data = read_report(whole, now=NOW)
    assert (data.name, data.task, data.created_at) == (
        "planted",
        "gasweep.tasks.NoisyQuadratic",
        "2025-01-31 12:00 UTC",
    )
    assert data.worker == "worker"
    assert "name: planted" in data.config_yaml
    assert [environment["runs"] for environment in data.environments] == ["84"]
    assert data.notes == ()


def test_unfinished_runs_are_flagged(tmp_path: Path) -> None:
    data = read_report(planted_sweep(tmp_path, unfinished=20), now=NOW)
    flags = data.studies[0].study["targets"][0]["flags"]
    assert any("runs have no result yet" in flag for flag in flags)
    assert sum(row.state == "waiting" for row in data.runs) == 20
    render_report(data)


def test_failed_runs_and_changed_configs_are_noted(tmp_path: Path) -> None:
    directory = planted_sweep(tmp_path, unfinished=2)
    with Journal.create_or_open(directory) as journal:
        waiting = [run.run_id for run in journal.runs() if run.state is RunState.WAITING]
        journal.transition(waiting[0], RunState.INFEASIBLE, "asks for 8 workers, the cluster has 2")
        journal.transition(waiting[1], RunState.RUNNING)
        journal.transition(waiting[1], RunState.FAILED, "worker died")
        changed = planted_config(budget={"max_examples": 5})
        journal.record_config(config_to_dict(changed), {"code_revision": "def"})
    notes = read_report(directory, now=NOW).notes
    assert notes == (
        "1 run failed; first: worker died",
        "1 run infeasible; first: asks for 8 workers, the cluster has 2",
        "the config changed between drivers: budget.max_examples: 1000000 -> 5",
        "the sweep ran under 2 code revisions",
    )


def test_axes_that_change_training_are_separate_studies_with_their_own_layouts(tmp_path: Path) -> None:
    grid = planted_config().grid | {"task.dimension": [100, 400]}
    data = read_report(planted_sweep(tmp_path, grid=grid), now=NOW)
    assert [section.label for section in data.studies] == ["task.dimension=100", "task.dimension=400"]
    assert [len(section.layouts) for section in data.studies] == [12, 12]
    steps = [section.study["targets"][0]["min_steps"]["value"] for section in data.studies]
    assert steps[1] / steps[0] == pytest.approx(1.4 / 1.1, rel=0.02)
    assert "task.dimension=400 · eval_loss &lt;= 0.5" in render_report(data)


def test_axes_that_change_only_cost_share_the_study_but_not_the_seconds(tmp_path: Path) -> None:
    grid = planted_config().grid | {"strategy": ["ddp", "fsdp"]}
    data = read_report(planted_sweep(tmp_path, grid=grid), now=NOW)
    assert [section.label for section in data.studies] == ["strategy=ddp", "strategy=fsdp"]
    assert data.studies[0].study == data.studies[1].study
    seconds = [s.layouts[0].step_time.seconds.value for s in data.studies if s.layouts[0].step_time]
    assert seconds[1] == pytest.approx(2 * (seconds[0] or 0))


def test_a_sweep_that_has_not_begun_is_a_report_too(tmp_path: Path) -> None:
    with Journal.create_or_open(tmp_path):
        pass
    data = read_report(tmp_path, now=NOW)
    assert [section.layouts for section in data.studies] == [()]
    assert data.collapse is None
    render_report(data)


def test_a_directory_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepDirectoryError, match=r"journal\.sqlite"):
        read_report(tmp_path)


def test_layouts_without_a_probe_are_predicted_and_say_so(tmp_path: Path) -> None:
    data = read_report(planted_sweep(tmp_path, unfinished=2), now=NOW)
    by_source = [layout.step_time.source for layout in data.studies[0].layouts if layout.step_time]
    assert sorted(by_source) == ["measured"] * 10 + ["predicted"] * 2
    predicted = data.studies[0].layouts[-1]
    assert predicted.step_time is not None
    point = predicted.point
    truth = 0.001 + point.accumulation_steps * (0.0005 + 1e-4 * point.micro_batch_size)
    truth += 0.002 if point.world_size > 1 else 0.0
    assert predicted.step_time.seconds.value == pytest.approx(truth, rel=0.05)
    points = cost_dict(data.studies[0].study, data.studies[0].layouts)["targets"][0]["points"]
    assert points[-1]["step_time_source"] == "predicted"


def test_without_probes_the_layouts_that_trained_are_used(tmp_path: Path) -> None:
    options = {"sweep": {"throughput_probes": False}}
    data = read_report(planted_sweep(tmp_path, throughput_of_training=True, **options), now=NOW)
    layouts = data.studies[0].layouts
    assert {layout.point.effective_batch_size for layout in layouts} == {4, 8, 16, 32, 64, 128, 256, 512}
    assert all(layout.step_time and layout.step_time.source == "measured" for layout in layouts)
