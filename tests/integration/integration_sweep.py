"""`gasweep run` as a terminal starts it, watched through its journal and ended in rude ways."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gasweep.errors import SweepDirectoryError
from gasweep.results.reader import JournalReader
from gasweep.results.states import RunState

COMMAND = [sys.executable, "-c", "import sys; from gasweep.cli.main import main; sys.exit(main())"]

STARTED: list[subprocess.Popen[str]] = []


class Sweep:
    """`gasweep run` in a process group of its own, as a terminal starts it."""

    def __init__(self, config: Path, directory: Path) -> None:
        self.directory = directory
        self.started_at = time.time()
        self.process = self._started(config, directory)
        STARTED.append(self.process)

    @staticmethod
    def _started(config: Path, directory: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", str(config), "--dir", str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, condition: Callable[[JournalReader], Any], *, timeout_s: float = 240.0) -> Any:
        """Until the journal holds what `condition` finds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()[0]
            try:
                with JournalReader.open(self.directory) as journal:
                    found = condition(journal)
            except SweepDirectoryError:
                found = None  # not made yet
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"the journal never came to hold it; {self.end_with(signal.SIGKILL)}")

    def finish(self, *, timeout_s: float = 600.0) -> None:
        """Wait for the end of a sweep that must end well."""
        output, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, output

    def end_with(self, *signals: int) -> tuple[int, float, str]:
        """Send signals 0.5 s apart to the process group; (exit code, seconds it took, output)."""
        started = time.monotonic()
        for number in signals:
            os.killpg(self.process.pid, number)
            time.sleep(0.5)
        output, _ = self.process.communicate(timeout=60.0)
        return self.process.returncode, time.monotonic() - started, output

    def descendants(self) -> set[int]:
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with ignoring_the_gone():
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}


def ignoring_the_gone() -> contextlib.suppress:
    return contextlib.suppress(FileNotFoundError, ProcessLookupError)


def _alive(pids: set[int]) -> set[int]:
    living = set()
    for pid in pids:
        with ignoring_the_gone():
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                living.add(pid)
    return living


def assert_gone(pids: set[int], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while _alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = {pid: Path(f"/proc/{pid}/cmdline").read_text().strip("\0")[:99] for pid in _alive(pids)}
    assert left == {}


def mid_run(
    since: float, world_size: int | None = None, *, steps: tuple[int, int]
) -> Callable[[JournalReader], str | None]:
    """A running run that has taken a number of optimizer steps between the two given.

    since: when its driver was started, for a killed one leaves its runs `running`. world_size: of the run.
    """

    def find(journal: JournalReader) -> str | None:
        progress = journal.last_progress()
        for run in journal.runs():
            if run.state is not RunState.RUNNING or run.run_id not in progress:
                continue
            is_new = journal.attempts(run.run_id)[-1].started_at > since
            is_wanted = world_size in (None, run.world_size)
            if is_new and is_wanted and steps[0] < progress[run.run_id].optimizer_step < steps[1]:
                return run.run_id
        return None

    return find


def trajectories(directory: Path) -> dict[str, tuple[Any, ...]]:
    """By run id: every optimizer step's loss, every evaluation, the hash of the final parameters."""
    with JournalReader.open(directory) as journal:
        return {
            run_id: (
                [(step.optimizer_step, step.contributions, step.loss) for step in journal.steps(run_id)],
                result.evaluations,
                result.parameter_sha256,
            )
            for run_id, result in journal.results().items()
        }


def results(directory: Path) -> set[str]:
    """Ids of the runs that have a result."""
    with JournalReader.open(directory) as journal:
        return set(journal.results())
