"""Killing the writer: what was acknowledged is there, what was not is there wholly or not at all."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gasweep.results import database
from gasweep.results.directory import JOURNAL_FILE
from gasweep.results.files import read_result
from gasweep.results.journal import Journal
from gasweep.results.lock import holder
from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState
from tests.results.examples import make_step, started

BATCH = 7

# Prints a line only after the write returned: what the parent read was acknowledged.
WRITER = f"""
import sys
from gasweep.results.journal import Journal
from gasweep.results.states import RunState
from tests.results.examples import make_eval, make_result, make_spec, make_step
journal = Journal.create_or_open(sys.argv[1])
first = len(journal.runs())
for index in range(first, first + 100000):
    run_id = f"r{{index}}"
    with journal.transaction():
        journal.add_runs([make_spec(run_id)])
        journal.transition(run_id, RunState.RUNNING)
        journal.start_attempt(run_id)
    print("run", run_id, flush=True)
    for start in range(0, 3 * {BATCH}, {BATCH}):
        steps = [make_step(start + i + 1) for i in range({BATCH})]
        journal.append(run_id, 1, steps=steps, evaluations=[make_eval(start + {BATCH})])
        print("steps", run_id, start + {BATCH}, flush=True)
    journal.record_result(make_result(run_id, optimizer_steps=3 * {BATCH}))
    print("result", run_id, flush=True)
"""


def spawn(code: str, *arguments: str) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )


def kill(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return said


@pytest.mark.fault
def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    moments = random.Random(0)
    acknowledged: list[list[str]] = []
    for _ in range(15):
        writer = spawn(WRITER, str(tmp_path))
        assert writer.stdout is not None
        seen = "".join(writer.stdout.readline() for _ in range(moments.randint(1, 20)))
        time.sleep(moments.uniform(0.0, 0.02))
        lines = (seen + kill(writer)).splitlines()
        acknowledged += [line.split() for line in lines]
        with Journal.create_or_open(tmp_path) as journal:
            _check(journal, acknowledged)
    assert sum(line[0] == "result" for line in acknowledged) > 15


def _check(journal: Journal, acknowledged: list[list[str]]) -> None:
    runs = {run.run_id: run for run in journal.runs()}
    for what, run_id, *rest in acknowledged:
        assert run_id in runs
        if what == "steps":
            assert len(journal.steps(run_id)) >= int(rest[0])
        if what == "result":
            assert runs[run_id].state is RunState.REACHED
            assert journal.result(run_id) is not None
    for run_id, run in runs.items():
        steps, evaluations = journal.steps(run_id), journal.evaluations(run_id)
        assert [s.optimizer_step for s in steps] == list(range(1, len(steps) + 1))
        assert len(steps) == BATCH * len(evaluations)
        assert (run.state is RunState.REACHED) == (journal.result(run_id) is not None)
        assert [attempt.number for attempt in journal.attempts(run_id)] == [1]


def leave_a_hot_journal(directory: Path) -> None:
    """Die in the middle of a commit: pages already in the database file, the rollback journal behind them."""
    code = """
import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
for pragma in ("journal_mode=TRUNCATE", "synchronous=FULL", "cache_size=1"):
    c.execute("PRAGMA " + pragma)
c.execute("BEGIN IMMEDIATE")
c.execute("UPDATE runs SET reason = 'torn'")
for i in range(2000):
    c.execute("INSERT INTO transitions (run, old_state, new_state, at) VALUES (1, 'x', 'y', ?)", (float(i),))
os._exit(9)
"""
    process = spawn(code, str(directory / JOURNAL_FILE))
    process.communicate()
    assert process.returncode == 9
    assert (directory / f"{JOURNAL_FILE}-journal").stat().st_size > 0


@pytest.mark.fault
def test_a_reader_rolls_a_crashed_commit_back(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(1)])
    leave_a_hot_journal(tmp_path)
    with JournalReader.open(tmp_path) as reader:
        assert [t.new_state for t in reader.transitions()] == [RunState.RUNNING]
        assert reader.runs()[0].reason is None
        assert reader.steps("a") == [make_step(1)]


@pytest.mark.fault
def test_a_reader_that_may_not_write_reads_a_rolled_back_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(1)])
    leave_a_hot_journal(tmp_path)

    def read_only(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(database, "_connect_query_only", read_only)
    with JournalReader.open(tmp_path) as reader:
        assert [t.new_state for t in reader.transitions()] == [RunState.RUNNING]
        assert reader.steps("a") == [make_step(1)]
    assert (tmp_path / f"{JOURNAL_FILE}-journal").stat().st_size > 0


@pytest.mark.fault
def test_a_dead_drivers_lock_is_taken_over_and_a_stopped_ones_is_not(tmp_path: Path) -> None:
    writer = spawn(WRITER, str(tmp_path))
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.send_signal(signal.SIGSTOP)
    owner = holder(tmp_path)
    assert owner is not None
    assert owner.pid == writer.pid
    kill(writer)
    Journal.create_or_open(tmp_path).close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    journal = Journal.create_or_open(tmp_path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    journal.close()
    try:
        assert holder(tmp_path) is None
        Journal.create_or_open(tmp_path).close()
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_readers_and_the_writer_do_not_hold_each_other_up(tmp_path: Path) -> None:
    journal = started(tmp_path, "a")
    stop, all_open = threading.Event(), threading.Barrier(3, timeout=60)
    waits: list[float] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            with JournalReader.open(tmp_path) as reader:
                all_open.wait()
                while not waits or not stop.is_set():
                    before = time.monotonic()
                    steps = reader.steps("a")
                    reader.last_progress()
                    waits.append(time.monotonic() - before)
                    assert len(steps) % 5 == 0
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    all_open.wait()
    for start in range(0, 200, 5):
        journal.append("a", 1, steps=[make_step(start + i + 1) for i in range(5)])
    stop.set()
    for thread in threads:
        thread.join()
    journal.close()
    assert errors == []
    assert waits


def test_a_disk_error_is_one_line_and_loses_nothing_durable(tmp_path: Path) -> None:
    from gasweep.errors import SweepDirectoryError

    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(1)])
        pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
        journal._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(SweepDirectoryError, match="database or disk is full; free the disk"):
            journal.append("a", 1, steps=[make_step(i) for i in range(2, 5000)])
        assert journal.steps("a") == [make_step(1)]
        journal._connection.execute("PRAGMA max_page_count=100000")
        journal.append("a", 1, steps=[make_step(2)])
        assert len(journal.steps("a")) == 2


@pytest.mark.fault
def test_a_killed_worker_leaves_a_whole_result_or_none(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from gasweep.results.files import write_result
from tests.results.examples import make_eval, make_result
for i in range(100000):
    result = make_result("a", evaluations=[make_eval(s) for s in range(i % 200)])
    write_result(Path(sys.argv[1]) / "result.json", result)
    print(i, flush=True)
"""
    moments = random.Random(1)
    for _ in range(5):
        worker = spawn(code, str(tmp_path))
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.1))
        kill(worker)
        result = read_result(tmp_path / "result.json")
        assert result is not None
        assert result.run_id == "a"
