"""The journal: everything a sweep knows, written by its driver alone, durable before it is acted upon."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gasweep.errors import SweepDirectoryError
from gasweep.results.codec import check_finite, to_json_dict
from gasweep.results.database import open_writer, translated
from gasweep.results.directory import JOURNAL_FILE, require_sweep_or_empty
from gasweep.results.lock import DirectoryLock
from gasweep.results.reader import JournalReader
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.results.schema import STEP_COLUMNS
from gasweep.results.states import FINISHED, RunState, check_transition


class Spec(Protocol):
    """What the journal needs of a RunSpec."""

    @property
    def run_id(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


class Journal(JournalReader):
    """The one writer of a sweep's journal. Used from the thread that opened it.

    Every method that writes is durable when it returns; `transaction()` groups several into one commit that
    happens wholly or not at all. Everything readable through JournalReader is readable here too.

    Retries: an attempt that resumes from a checkpoint runs some optimizer steps again. Its first record at
    step s discards what earlier attempts stored at or beyond s, so a run's records are always one
    trajectory: that of the newest attempt, continued from the checkpoint it started at. Records of an
    attempt older than the newest are ignored.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, lock: DirectoryLock, clock: Callable[[], float]
    ) -> None:
        super().__init__(connection, path)
        self._lock = lock
        self._clock = clock
        self._rows: dict[str, int] = {}

    @classmethod
    def create_or_open(cls, directory: Path | str, *, clock: Callable[[], float] = time.time) -> Journal:
        """Own the sweep in `directory`, new or old.

        Raises SweepDirectoryError when another process drives it (naming pid and host), when its journal is
        of another schema version, or when the directory holds files that are no sweep's.
        """
        folder = Path(directory)
        try:
            require_sweep_or_empty(folder)
            folder.mkdir(parents=True, exist_ok=True)
            lock = DirectoryLock(folder)
        except OSError as error:
            raise SweepDirectoryError(
                f"directory={folder} cannot be written ({error.strerror}); choose another with --dir"
            ) from error
        try:
            path = folder / JOURNAL_FILE
            return cls(open_writer(path), path, lock=lock, clock=clock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Close and give the directory up; safe to call twice."""
        super().close()
        self._lock.release()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Group writes: all durable at the end of the outermost `with`, none of them if it raises."""
        if self._in_transaction():
            yield
            return
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            self._rows.clear()
            # A failed COMMIT (disk full) may have ended the transaction already.
            if self._in_transaction():
                self._connection.execute("ROLLBACK")
            raise

    def record_config(self, resolved: Mapping[str, Any], environment: Mapping[str, Any]) -> int:
        """Keep the resolved config and the code revision and versions it runs with; returns its version.

        Identical to the latest: nothing is added. Raises TypeError for what is no plain data (an OmegaConf
        node), ValueError for NaN.
        """
        config, surroundings = _json(dict(resolved)), _json(dict(environment))
        with self.transaction():
            latest = self._query(
                "SELECT version, config, environment FROM config_versions ORDER BY version DESC LIMIT 1"
            )
            if latest and latest[0][1:] == (config, surroundings):
                return int(latest[0][0])
            version = int(latest[0][0]) + 1 if latest else 1
            self._execute(
                "INSERT INTO config_versions VALUES (?, ?, ?, ?)",
                version,
                self._clock(),
                config,
                surroundings,
            )
        return version

    def add_runs(self, specs: Sequence[Spec]) -> None:
        """The current grid: new runs start `waiting`; known ones keep their state and records.

        An unfinished run takes the spec given now (what is no part of its identity may have changed); a
        finished one keeps the spec it ran with. Runs not named here stop being `current`.
        """
        with self.transaction():
            generation = self._query("SELECT coalesce(max(config_version), 0) + 1 FROM runs")[0][0]
            for spec in specs:
                self._execute(
                    "INSERT INTO runs (run_id, config_version, spec, state, updated_at)"
                    " VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT (run_id) DO UPDATE SET config_version = excluded.config_version,"
                    " spec = CASE WHEN EXISTS (SELECT 1 FROM results WHERE results.run = runs.run)"
                    " THEN spec ELSE excluded.spec END",
                    spec.run_id,
                    generation,
                    _json(spec.to_dict()),
                    RunState.WAITING.value,
                    self._clock(),
                )

    def transition(self, run_id: str, state: RunState, reason: str | None = None) -> None:
        """Move a run to `state`; already there: nothing happens. Asserts the transition table."""
        with self.transaction():
            row = self._row(run_id)
            old = RunState(self._query("SELECT state FROM runs WHERE run = ?", row)[0][0])
            if old is state:
                return
            check_transition(old, state)
            now = self._clock()
            self._execute(
                "UPDATE runs SET state = ?, reason = ?, updated_at = ? WHERE run = ?",
                state.value,
                reason,
                now,
                row,
            )
            self._execute(
                "INSERT INTO transitions (run, old_state, new_state, reason, at) VALUES (?, ?, ?, ?, ?)",
                row,
                old.value,
                state.value,
                reason,
                now,
            )

    def start_attempt(self, run_id: str) -> int:
        """Open the run's next attempt and return its number, counted from 1 over the sweep's whole life."""
        with self.transaction():
            row = self._row(run_id)
            number = self._latest_attempt(row) + 1
            self._execute(
                "INSERT INTO attempts (run, number, started_at) VALUES (?, ?, ?)", row, number, self._clock()
            )
        return number

    def end_attempt(self, run_id: str, number: int, cause: str, message: str | None = None) -> None:
        """Say how an attempt ended ("finished", or the cause of a failure); the first word stands."""
        self._execute_durably(
            "UPDATE attempts SET ended_at = ?, cause = ?, message = ?"
            " WHERE run = ? AND number = ? AND ended_at IS NULL",
            self._clock(),
            cause,
            message,
            self._row(run_id),
            number,
        )

    def append(
        self,
        run_id: str,
        attempt: int,
        *,
        steps: Sequence[StepRecord] = (),
        evaluations: Sequence[EvalRecord] = (),
    ) -> None:
        """Store measurements in one commit; see the class for retried attempts. Asserts finite numbers."""
        records: list[StepRecord | EvalRecord] = [*steps, *evaluations]
        for record in records:
            check_finite(record)
        if not records:
            return
        with self.transaction():
            row = self._row(run_id)
            latest = self._latest_attempt(row)
            if attempt > latest:
                raise AssertionError(
                    f"attempt {attempt} of run {run_id} was never started (latest: {latest})"
                )
            if attempt < latest:
                return
            self._discard_replayed(row, attempt, steps, evaluations)
            self._store(row, attempt, steps, evaluations)

    def record_result(self, result: RunResult) -> bool:
        """Store how a run ended, its evaluations, its state and the end of its attempt, in one commit.

        Records beyond the result's last optimizer step (of an attempt that was lost) are dropped. False,
        and nothing done, when the run has a result already: the first one stands.
        """
        if result.state not in FINISHED:
            raise AssertionError(f"a result of run {result.run_id} cannot have state {result.state}")
        text = _json(to_json_dict(result))
        with self.transaction():
            row = self._row(result.run_id)
            if self._query("SELECT 1 FROM results WHERE run = ?", row):
                return False
            self._execute("INSERT INTO results VALUES (?, ?, ?)", row, self._clock(), text)
            self._store(row, self._latest_attempt(row), (), result.evaluations)
            for table in ("steps", "evaluations"):
                self._execute(
                    f"DELETE FROM {table} WHERE run = ? AND optimizer_step > ?", row, result.optimizer_steps
                )
            self._execute(
                "UPDATE attempts SET ended_at = ?, cause = 'finished' WHERE run = ? AND ended_at IS NULL",
                self._clock(),
                row,
            )
            self.transition(result.run_id, result.state, result.reason)
        return True

    def reopen(self, run_id: str, reason: str) -> None:
        """Let a censored run go on: its result is forgotten (its records stay), and it waits again."""
        with self.transaction():
            if self.state(run_id) is not RunState.CENSORED:
                raise AssertionError(f"run {run_id} is {self.state(run_id)}; only a censored run is reopened")
            self._execute("DELETE FROM results WHERE run = ?", self._row(run_id))
            self.transition(run_id, RunState.WAITING, reason)

    def _discard_replayed(
        self, row: int, attempt: int, steps: Sequence[StepRecord], evaluations: Sequence[EvalRecord]
    ) -> None:
        # An evaluation at s follows the step record s, so the first record alone says where each table ends.
        first_step = min((record.optimizer_step for record in steps), default=None)
        first_evaluation = min((record.optimizer_step for record in evaluations), default=None)
        step_cut = min(s for s in (first_step, _plus_one(first_evaluation)) if s is not None)
        evaluation_cut = min(s for s in (first_step, first_evaluation) if s is not None)
        for table, cut in (("steps", step_cut), ("evaluations", evaluation_cut)):
            self._execute(
                f"DELETE FROM {table} WHERE run = ? AND optimizer_step >= ? AND attempt < ?",
                row,
                cut,
                attempt,
            )

    def _store(
        self, row: int, attempt: int, steps: Sequence[StepRecord], evaluations: Sequence[EvalRecord]
    ) -> None:
        columns = ("run", "attempt", *STEP_COLUMNS, "extra")
        places = ", ".join("?" * len(columns))
        step_rows = [
            (
                row,
                attempt,
                *(getattr(record, name) for name in STEP_COLUMNS),
                _json(record.extra) if record.extra else None,
            )
            for record in steps
        ]
        evaluation_rows = [
            (row, attempt, record.optimizer_step, record.contributions, _json(record.metrics))
            for record in evaluations
        ]
        with translated(self.path):
            self._connection.executemany(
                f"INSERT OR REPLACE INTO steps ({', '.join(columns)}) VALUES ({places})", step_rows
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO evaluations (run, attempt, optimizer_step, contributions, metrics)"
                " VALUES (?, ?, ?, ?, ?)",
                evaluation_rows,
            )

    def _latest_attempt(self, row: int) -> int:
        return int(self._query("SELECT coalesce(max(number), 0) FROM attempts WHERE run = ?", row)[0][0])

    def _row(self, run_id: str) -> int:
        row = self._rows.get(run_id)
        if row is None:
            row = self._rows[run_id] = super()._row(run_id)
        return row

    def _in_transaction(self) -> bool:
        return self._connection.in_transaction

    def _execute(self, sql: str, *values: Any) -> None:
        with translated(self.path):
            self._connection.execute(sql, values)

    def _execute_durably(self, sql: str, *values: Any) -> None:
        with self.transaction():
            self._execute(sql, *values)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _plus_one(value: int | None) -> int | None:
    return None if value is None else value + 1
