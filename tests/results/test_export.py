"""Exported tables: every value exact, absent stays absent, units in the names."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest

from gasweep.analysis.sources import read_source
from gasweep.errors import MissingDependencyError, SourceError, UserError
from gasweep.results.export import export_tables
from gasweep.results.journal import Journal
from gasweep.results.reader import JournalReader
from gasweep.results.records import StepRecord
from gasweep.results.states import RunState
from tests.results.examples import make_eval, make_result, make_spec, make_step, started

LOSS = 0.1 + 0.2


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    directory = tmp_path / "sweep"
    with started(directory, "a", "b") as journal:
        journal.append(
            "a",
            1,
            steps=[
                make_step(1, loss=LOSS),
                StepRecord(
                    optimizer_step=2, contributions=32, loss=None, learning_rate=1e-9, extra={"x": 1.5}
                ),
            ],
            evaluations=[make_eval(0, loss=LOSS), make_eval(2, loss=5e-324)],
        )
        journal.record_result(make_result("a", optimizer_steps=2))
        journal.transition("b", RunState.FAILED, 'raised "ValueError", line 3\nof it')
    return directory


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_every_value_exactly_and_absent_ones_empty(sweep: Path, tmp_path: Path) -> None:
    with JournalReader.open(sweep) as reader:
        paths = export_tables(reader, tmp_path / "out")
    assert [path.name for path in paths] == ["runs.csv", "evaluations.csv", "steps.csv"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(p.name for p in paths)
    runs, evaluations, steps = map(read_csv, paths)
    assert [run["state"] for run in runs] == ["reached", "failed"]
    assert runs[0]["effective_batch_size"] == "16"
    assert runs[0]["seconds_per_optimizer_step"] == "0.1"
    assert runs[0]["task.width"] == "64"
    assert runs[1]["reason"] == 'raised "ValueError", line 3\nof it'
    assert (runs[1]["wall_s"], runs[1]["tokens_per_s"], runs[0]["tokens_per_s"]) == ("", "", "")
    assert [float(row["eval_loss"]) for row in evaluations] == [LOSS, 5e-324]
    assert float(steps[0]["loss"]) == LOSS
    assert (steps[1]["loss"], steps[1]["extra_json"]) == ("", '{"x": 1.5}')
    text = "".join(path.read_text() for path in paths)
    assert "nan" not in text.lower()
    assert "None" not in text


def test_parquet_holds_the_same_with_types(sweep: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with JournalReader.open(sweep) as reader:
        paths = export_tables(reader, tmp_path / "out", format="parquet")
    runs, evaluations, steps = (parquet.read_table(path).to_pylist() for path in paths)
    assert runs[0]["effective_batch_size"] == 16
    assert (runs[0]["state"], runs[1]["wall_s"]) == ("reached", None)
    assert [row["eval_loss"] for row in evaluations] == [LOSS, 5e-324]
    assert (steps[0]["loss"], steps[1]["loss"]) == (LOSS, None)
    assert not any(isinstance(v, float) and math.isnan(v) for row in steps for v in row.values())


def test_an_empty_sweep_gives_tables_with_headers_alone(tmp_path: Path) -> None:
    with Journal.create_or_open(tmp_path / "sweep") as journal:
        journal.add_runs([make_spec("a")])
        paths = export_tables(journal, tmp_path / "out")
    assert len(read_csv(paths[0])) == 1
    assert read_csv(paths[1]) == []
    assert paths[2].read_text().startswith("run_id,optimizer_step,contributions_examples,loss,")


def test_parquet_without_its_package_names_the_extra(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        JournalReader.open(sweep) as reader,
        pytest.raises(MissingDependencyError, match=r"pip install 'gasweep\[parquet\]'"),
    ):
        export_tables(reader, tmp_path / "out", format="parquet")


def test_a_wrong_format_or_folder_is_one_line(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with JournalReader.open(sweep) as reader:
        with pytest.raises(UserError, match="format='xlsx' must be one of csv, parquet"):
            export_tables(reader, tmp_path / "out", format="xlsx")
        with pytest.raises(UserError, match="cannot be written"):
            export_tables(reader, tmp_path / "file" / "out")


def test_the_runs_of_an_export_are_not_taken_for_steps_to_target(tmp_path: Path) -> None:
    with started(tmp_path / "sweep", "a") as journal:
        journal.record_result(make_result("a"))
        runs, *_ = export_tables(journal, tmp_path / "out")
    with pytest.raises(SourceError, match=r"where each run ended.* or evaluations\.csv with --metric"):
        read_source(runs)
