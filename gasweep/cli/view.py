"""What a terminal shows of a sweep: one line of data per run, fed by the driver or by the journal."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gasweep.config.run_spec import RunSpec
from gasweep.results.reader import JournalReader
from gasweep.results.records import EvalRecord, RunResult, StepRecord
from gasweep.results.states import FINISHED, RunState
from gasweep.results.stored import StoredRun


@dataclass(kw_only=True)
class RunView:
    """One run. started_s: when its latest attempt began, on the clock of whoever fills this in."""

    run_id: str
    kind: str
    state: RunState
    effective_batch_size: int
    micro_batch_size: int
    world_size: int
    accumulation_steps: int
    learning_rate: float
    seed: int
    axes: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    num_attempts: int = 0
    optimizer_step: int | None = None
    loss: float | None = None
    evaluation: dict[str, float] | None = None
    seconds_per_optimizer_step: float | None = None
    max_optimizer_steps: int | None = None
    changed_s: float = 0.0
    syncs_every_micro_step: bool = False

    @property
    def state_word(self) -> str:
        """The state as people read it: a probe has no target to reach."""
        is_measured = self.kind == "probe" and self.state is RunState.REACHED
        return "measured" if is_measured else self.state.value

    @property
    def layout(self) -> str:
        return f"{self.micro_batch_size}x{self.world_size}x{self.accumulation_steps}"

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    def to_dict(self, *, eta_s: float | None) -> dict[str, Any]:
        """An entry of `status`'s JSON."""
        return {
            "run_id": self.run_id,
            "kind": self.kind,
            "state": self.state.value,
            "reason": self.reason,
            "effective_batch_size": self.effective_batch_size,
            "micro_batch_size": self.micro_batch_size,
            "world_size": self.world_size,
            "accumulation_steps": self.accumulation_steps,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "axes": self.axes,
            "num_attempts": self.num_attempts,
            "optimizer_step": self.optimizer_step,
            "loss": self.loss,
            "evaluation": self.evaluation,
            "eta_s": eta_s,
        }

    def take_progress(self, steps: Iterable[StepRecord], evaluations: Iterable[EvalRecord]) -> None:
        """New measurements of the running attempt."""
        for record in steps:
            self.optimizer_step = record.optimizer_step
            self.loss = record.loss
            if record.seconds is not None:
                old = self.seconds_per_optimizer_step
                self.seconds_per_optimizer_step = (
                    record.seconds if old is None else 0.9 * old + 0.1 * record.seconds
                )
        for evaluation in evaluations:
            self.evaluation = evaluation.metrics

    def take_result(self, result: RunResult) -> None:
        """How the run ended."""
        self.optimizer_step = result.optimizer_steps
        self.reason = result.reason
        if result.evaluations:
            self.evaluation = result.evaluations[-1].metrics
        if result.throughput is not None:
            self.seconds_per_optimizer_step = result.throughput.mean_seconds


@dataclass(kw_only=True)
class SweepView:
    """All runs of a sweep's current grid.

    num_workers: None when no driver says. is_driven: somebody runs it now.
    """

    name: str
    runs: dict[str, RunView]
    num_workers: int | None = None
    is_driven: bool = True
    driver: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Runs per state, every state a key."""
        states = [run.state for run in self.runs.values()]
        return {state.value: states.count(state) for state in RunState}

    @property
    def num_done(self) -> int:
        """Runs that need nothing more: finished, failed or infeasible."""
        open_states = (RunState.WAITING, RunState.RUNNING, RunState.INTERRUPTED)
        return sum(run.state not in open_states for run in self.runs.values())


def view_of_specs(name: str, specs: Iterable[RunSpec], states: dict[str, RunState]) -> SweepView:
    """A sweep at its driver's start."""
    runs = {}
    for spec in specs:
        runs[spec.run_id] = RunView(
            run_id=spec.run_id,
            kind=spec.kind,
            state=states[spec.run_id],
            effective_batch_size=spec.effective_batch_size,
            micro_batch_size=spec.layout.micro_batch_size,
            world_size=spec.layout.world_size,
            accumulation_steps=spec.layout.accumulation_steps,
            learning_rate=spec.learning_rate,
            seed=spec.seed,
            axes=spec.axes,
            max_optimizer_steps=_max_steps(spec.to_dict()),
            syncs_every_micro_step=spec.config.strategy_options.sync_every_micro_step,
        )
    return SweepView(name=name, runs=runs)


def view_of_journal(reader: JournalReader, *, name: str) -> SweepView:
    """A sweep as its journal has it now."""
    progress = reader.last_progress()
    results = reader.results()
    runs = {}
    for stored in reader.runs(current_only=True):
        view = runs[stored.run_id] = _view_of(stored)
        last = progress.get(stored.run_id)
        if last is not None:
            view.optimizer_step, view.loss = last.optimizer_step, last.loss
            view.evaluation = last.evaluation_metrics
            if last.examples_per_s:
                view.seconds_per_optimizer_step = stored.effective_batch_size / last.examples_per_s
        result = results.get(stored.run_id)
        if result is not None:
            view.take_result(result)
    return SweepView(name=name, runs=runs)


def _view_of(stored: StoredRun) -> RunView:
    return RunView(
        run_id=stored.run_id,
        kind=stored.kind,
        state=stored.state,
        effective_batch_size=stored.effective_batch_size,
        micro_batch_size=stored.micro_batch_size,
        world_size=stored.world_size,
        accumulation_steps=stored.accumulation_steps,
        learning_rate=stored.learning_rate,
        seed=stored.seed,
        axes=stored.axes,
        reason=stored.reason,
        num_attempts=stored.num_attempts,
        max_optimizer_steps=_max_steps(stored.spec),
        syncs_every_micro_step=stored.spec["config"]["strategy_options"]["sync_every_micro_step"],
        changed_s=stored.updated_at,
    )


def _max_steps(spec: dict[str, Any]) -> int | None:
    """The optimizer steps after which the run's budget ends it; a probe's fixed number."""
    config = spec["config"]
    if spec["kind"] == "probe":
        options = config["sweep"]
        return int(options["probe_optimizer_steps"] + options["probe_warmup_optimizer_steps"])
    budget = config["budget"]
    limits = [budget["max_optimizer_steps"]]
    if budget["max_examples"] is not None:
        limits.append(budget["max_examples"] // spec["effective_batch_size"])
    known = [int(limit) for limit in limits if limit is not None]
    return min(known) if known else None


def now_s() -> float:
    """Seconds since the epoch, as the journal counts."""
    return time.time()
