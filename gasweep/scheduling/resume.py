"""What a driver does with what it finds in the journal and in runs/ before it starts anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gasweep.config.load import config_to_dict
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import SweepConfig
from gasweep.errors import SourceError, SweepDirectoryError
from gasweep.results.directory import RESULT_FILE, run_directory
from gasweep.results.files import read_result
from gasweep.results.journal import Journal
from gasweep.results.records import RunResult
from gasweep.results.states import FINISHED, RunState
from gasweep.results.stored import StoredAttempt, config_changes
from gasweep.scheduling.provenance import provenance
from gasweep.scheduling.spool import recover_records, remove_spool

LOST_DRIVER = "its driver ended without a word"


class Resumption:
    """Brings the journal from where an earlier driver left it to where this one starts.

    After `run`, every run of the grid is finished, failed, infeasible or waiting. `notes` says what was
    found, in lines worth telling.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        directory: Path,
        infeasible_reason: Callable[[RunSpec], str | None],
        retry_failed: bool,
    ) -> None:
        self._journal = journal
        self._directory = directory
        self._infeasible_reason = infeasible_reason
        self._retry_failed = retry_failed
        self._counts: dict[str, int] = {}
        self._warnings: list[str] = []
        self._spools: list[tuple[Path, int]] = []

    def run(self, specs: Sequence[RunSpec]) -> dict[str, RunState]:
        """The state of every run, in one commit."""
        known = {run.run_id: run.state for run in self._journal.runs(current_only=True)}
        with self._journal.transaction():
            for spec in specs:
                self._settle(spec, known[spec.run_id])
        for folder, number in self._spools:
            remove_spool(folder, number)
        return {spec.run_id: self._journal.state(spec.run_id) for spec in specs}

    @property
    def notes(self) -> list[str]:
        texts = {
            "finished": "{} finished before and kept",
            "adopted": "{} whose result a worker had written before its driver ended",
            "interrupted": "{} interrupted before, going on from their checkpoints",
            "reopened": "{} censored before, going on because the budget has grown",
            "retried": "{} failed before, tried again",
            "failed": "{} failed before and kept as failed; --retry-failed tries them again",
        }
        lines = [text.format(_runs(self._counts[key])) for key, text in texts.items() if key in self._counts]
        return lines + self._warnings

    def _settle(self, spec: RunSpec, state: RunState) -> None:
        journal, run_id = self._journal, spec.run_id
        if state in FINISHED:
            self._keep_or_reopen(spec, state)
            return
        if state is RunState.RUNNING:
            self._recover(run_id)
        if self._adopt(spec, state):
            return
        if state is RunState.RUNNING:
            self._end_open_attempts(run_id)
            journal.transition(run_id, RunState.INTERRUPTED, LOST_DRIVER)
            state = RunState.INTERRUPTED
        if state is RunState.FAILED:
            if not self._retry_failed:
                self._count("failed")
                return
            self._count("retried")
        elif state is RunState.INTERRUPTED:
            self._count("interrupted")
        journal.transition(run_id, RunState.WAITING, "resumed")
        reason = self._infeasible_reason(spec)
        if reason is not None:
            journal.transition(run_id, RunState.INFEASIBLE, reason)

    def _keep_or_reopen(self, spec: RunSpec, state: RunState) -> None:
        if state is RunState.CENSORED:
            result = self._journal.result(spec.run_id)
            if result is not None and not budget_is_spent(spec, result):
                self._journal.reopen(spec.run_id, "the budget has grown")
                self._count("reopened")
                return
        self._count("finished")

    def _adopt(self, spec: RunSpec, state: RunState) -> bool:
        """Take over the result that a worker has written, if it is this run's and whole."""
        try:
            result = result_left(self._directory, spec)
        except SourceError as error:
            self._warnings.append(f"run {spec.run_id} runs again: {error}")
            return False
        if result is None:
            return False
        if state in (RunState.FAILED, RunState.INFEASIBLE):
            self._journal.transition(spec.run_id, RunState.WAITING, "a result was found")
        self._journal.record_result(result)
        self._count("adopted")
        return True

    def _recover(self, run_id: str) -> None:
        folder = run_directory(self._directory, run_id)
        for attempt in self._open_attempts(run_id):
            recover_records(self._journal, folder, run_id, attempt.number)
            self._spools.append((folder, attempt.number))

    def _end_open_attempts(self, run_id: str) -> None:
        for attempt in self._open_attempts(run_id):
            self._journal.end_attempt(run_id, attempt.number, "driver_lost", LOST_DRIVER)

    def _open_attempts(self, run_id: str) -> list[StoredAttempt]:
        return [attempt for attempt in self._journal.attempts(run_id) if attempt.ended_at is None]

    def _count(self, key: str) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1


def result_left(directory: Path, spec: RunSpec) -> RunResult | None:
    """The result that a worker has left for `spec`; None when there is none that still stands.

    Raises SourceError when the file is no whole result, or another run's.
    """
    path = run_directory(directory, spec.run_id) / RESULT_FILE
    result = read_result(path)
    if result is None:
        return None
    if result.run_id != spec.run_id or result.state not in FINISHED:
        raise SourceError(f"{path} is a result of run {result.run_id} in state {result.state}")
    if result.state is RunState.CENSORED and not budget_is_spent(spec, result):
        return None
    return result


def budget_is_spent(spec: RunSpec, result: RunResult) -> bool:
    """Whether a censored run would be censored under the budget of `spec` too."""
    budget = spec.config.budget
    over_examples = (
        budget.max_examples is not None
        and result.contributions + spec.effective_batch_size > budget.max_examples
    )
    over_steps = (
        budget.max_optimizer_steps is not None and result.optimizer_steps >= budget.max_optimizer_steps
    )
    return over_examples or over_steps


def refuse_other_sweep(journal: Journal, config: SweepConfig, directory: Path) -> None:
    """Raises SweepDirectoryError when `directory` holds a sweep of another name or task.

    A changed grid, budget or target is the same sweep going on; another name or task is a mistyped --dir.
    """
    versions = journal.config_versions()
    if not versions:
        return
    last = versions[-1].config
    for field, old, new in (
        ("name", last.get("name"), config.name),
        ("task._target_", last.get("task", {}).get("_target_"), config.task.get("_target_")),
    ):
        if old != new:
            raise SweepDirectoryError(
                f"directory={directory} holds the sweep {last.get('name')!r} with {field}={old!r}, not "
                f"{new!r}; give another directory with --dir"
            )


def record_provenance(journal: Journal, config: SweepConfig) -> list[str]:
    """Keep the config and the code it runs with; lines that say what has changed since the last time."""
    before = journal.config_versions()
    journal.record_config(config_to_dict(config), provenance(config))
    now = journal.config_versions()[-1]
    if not before or now.version == before[-1].version:
        return []
    lines = []
    for what, old, new in (
        ("config", before[-1].config, now.config),
        ("code", before[-1].environment, now.environment),
    ):
        if changes := config_changes(old, new):
            lines.append(f"the {what} has changed since this sweep last ran: {'; '.join(changes)}")
    return lines


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"
