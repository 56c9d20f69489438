"""Reading a sweep's journal: typed queries, each short, so that a reader never holds up the driver."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gasweep.errors import SweepDirectoryError
from gasweep.results.codec import result_from_dict
from gasweep.results.database import open_reader, translated
from gasweep.results.directory import JOURNAL_FILE
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.results.schema import STEP_COLUMNS
from gasweep.results.states import RunState
from gasweep.results.stored import ConfigVersion, LastProgress, StoredAttempt, StoredRun, StoredTransition


class JournalReader:
    """A sweep's records, read while a driver may be writing.

    Every method sees what was durable when it was called. Raises SweepDirectoryError when the directory
    holds no journal, one of another version, or a damaged one; KeyError for a run id it does not know.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    @classmethod
    def open(cls, directory: Path | str) -> JournalReader:
        path = Path(directory) / JOURNAL_FILE
        return JournalReader(open_reader(path), path)

    def close(self) -> None:
        """Safe to call twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sweep_id(self) -> str:
        """Eight hex digits drawn when the sweep was created: tells it from others of the same name."""
        return str(self._query("SELECT sweep_id FROM sweep")[0][0])

    def runs(self, *, current_only: bool = False) -> list[StoredRun]:
        """All runs in the order they were added; `current_only` leaves out those the latest grid dropped."""
        rows = self._query(
            "SELECT run_id, spec, state, reason, config_version = (SELECT max(config_version) FROM runs),"
            " (SELECT count(*) FROM attempts WHERE attempts.run = runs.run), updated_at"
            " FROM runs ORDER BY run"
        )
        runs = [
            StoredRun(
                run_id=run_id,
                spec=self._loaded(spec),
                state=self._state(state),
                reason=reason,
                current=bool(current),
                num_attempts=num_attempts,
                updated_at=updated_at,
            )
            for run_id, spec, state, reason, current, num_attempts, updated_at in rows
        ]
        return [run for run in runs if run.current or not current_only]

    def knows(self, run_id: str) -> bool:
        """Whether a run of that id was ever added."""
        return bool(self._query("SELECT 1 FROM runs WHERE run_id = ?", run_id))

    def state(self, run_id: str) -> RunState:
        return self._state(self._query("SELECT state FROM runs WHERE run = ?", self._row(run_id))[0][0])

    def counts(self, *, current_only: bool = False) -> dict[RunState, int]:
        """How many runs are in each state; every state is a key."""
        only = " WHERE config_version = (SELECT max(config_version) FROM runs)" if current_only else ""
        found = dict(self._query(f"SELECT state, count(*) FROM runs{only} GROUP BY state"))
        return {state: found.get(state.value, 0) for state in RunState}

    def steps(self, run_id: str, *, after: int = 0) -> list[StepRecord]:
        """The run's optimizer steps beyond `after`, in order."""
        rows = self._query(
            f"SELECT {', '.join(STEP_COLUMNS)}, extra FROM steps"
            " WHERE run = ? AND optimizer_step > ? ORDER BY optimizer_step",
            self._row(run_id),
            after,
        )
        return [
            StepRecord(
                **dict(zip(STEP_COLUMNS, row, strict=False)), extra=self._loaded(row[-1]) if row[-1] else {}
            )
            for row in rows
        ]

    def evaluations(self, run_id: str, *, after: int = -1) -> list[EvalRecord]:
        """The run's evaluations beyond optimizer step `after`, in order."""
        rows = self._query(
            "SELECT optimizer_step, contributions, metrics FROM evaluations"
            " WHERE run = ? AND optimizer_step > ? ORDER BY optimizer_step",
            self._row(run_id),
            after,
        )
        return [
            EvalRecord(optimizer_step=step, contributions=contributions, metrics=self._loaded(metrics))
            for step, contributions, metrics in rows
        ]

    def result(self, run_id: str) -> RunResult | None:
        rows = self._query("SELECT result FROM results WHERE run = ?", self._row(run_id))
        return self._result(rows[0][0]) if rows else None

    def results(self) -> dict[str, RunResult]:
        """Every finished run's result, in the order the runs were added."""
        rows = self._query("SELECT run_id, result FROM results JOIN runs USING (run) ORDER BY run")
        return {run_id: self._result(text) for run_id, text in rows}

    def attempts(self, run_id: str | None = None) -> list[StoredAttempt]:
        """Attempts of one run, or of all, oldest first within a run."""
        fields = ("run_id", "number", "started_at", "ended_at", "cause", "message")
        return [
            StoredAttempt(**dict(zip(fields, row, strict=True)))
            for row in self._of_run("attempts", fields, run_id, order="run, number")
        ]

    def transitions(self, run_id: str | None = None) -> list[StoredTransition]:
        """Every change of state, of one run or of all, in the order they happened."""
        fields = ("run_id", "old_state", "new_state", "transitions.reason", "at")
        return [
            StoredTransition(
                run_id=row[0],
                old_state=self._state(row[1]),
                new_state=self._state(row[2]),
                reason=row[3],
                at=row[4],
            )
            for row in self._of_run("transitions", fields, run_id, order="id")
        ]

    def config_versions(self) -> list[ConfigVersion]:
        """The resolved configs the sweep was run under, oldest first."""
        rows = self._query(
            "SELECT version, recorded_at, config, environment FROM config_versions ORDER BY version"
        )
        return [
            ConfigVersion(
                version=version,
                recorded_at=recorded_at,
                config=self._loaded(config),
                environment=self._loaded(environment),
            )
            for version, recorded_at, config, environment in rows
        ]

    def last_progress(self) -> dict[str, LastProgress]:
        """The newest step and evaluation of every run that has any."""
        # A bare column beside max() is taken from the row that holds the maximum (SQLite documents this).
        steps = self._query(
            "SELECT run_id, max(optimizer_step), contributions, loss, examples_per_s, tokens_per_s"
            " FROM steps JOIN runs USING (run) GROUP BY run"
        )
        evaluations = {
            run_id: (step, contributions, self._loaded(metrics))
            for run_id, step, contributions, metrics in self._query(
                "SELECT run_id, max(optimizer_step), contributions, metrics"
                " FROM evaluations JOIN runs USING (run) GROUP BY run"
            )
        }
        progress: dict[str, LastProgress] = {}
        for run_id, step, contributions, loss, examples_per_s, tokens_per_s in steps:
            evaluation = evaluations.pop(run_id, None)
            progress[run_id] = LastProgress(
                optimizer_step=step,
                contributions=contributions,
                loss=loss,
                examples_per_s=examples_per_s,
                tokens_per_s=tokens_per_s,
                evaluation_metrics=None if evaluation is None else evaluation[2],
                evaluation_optimizer_step=None if evaluation is None else evaluation[0],
            )
        for run_id, (step, contributions, metrics) in evaluations.items():
            progress[run_id] = LastProgress(
                optimizer_step=step,
                contributions=contributions,
                loss=None,
                examples_per_s=None,
                tokens_per_s=None,
                evaluation_metrics=metrics,
                evaluation_optimizer_step=step,
            )
        return progress

    def _of_run(self, table: str, fields: tuple[str, ...], run_id: str | None, *, order: str) -> list[Any]:
        query = f"SELECT {', '.join(fields)} FROM {table} JOIN runs USING (run)"
        if run_id is None:
            return self._query(f"{query} ORDER BY {order}")
        return self._query(f"{query} WHERE run = ? ORDER BY {order}", self._row(run_id))

    def _row(self, run_id: str) -> int:
        rows = self._query("SELECT run FROM runs WHERE run_id = ?", run_id)
        if not rows:
            raise KeyError(f"run {run_id} is not in {self.path}")
        return int(rows[0][0])

    def _loaded(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._damage(error) from error

    def _result(self, text: str) -> RunResult:
        try:
            return result_from_dict(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise self._damage(error) from error

    def _state(self, text: str) -> RunState:
        try:
            return RunState(text)
        except ValueError as error:
            raise self._damage(error) from error

    def _damage(self, error: Exception) -> SweepDirectoryError:
        return SweepDirectoryError(
            f"{self.path} is damaged: a record cannot be read ({error}); bring the file back from a copy, or "
            "start the sweep in a new directory"
        )

    def _query(self, sql: str, *values: Any) -> list[Any]:
        with translated(self.path):
            return self._connection.execute(sql, values).fetchall()
