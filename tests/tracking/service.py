"""A tracking service in memory that refuses what W&B refuses, and can be made to break or to hang."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FakeRun:
    service: FakeService
    run_id: str
    config: dict[str, Any]
    job_type: str
    last_step: int
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    succeeded: bool | None = None

    def log(self, row: dict[str, Any], *, optimizer_step: int) -> None:
        self.service.enter("log")
        assert self.summary is None, "logged after finish"
        newest = self.rows[-1][0] if self.rows else self.last_step
        assert optimizer_step >= newest, "steps may not go backwards"
        if self.rows and self.rows[-1][0] == optimizer_step:
            self.rows[-1][1].update(row)
        else:
            self.rows.append((optimizer_step, dict(row)))

    def finish(self, summary: dict[str, Any], *, succeeded: bool) -> None:
        self.service.enter("finish")
        self.summary, self.succeeded = summary, succeeded
        self.service.num_open -= 1


@dataclass
class FakeService:
    """fails_in: the method that raises, always. held: while set, every call waits."""

    fails_in: str | None = None
    held: threading.Event | None = None
    last_steps: dict[str, int] = field(default_factory=dict)
    runs: list[FakeRun] = field(default_factory=list)
    failures: int = 0
    num_open: int = 0
    most_open: int = 0
    summary: dict[str, Any] | None = None

    def enter(self, method: str) -> None:
        if self.held is not None:
            self.held.wait()
        if self.fails_in == method:
            self.failures += 1
            raise RuntimeError("the service is down\nsecond line")

    def open_run(self, *, run_id: str, name: str, job_type: str, config: dict[str, Any]) -> FakeRun:
        self.enter("open_run")
        run = FakeRun(
            service=self,
            run_id=run_id,
            config=config,
            job_type=job_type,
            last_step=self.last_steps.get(run_id, -1),
        )
        self.runs.append(run)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        return run

    def log_summary(
        self, summary: dict[str, Any], *, table: list[dict[str, Any]], images: list[Path]
    ) -> None:
        self.enter("log_summary")
        self.summary = summary

    def close(self) -> None:
        self.enter("close")
