"""The journal: what goes in comes out, states, retries, versions, ownership."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gasweep.config.run_spec import RunSpec
from gasweep.errors import SweepDirectoryError
from gasweep.results.directory import JOURNAL_FILE
from gasweep.results.journal import Journal
from gasweep.results.lock import holder
from gasweep.results.reader import JournalReader
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.results.states import RunState
from gasweep.results.stored import config_changes
from tests.results.examples import make_eval, make_result, make_spec, make_step, started

AWKWARD = [0.1 + 0.2, 5e-324, -1.7976931348623157e308, 1 / 3, 2.0, 1e22, -7.0]


def test_records_come_back_exactly(tmp_path: Path) -> None:
    steps = [
        StepRecord(
            optimizer_step=i + 1,
            contributions=2**53 + i,
            loss=None if i == 3 else value,
            learning_rate=value,
            grad_norm=value,
            seconds=value,
            examples_per_s=None,
            tokens_per_s=value,
            bytes_on_wire=2**40,
            bytes_saved=i,
            extra={"noise_scale": value},
        )
        for i, value in enumerate(AWKWARD)
    ]
    evaluations = [
        EvalRecord(optimizer_step=i, contributions=i, metrics={"eval_loss": value, "eval_accuracy": 1.0})
        for i, value in enumerate(AWKWARD)
    ]
    result = make_result("a", evaluations=evaluations)
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=steps, evaluations=evaluations)
        journal.record_result(result)
    with JournalReader.open(tmp_path) as reader:
        assert repr(reader.steps("a")) == repr(steps)
        assert repr(reader.evaluations("a")) == repr(evaluations)
        assert repr(reader.result("a")) == repr(result)
        assert reader.steps("a", after=5) == steps[5:]
        assert RunSpec.from_dict(reader.runs()[0].spec) == make_spec("a")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_are_refused_and_nothing_is_stored(tmp_path: Path, bad: float) -> None:
    with started(tmp_path, "a") as journal:
        with pytest.raises(AssertionError, match=r"StepRecord\.loss is not finite"):
            journal.append("a", 1, steps=[make_step(1), make_step(2, loss=bad)])
        with pytest.raises(AssertionError, match=r"EvalRecord\.metrics\['eval_loss'\] is not finite"):
            journal.append("a", 1, steps=[make_step(1)], evaluations=[make_eval(1, loss=bad)])
        with pytest.raises(AssertionError, match=r"RunResult\.evaluations\[0\]\.metrics"):
            journal.record_result(make_result("a", evaluations=[make_eval(1, loss=bad)]))
        assert journal.steps("a") == []
        assert journal.result("a") is None


def test_runs_keep_order_state_and_reason(tmp_path: Path) -> None:
    journal = Journal.create_or_open(tmp_path, clock=lambda: 7.0)
    journal.add_runs([make_spec("b"), make_spec("a", learning_rate=0.3)])
    journal.transition("a", RunState.INFEASIBLE, "world_size=8 is more than the cluster's 2 workers")
    runs = journal.runs()
    assert [run.run_id for run in runs] == ["b", "a"]
    assert (runs[1].state, runs[1].reason) == (
        RunState.INFEASIBLE,
        "world_size=8 is more than the cluster's 2 workers",
    )
    assert (runs[1].learning_rate, runs[1].effective_batch_size, runs[1].world_size) == (0.3, 16, 1)
    assert runs[1].axes == {"task.width": 64}
    assert journal.counts()[RunState.WAITING] == 1
    assert set(journal.counts()) == set(RunState)
    assert [(t.run_id, t.new_state, t.at) for t in journal.transitions()] == [("a", RunState.INFEASIBLE, 7.0)]
    journal.close()


def test_only_the_tables_transitions_happen(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        journal.record_result(make_result("a"))
        with pytest.raises(AssertionError, match="reached cannot become running"):
            journal.transition("a", RunState.RUNNING)
        journal.transition("a", RunState.REACHED)
        assert [t.new_state for t in journal.transitions("a")] == [RunState.RUNNING, RunState.REACHED]
        with pytest.raises(KeyError, match="run z is not in"):
            journal.transition("z", RunState.RUNNING)


def test_a_result_is_stored_with_its_state_and_attempt_and_only_once(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        assert journal.record_result(make_result("a", state=RunState.CENSORED))
        assert not journal.record_result(make_result("a", optimizer_steps=99))
        assert journal.state("a") is RunState.CENSORED
        assert journal.runs()[0].reason == "why"
        stored = journal.result("a")
        assert stored is not None
        assert stored.optimizer_steps == 10
        assert [(a.number, a.cause) for a in journal.attempts("a")] == [(1, "finished")]
        assert journal.results() == {"a": stored}
        with pytest.raises(AssertionError, match="cannot have state failed"):
            journal.record_result(make_result("a", state=RunState.FAILED))


def test_a_resumed_attempt_replaces_what_it_runs_again(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(i, loss=1.0) for i in range(1, 51)])
        journal.append("a", 1, evaluations=[make_eval(s, loss=1.0) for s in (0, 20, 40)])
        journal.end_attempt("a", 1, "process_death", "worker 3 died")
        assert journal.start_attempt("a") == 2
        journal.append("a", 2, steps=[make_step(i, loss=2.0) for i in range(31, 36)])
        assert [s.optimizer_step for s in journal.steps("a")] == list(range(1, 36))
        assert [s.loss for s in journal.steps("a")][29:31] == [1.0, 2.0]
        assert [e.optimizer_step for e in journal.evaluations("a")] == [0, 20]
        journal.append("a", 1, steps=[make_step(40, loss=3.0)])
        assert len(journal.steps("a")) == 35


def test_an_evaluation_repeated_at_the_checkpoint_keeps_the_step_before_it(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(i) for i in range(1, 51)], evaluations=[make_eval(30)])
        journal.start_attempt("a")
        journal.append("a", 2, evaluations=[make_eval(30, loss=2.0)])
        assert [s.optimizer_step for s in journal.steps("a")] == list(range(1, 31))
        assert [e.metrics["eval_loss"] for e in journal.evaluations("a")] == [2.0]


def test_a_result_drops_what_a_lost_attempt_ran_beyond_it(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(i) for i in range(1, 51)], evaluations=[make_eval(40)])
        journal.record_result(make_result("a", optimizer_steps=20, evaluations=[make_eval(0), make_eval(20)]))
        assert len(journal.steps("a")) == 20
        assert [e.optimizer_step for e in journal.evaluations("a")] == [0, 20]


def test_an_attempt_that_was_never_started_is_an_error(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal, pytest.raises(AssertionError, match="attempt 2 of run a"):
        journal.append("a", 2, steps=[make_step(1)])


def test_a_transaction_happens_wholly_or_not_at_all(tmp_path: Path) -> None:
    with started(tmp_path, "a", "b") as journal:
        with pytest.raises(AssertionError, match="cannot become"), journal.transaction():  # noqa: PT012
            journal.record_result(make_result("a"))
            journal.transition("a", RunState.RUNNING)
        assert journal.result("a") is None
        assert journal.counts()[RunState.RUNNING] == 2
        with journal.transaction():
            journal.record_result(make_result("a"))
            journal.transition("b", RunState.INTERRUPTED, "stopped by the user")
        assert journal.state("b") is RunState.INTERRUPTED


def test_c33_a_changed_grid_keeps_what_is_done_and_marks_what_is_current(tmp_path: Path) -> None:
    grid = [make_spec(f"lr{i}", learning_rate=0.1 * (i + 1)) for i in range(4)]
    with Journal.create_or_open(tmp_path) as journal:
        journal.add_runs(grid)
        for spec in grid[:2]:
            journal.record_result(make_result(spec.run_id))
    with Journal.create_or_open(tmp_path) as journal:
        journal.add_runs([*grid[1:], make_spec("lr4", learning_rate=0.5)])
        todo = [run.run_id for run in journal.runs(current_only=True) if not run.finished]
        assert todo == ["lr2", "lr3", "lr4"]
        assert [run.run_id for run in journal.runs() if not run.current] == ["lr0"]
        assert journal.counts(current_only=True)[RunState.REACHED] == 1
        assert journal.counts()[RunState.REACHED] == 2


def test_a_finished_run_keeps_the_spec_it_ran_with(tmp_path: Path) -> None:
    with Journal.create_or_open(tmp_path) as journal:
        journal.add_runs([make_spec("a"), make_spec("b")])
        journal.record_result(make_result("a"))
        journal.add_runs([make_spec(name, layout=(4, 2, 2)) for name in ("a", "b")])
        assert [run.micro_batch_size for run in journal.runs()] == [8, 4]


def test_config_versions_are_kept_and_a_change_can_be_said(tmp_path: Path) -> None:
    with Journal.create_or_open(tmp_path) as journal:
        old = {"name": "t", "budget": {"max_examples": 100}}
        new = {"name": "t", "budget": {"max_examples": 200}}
        assert journal.record_config(old, {"code_revision": "abc"}) == 1
        assert journal.record_config(dict(old), {"code_revision": "abc"}) == 1
        assert journal.record_config(new, {"code_revision": "abc"}) == 2
        assert [v.config for v in journal.config_versions()] == [old, new]
        assert config_changes(old, new) == ["budget.max_examples: 100 -> 200"]


def test_c43_an_omegaconf_node_does_not_leak_into_the_journal(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    with Journal.create_or_open(tmp_path) as journal:
        with pytest.raises(TypeError, match="not JSON serializable"):
            journal.record_config({"grid": OmegaConf.create([1, 2])}, {})
        plain = OmegaConf.to_container(OmegaConf.create({"grid": [1, 2]}), resolve=True)
        assert isinstance(plain, dict)
        journal.record_config(plain, {})
        assert json.dumps(journal.config_versions()[0].config) == '{"grid": [1, 2]}'


def test_last_progress_is_the_newest_step_and_evaluation(tmp_path: Path) -> None:
    with started(tmp_path, "a", "b", "c") as journal:
        journal.append("a", 1, steps=[make_step(i, loss=1 / i) for i in range(1, 8)])
        journal.append("a", 1, evaluations=[make_eval(0, loss=9.0), make_eval(5, loss=0.5)])
        journal.append("b", 1, evaluations=[make_eval(0, loss=2.0)])
        progress = journal.last_progress()
        assert (progress["a"].optimizer_step, progress["a"].contributions) == (7, 112)
        assert progress["a"].loss == 1 / 7
        assert progress["a"].evaluation_metrics == {"eval_loss": 0.5}
        assert progress["a"].evaluation_optimizer_step == 5
        assert (progress["b"].optimizer_step, progress["b"].loss) == (0, None)
        assert "c" not in progress


def test_a_second_driver_is_refused_naming_the_first(tmp_path: Path) -> None:
    with started(tmp_path, "a"):
        code = (
            "import sys; from gasweep.results.journal import Journal\n"
            "from gasweep.errors import SweepDirectoryError\n"
            "try: Journal.create_or_open(sys.argv[1])\n"
            "except SweepDirectoryError as error: print(error)\n"
        )
        said = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout
        owner = holder(tmp_path)
        assert owner is not None
        assert f"is being written by pid {owner.pid} on {owner.host}" in said
    assert holder(tmp_path) is None
    Journal.create_or_open(tmp_path).close()


@pytest.mark.parametrize(("version", "age"), [(99, "newer"), (-1, "older")])
def test_another_schema_version_is_refused_in_one_line(tmp_path: Path, version: int, age: str) -> None:
    Journal.create_or_open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / JOURNAL_FILE)
    connection.execute(f"PRAGMA user_version={version}")
    connection.commit()
    connection.close()
    for opener in (Journal.create_or_open, JournalReader.open):
        with pytest.raises(SweepDirectoryError, match=f"schema version {version}, {age} than") as caught:
            opener(tmp_path)
        assert "\n" not in str(caught.value)
    assert holder(tmp_path) is None


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepDirectoryError, match="holds no sweep"):
        JournalReader.open(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("x")
    with pytest.raises(SweepDirectoryError, match=r"no sweep's \(e\.g\. thesis\.tex\)"):
        Journal.create_or_open(home)
    with pytest.raises(SweepDirectoryError, match="is a file"):
        Journal.create_or_open(home / "thesis.tex")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / JOURNAL_FILE).write_bytes(b"this is not SQLite" * 100)
    for opener in (Journal.create_or_open, JournalReader.open):
        with pytest.raises(SweepDirectoryError, match="file is not a database"):
            opener(damaged)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    other = sqlite3.connect(foreign / JOURNAL_FILE)
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    for opener in (Journal.create_or_open, JournalReader.open):
        with pytest.raises(SweepDirectoryError, match="is no gasweep journal"):
            opener(foreign)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ('UPDATE results SET result = \'{"state": "reac\'', lambda reader, run: reader.result(run)),
        ("UPDATE results SET result = '{}'", lambda reader, run: reader.results()),
        ("UPDATE runs SET spec = CAST(x'7bff22' AS TEXT)", lambda reader, run: reader.runs()),
        ("UPDATE runs SET state = CAST(x'72fe61' AS TEXT)", lambda reader, run: reader.state(run)),
    ],
)
def test_a_damaged_record_is_one_line(
    tmp_path: Path, change: str, read: Callable[[JournalReader, str], object]
) -> None:
    with started(tmp_path, "a") as journal:
        journal.record_result(make_result("a"))
    damaged = sqlite3.connect(tmp_path / JOURNAL_FILE)
    damaged.execute("PRAGMA ignore_check_constraints=ON")
    damaged.execute(change)
    damaged.commit()
    damaged.close()
    with (
        JournalReader.open(tmp_path) as reader,
        pytest.raises(SweepDirectoryError, match="is damaged: a record cannot be read") as caught,
    ):
        read(reader, "a")
    assert "\n" not in str(caught.value)


def test_a_sweep_has_one_id_for_life_and_another_sweep_another(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "a", "b"):
        with Journal.create_or_open(tmp_path / name) as journal:
            ids.add(journal.sweep_id)
    assert len(ids) == 2
    assert all(len(sweep_id) == 8 for sweep_id in ids)
