"""Commands on a stored sweep and a config: JSON shapes are fixed, tables say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gasweep.cli.main import main
from gasweep.results.journal import Journal
from gasweep.results.lock import DirectoryLock
from gasweep.results.states import RunState
from tests.results.planted import BATCHES, CRITICAL, MIN_STEPS, RATES, plant

CONFIG = """
name: small
task: {_target_: gasweep.tasks.NoisyQuadratic, dimension: 4}
grid:
  micro_batch_size: [4, 8]
  world_size: [1, 2]
  accumulation_steps: [1, 2]
  learning_rate: [1e-1, 3e-1]
  seed: [0, 1]
target: {metric: eval_loss, value: 0.2}
budget: {max_optimizer_steps: 100}
"""

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    return path


def json_of(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_plan_json_has_the_fixed_shape(config: Path, capsys: Capture) -> None:
    plan = json_of(capsys, "plan", str(config))
    assert (plan["num_points"], plan["num_runs"], plan["num_probes"]) == (32, 16, 8)
    assert set(plan["points"][0]) == {
        "micro_batch_size",
        "world_size",
        "accumulation_steps",
        "effective_batch_size",
        "learning_rate",
        "seed",
        "run_id",
    }
    for point in plan["points"]:
        assert point["effective_batch_size"] == (
            point["micro_batch_size"] * point["world_size"] * point["accumulation_steps"]
        )
    assert len({point["run_id"] for point in plan["points"]}) == 16


def test_plan_says_what_collapses_and_takes_overrides(config: Path, capsys: Capture) -> None:
    assert main(["plan", str(config), "grid.seed=[0]", "grid.learning_rate=[1e-2]"]) == 0
    out = capsys.readouterr().out
    assert "8 grid points collapse to 4 convergence runs and 8 throughput probes" in out
    assert "8x1x2 8x2x1" in out
    assert "budget: at most 6,000 examples over all runs" in out


def test_plan_and_run_refuse_a_metric_the_task_does_not_measure(config: Path, capsys: Capture) -> None:
    for command in ("plan", "run"):
        assert main([command, str(config), "target.metric=eval_los"]) == 2
        assert "did you mean 'eval_loss'?" in capsys.readouterr().err


def test_equal_tasks_get_equal_runs_however_they_are_written(config: Path, capsys: Capture) -> None:
    plain = json_of(capsys, "plan", str(config))
    spelt = json_of(capsys, "plan", str(config), "task.condition_number=100", "task.noise_alignment=1")
    other = json_of(capsys, "plan", str(config), "task.condition_number=10")
    assert [p["run_id"] for p in plain["points"]] == [p["run_id"] for p in spelt["points"]]
    assert {p["run_id"] for p in plain["points"]}.isdisjoint(p["run_id"] for p in other["points"])


def test_status_json_has_the_fixed_shape(tmp_path: Path, capsys: Capture) -> None:
    directory = plant(tmp_path / "s", unfinished=2)
    lock = DirectoryLock(directory)
    status = json_of(capsys, "status", str(directory))
    lock.release()
    num_runs = len(BATCHES) * len(RATES) * 3 + len(BATCHES)
    assert set(status) == {"runs", "counts"}
    assert len(status["runs"]) == num_runs
    assert status["counts"]["running"] == 2
    assert status["counts"]["reached"] == num_runs - 2
    assert set(status["counts"]) == {state.value for state in RunState}
    running = status["runs"][-1]
    assert (running["state"], running["optimizer_step"], running["effective_batch_size"]) == (
        "running",
        3,
        BATCHES[-1],
    )
    assert running["eta_s"] > 0


def test_nobody_knows_when_a_sweep_without_a_driver_ends(tmp_path: Path, capsys: Capture) -> None:
    status = json_of(capsys, "status", str(plant(tmp_path / "s", unfinished=2)))
    assert status["runs"][-1]["state"] == "running"
    assert status["runs"][-1]["eta_s"] is None


def test_status_shows_every_run_and_who_drives(tmp_path: Path, capsys: Capture) -> None:
    directory = plant(tmp_path / "s", unfinished=2)
    assert main(["status", str(directory)]) == 0
    out = capsys.readouterr().out
    assert f"no driver: `gasweep run {directory}` goes on" in out
    assert out.count("running") == 3
    assert not any(line.endswith(" ") for line in out.splitlines())
    with Journal.create_or_open(directory):
        assert main(["status", str(directory)]) == 0
        assert "driven by pid" in capsys.readouterr().out


def test_status_watch_ends_with_the_driver(tmp_path: Path, capsys: Capture) -> None:
    assert main(["status", str(plant(tmp_path / "s")), "--watch", "--interval", "0.1"]) == 0
    assert "planted: 70/70 runs done" in capsys.readouterr().out


def test_status_of_a_sweep_whose_driver_has_only_begun(tmp_path: Path, capsys: Capture) -> None:
    Journal.create_or_open(tmp_path / "s").close()
    assert json_of(capsys, "status", str(tmp_path / "s"))["runs"] == []
    assert main(["status", str(tmp_path / "s")]) == 0
    assert "s: 0/0 runs done" in capsys.readouterr().out


def test_fit_json_has_the_fixed_shape_and_the_truth(tmp_path: Path, capsys: Capture) -> None:
    fit = json_of(capsys, "fit", str(plant(tmp_path / "s")))
    assert set(fit) == {"targets", "unit"}
    (target,) = fit["targets"]
    estimates = (
        "critical_batch_size",
        "min_steps",
        "min_examples",
        "critical_batch_size_20pct",
        "noise_scale",
    )
    assert {"target", "flags", "observations", *estimates} <= set(target)
    for name in estimates:
        assert set(target[name]) == {"value", "low", "high", "reason"}
    assert target["noise_scale"]["value"] is None
    assert target["noise_scale"]["reason"]
    assert target["critical_batch_size"]["low"] < CRITICAL < target["critical_batch_size"]["high"]


def test_fit_prints_the_table_the_estimates_and_the_scatter(tmp_path: Path, capsys: Capture) -> None:
    assert main(["fit", str(plant(tmp_path / "s"))]) == 0
    out = capsys.readouterr().out
    for text in ("B_crit (examples)", "S_min (optimizer steps)", "B at 20 % overhead", "bracketed"):
        assert text in out
    assert "over factorisations            not measured (sweep.mode=full repeats runs in several)" in out
    assert "over seeds                     2" in out


def test_export_names_its_files(tmp_path: Path, capsys: Capture) -> None:
    directory = plant(tmp_path / "s")
    files = json_of(capsys, "export", str(directory))["files"]
    assert [Path(name).name for name in files] == ["runs.csv", "evaluations.csv", "steps.csv"]
    assert all(Path(name).stat().st_size > 0 for name in files)
    assert main(["export", str(directory), "--out", str(tmp_path / "elsewhere")]) == 0
    assert str(tmp_path / "elsewhere" / "runs.csv") in capsys.readouterr().out


def test_report_writes_html_and_pngs(tmp_path: Path, capsys: Capture) -> None:
    made = json_of(capsys, "report", str(plant(tmp_path / "s")))
    assert Path(made["report"]).read_text(encoding="utf-8").startswith("<!")
    assert [Path(plot).read_bytes()[:4] for plot in made["plots"]] == [b"\x89PNG"] * 3


def test_settings_of_extra_axes_are_answered_apart(tmp_path: Path, capsys: Capture) -> None:
    directory = plant(tmp_path / "s", axes=({"task.width": 64}, {"task.width": 128}))
    fit = json_of(capsys, "fit", str(directory))
    assert [target["axes"] for target in fit["targets"]] == [{"task.width": 64}, {"task.width": 128}]
    plots = json_of(capsys, "report", str(directory))["plots"]
    assert [Path(plot).name for plot in plots] == [
        "critical_batch_size-task.width-64.png",
        "learning_rates-task.width-64.png",
        "critical_batch_size-task.width-128.png",
        "learning_rates-task.width-128.png",
        "bench.png",
    ]


def write_table(path: Path) -> Path:
    lines = ["bsz,lr,run_seed,optimizer_steps,done"]
    for batch in BATCHES:
        for seed in range(3):
            steps = MIN_STEPS * (1 + CRITICAL / batch) * (1 + 0.02 * (seed - 1))
            lines.append(f"{batch},0.1,{seed},{steps},yes")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_fit_reads_anyones_table(tmp_path: Path, capsys: Capture) -> None:
    table = write_table(tmp_path / "steps.csv")
    columns = ["--column", "batch_size=bsz", "--column", "seed=run_seed", "--column", "reached=done"]
    fit = json_of(capsys, "fit", str(table), *columns, "--plot", str(tmp_path / "fit.png"))
    (target,) = fit["targets"]
    assert target["critical_batch_size"]["value"] == pytest.approx(CRITICAL, rel=0.05)
    assert fit["plots"] == [str(tmp_path / "fit.png")]
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_fit_reads_what_export_wrote(tmp_path: Path, capsys: Capture) -> None:
    directory = plant(tmp_path / "s")
    json_of(capsys, "export", str(directory), "--out", str(tmp_path))
    own = json_of(capsys, "fit", str(directory))["targets"][0]
    arguments = ["--metric", "eval_loss", "--target", "0.5"]
    read = json_of(capsys, "fit", str(tmp_path / "evaluations.csv"), *arguments)["targets"][0]
    for name in ("critical_batch_size", "min_steps", "min_examples"):
        assert read[name]["value"] == pytest.approx(own[name]["value"], rel=1e-9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no column for batch_size"),
        (["--column", "batch_size"], "--column 'batch_size' must have the form NAME=VALUE"),
        (["--column", "batch_size=bzs"], "did you mean 'bsz'?"),
        (["--column", "batch_size=bsz", "--target", "0.5"], "holds steps to target, not curves"),
        (["--column", "batch_size=bsz", "--column", "reached=lr"], "steps.csv line 2"),
        (["--metric", "eval_loss"], "no column 'eval_loss'"),
    ],
)
def test_fit_names_what_it_cannot_use(words: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["fit", str(write_table(tmp_path / "steps.csv")), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_fit_takes_another_target_for_a_sweep(tmp_path: Path, capsys: Capture) -> None:
    directory = str(plant(tmp_path / "s"))
    fit = json_of(capsys, "fit", directory, "--target", "0.75", "--target", "0.5", "--base-batch-size", "8")
    assert [target["target"] for target in fit["targets"]] == ["eval_loss <= 0.75", "eval_loss <= 0.5"]
    assert fit["targets"][0]["min_steps"]["value"] == pytest.approx(MIN_STEPS / 2, rel=0.05)
    assert len(fit["growth"]) == 2
