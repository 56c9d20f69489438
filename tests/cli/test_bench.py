"""What `gasweep bench` says: the same seconds everywhere, parts beside their sum, and what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gasweep.cli.bench_tables import COST_HEADER, SENT_HEADER, SPLIT_HEADER, cost_row, sent_rows, split_row
from gasweep.cli.left_out import LeftOut, left_out_lines
from gasweep.cli.main import main

CONFIG = """
name: small
task: {_target_: gasweep.tasks.NoisyQuadratic}
grid: {micro_batch_size: [4], world_size: [1, 2], accumulation_steps: [1, 2], learning_rate: [0.1]}
sweep: {probe_optimizer_steps: 6, probe_warmup_optimizer_steps: 1}
cluster: {backend: inline}
target: {value: 0.5}
budget: {max_examples: 100000}
"""
POINT: dict[str, Any] = {
    "micro_batch_size": 4,
    "world_size": 2,
    "accumulation_steps": 2,
    "effective_batch_size": 16,
    "axes": {},
    "strategy": "ddp",
    "seconds_per_optimizer_step": 0.004,
    "seconds_per_optimizer_step_low": 0.003,
    "seconds_per_optimizer_step_high": 0.005,
    "seconds_per_optimizer_step_median": 0.001,
    "seconds_per_optimizer_step_5pct": 0.0005,
    "seconds_per_optimizer_step_95pct": 0.009,
    "seconds_split": {"data": 0.001, "compute": 0.002, "optimizer": 0.0005, "exposed_communication": 0.0015},
    "seconds_saved_fraction": 0.369,
    "seconds_saved_fraction_low": 0.301,
    "seconds_saved_fraction_high": 0.422,
    "bytes_per_optimizer_step": 1000,
    "bytes_saved_fraction": 0.5,
    "examples_per_s": 4000.0,
    "tokens_per_s": None,
    "mfu": None,
    "peak_memory_bytes": 2**30,
    "communication": [
        {
            "collective": "all_gather",
            "dtype": "bfloat16",
            "group": "data",
            "num_ranks": 2,
            "control": False,
            "calls": 1600,
            "num_bytes": 1_500_000,
        }
    ],
}


def cells(header: tuple[str, ...], row: list[str]) -> dict[str, str]:
    return dict(zip(header, row, strict=True))


def test_the_mean_has_its_interval_and_the_median_its_name() -> None:
    row = cells(COST_HEADER, cost_row(POINT))
    assert row["ms/step [95 %]"] == "4.00 [3.00, 5.00]"
    assert row["median (5–95 %)"] == "1.00 (0.50–9.00)"
    assert row["time saved [95 %]"] == "36.9% [30.1%, 42.2%]"
    assert row["peak memory"] == "1 GiB"


def test_savings_without_an_interval_say_so() -> None:
    bare = POINT | {"seconds_saved_fraction_low": None, "seconds_saved_fraction_high": None}
    assert cells(COST_HEADER, cost_row(bare))["time saved [95 %]"] == "36.9% [?, ?]"
    alone = bare | {"seconds_saved_fraction": None}
    assert cells(COST_HEADER, cost_row(alone))["time saved [95 %]"] == "-"


def test_parts_stand_beside_their_sum_and_what_it_compares_with() -> None:
    row = cells(SPLIT_HEADER, split_row(POINT))
    assert (row["sum"], row["ms/step"]) == ("5.00", "4.00")
    assert cells(SPLIT_HEADER, split_row(POINT | {"seconds_split": {}}))["sum"] == "-"


def test_every_kind_of_collective_has_a_row() -> None:
    (row,) = sent_rows(POINT)
    assert cells(SENT_HEADER, row) == {
        "b x N x G": "4x2x2",
        "collective": "all_gather",
        "dtype": "bfloat16",
        "group": "data (2)",
        "calls": "1,600",
        "sent": "1.5 MB",
        "traffic": "model",
        "strategy": "ddp",
    }


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "config.yaml").write_text(CONFIG)
    assert main(["bench", str(folder / "config.yaml"), "--dir", str(folder / "bench")]) == 1
    return folder


def test_what_could_not_be_measured_is_listed_last_with_its_reason(benched: Path, capsys: Any) -> None:
    assert main(["bench", str(benched / "config.yaml"), "--dir", str(benched / "bench")]) == 1
    last = capsys.readouterr().out.splitlines()[-3:]
    assert last[0].startswith("infeasible: 4x2x1, 4x2x2 (3 runs): world_size=2 needs 2 workers, but")
    assert last[1] == f"plot in {benched / 'bench' / 'bench.png'}"
    assert last[2].startswith("stored in")


def test_json_has_what_was_left_out_and_bounds_for_every_mean(benched: Path, capsys: Any) -> None:
    assert main(["bench", str(benched / "config.yaml"), "--dir", str(benched / "bench"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [(group["state"], group["num_runs"]) for group in said["left_out"]] == [("infeasible", 3)]
    for point in said["points"]:
        low, high = point["seconds_per_optimizer_step_low"], point["seconds_per_optimizer_step_high"]
        assert low <= point["seconds_per_optimizer_step"] <= high


def test_the_plot_lies_beside_the_journal_and_json_names_it(benched: Path, capsys: Any) -> None:
    plot = benched / "bench" / "bench.png"
    plot.unlink()
    assert main(["bench", str(benched / "config.yaml"), "--dir", str(benched / "bench"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["plot"] == str(plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.with_suffix(".svg").read_text().rstrip().endswith("</svg>")
    assert main(["report", str(benched / "bench"), "--json"]) == 0
    assert str(plot) in json.loads(capsys.readouterr().out)["plots"]


def test_without_a_measured_layout_there_is_no_plot(benched: Path, capsys: Any) -> None:
    words = ["grid.world_size=[2]", "--dir", str(benched / "empty"), "--json"]
    assert main(["bench", str(benched / "config.yaml"), *words]) != 0
    said = json.loads(capsys.readouterr().out)
    assert (said["points"], said["plot"]) == ([], None)
    assert not list((benched / "empty").glob("bench.*"))


def test_a_plot_that_cannot_be_written_costs_one_line_and_no_table(
    benched: Path, tmp_path: Path, capsys: Any
) -> None:
    copy = shutil.copytree(benched / "bench", tmp_path / "bench")
    (copy / "bench.png").unlink()
    (copy / "bench.png").mkdir()
    assert main(["bench", str(benched / "config.yaml"), "--dir", str(copy)]) == 2
    said = capsys.readouterr()
    assert "4x1x2" in said.out
    assert said.err.splitlines()[-1] == f"gasweep: error: {copy / 'bench.png'}: Is a directory"


def test_a_benchs_own_directory_is_shown_where_it_is(benched: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(benched)
    main(["bench", str(benched / "bench"), "--json"])
    assert json.loads(capsys.readouterr().out)["directory"] == str(benched / "bench")
    assert not (benched / "sweeps").exists()


def test_combinations_that_are_no_run_are_listed_too(benched: Path, capsys: Any) -> None:
    words = ["strategy=single", "--dir", str(benched / "rejected")]
    assert main(["bench", str(benched / "config.yaml"), *words]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rejected: ")]
    assert line.endswith("world_size=2 needs more than one rank, but strategy='single'; use ddp or fsdp")


def test_a_sweep_lists_what_it_left_out_beside_its_answer(benched: Path, capsys: Any) -> None:
    words = ["sweep.throughput_probes=false", "grid.world_size=[2]", "--dir", str(benched / "sweep")]
    assert main(["run", str(benched / "config.yaml"), *words]) == 2
    said = capsys.readouterr().out.split("runs: 2 infeasible")[1]
    assert "infeasible: 4x2x1, 4x2x2: world_size=2 needs 2 workers" in said


def test_many_layouts_are_counted() -> None:
    many = LeftOut(state="failed", reason="why", layouts=tuple(map(str, range(9))), num_runs=9)
    assert left_out_lines([many]) == ["failed: 0, 1, 2, 3, 4, 5 and 3 more: why"]
