"""Run or resume a sweep: everything around the driver's loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gasweep.config.load import config_to_yaml
from gasweep.config.plan import SweepPlan
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import ClusterConfig
from gasweep.errors import ConfigError, nearest
from gasweep.results.directory import SWEEP_FILE
from gasweep.results.files import write_text
from gasweep.results.journal import Journal
from gasweep.results.states import RunState
from gasweep.scheduling.backend import Backend
from gasweep.scheduling.driver import Driver
from gasweep.scheduling.interrupts import EXIT_CODE, Interrupts
from gasweep.scheduling.observer import Observer
from gasweep.scheduling.order import DEFAULT_ENTRY
from gasweep.scheduling.resume import Resumption, record_provenance, refuse_other_sweep
from gasweep.scheduling.study import Study
from gasweep.tracking.base import NoTracker, Tracker

BACKENDS = ("ray", "inline")


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """How a sweep's driver ended.

    exit_code: 0 every run has a result; 1 some failed or are infeasible; 2 all are infeasible; 130 stopped on
        request, with runs left to resume.
    plan: as executed on this cluster (layouts chosen, probe ids of its hardware).
    """

    exit_code: int
    states: dict[str, RunState]
    plan: SweepPlan
    directory: Path

    @property
    def counts(self) -> dict[str, int]:
        """Runs per state, every state a key."""
        return self.counts_of(self.states)

    def counts_of(self, run_ids: Iterable[str]) -> dict[str, int]:
        """These runs per state, every state a key."""
        values = [self.states[run_id] for run_id in run_ids]
        return {state.value: values.count(state) for state in RunState}


def run_sweep(
    plan: SweepPlan,
    *,
    directory: Path,
    tracker: Tracker | None = None,
    observer: Observer | None = None,
    retry_failed: bool = False,
    open_backend: Callable[[ClusterConfig], Backend] | None = None,
    interrupts: Interrupts | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> SweepOutcome:
    """Run what of `plan` has no result yet in `directory`; returns when all of it has ended, or was stopped.

    tracker: stays the caller's to summarize and close. interrupts: signals are caught while this runs.

    Raises SweepDirectoryError when the directory cannot be used (another driver has it: pid and host are
    named), ConfigError when the cluster cannot be had, RunError when its workers do not start. Whatever is
    raised, the directory can be resumed.
    """
    open_backend = open_backend or backend_for
    with (
        Journal.create_or_open(directory) as journal,
        interrupts or Interrupts() as caught,
    ):
        refuse_other_sweep(journal, plan.config, directory)
        write_text(directory / SWEEP_FILE, config_to_yaml(plan.config))
        backend = open_backend(plan.config.cluster)
        try:
            caught.install()  # Ray has put its own handlers there
            session = _Session(
                plan=plan,
                directory=directory,
                journal=journal,
                backend=backend,
                interrupts=caught,
                tracker=tracker or NoTracker(),
                observer=observer or Observer(),
            )
            return session.run(retry_failed=retry_failed, now_s=now_s)
        finally:
            backend.close()


def backend_for(config: ClusterConfig, *, entry: str = DEFAULT_ENTRY) -> Backend:
    """The backend that `cluster.backend` names."""
    if config.backend == "inline":
        from gasweep.scheduling.inline import InlineBackend

        return InlineBackend(num_threads=config.threads_per_worker, entry=entry)
    if config.backend == "ray":
        from gasweep.scheduling.ray_backend import open_ray_backend

        return open_ray_backend(config, entry=entry)
    raise ConfigError(f"cluster.backend='{config.backend}': {nearest(config.backend, BACKENDS)}")


@dataclass(kw_only=True)
class _Session:
    """One driver's time with a sweep."""

    plan: SweepPlan
    directory: Path
    journal: Journal
    backend: Backend
    interrupts: Interrupts
    tracker: Tracker
    observer: Observer

    def run(self, *, retry_failed: bool, now_s: Callable[[], float]) -> SweepOutcome:
        capacity = self.backend.capacity()
        plan = self.plan.for_cluster(max_workers=capacity.max_workers, device=capacity.device)
        specs = [*plan.probes, *plan.runs]
        states, notes = self._take_up(plan, specs, retry_failed=retry_failed)
        self.observer.sweep_started(specs, states=dict(states), capacity=capacity)
        for line in notes:
            self.observer.note(line)
        study = Study(runs=plan.runs, probes=plan.probes)
        for run_id, state in states.items():
            study.tell(run_id, state)
        self._announce_infeasible(specs, states)
        Driver(
            study=study,
            backend=self.backend,
            journal=self.journal,
            directory=self.directory,
            tracker=self.tracker,
            observer=self.observer,
            interrupts=self.interrupts,
            states=states,
            specs={spec.run_id: spec for spec in specs},
            max_retries=plan.config.sweep.max_retries,
            now_s=now_s,
        ).run()
        code = exit_code(states, stopped=self.interrupts.asked)
        return SweepOutcome(exit_code=code, states=states, plan=plan, directory=self.directory)

    def _take_up(
        self, plan: SweepPlan, specs: list[RunSpec], *, retry_failed: bool
    ) -> tuple[dict[str, RunState], list[str]]:
        changes = record_provenance(self.journal, plan.config)
        self.journal.add_runs(specs)
        resumption = Resumption(
            self.journal,
            directory=self.directory,
            infeasible_reason=self.backend.infeasible_reason,
            retry_failed=retry_failed,
        )
        states = resumption.run(specs)
        return states, [*changes, *resumption.notes]

    def _announce_infeasible(self, specs: list[RunSpec], states: dict[str, RunState]) -> None:
        for spec in specs:
            if states[spec.run_id] is RunState.INFEASIBLE:
                reason = self.backend.infeasible_reason(spec)
                self.observer.run_changed(spec, RunState.INFEASIBLE, reason=reason, attempt=0)


def exit_code(states: dict[str, RunState], *, stopped: bool) -> int:
    """What the process returns; see SweepOutcome."""
    found = set(states.values())
    unfinished = found & {RunState.WAITING, RunState.RUNNING, RunState.INTERRUPTED}
    if stopped and unfinished:
        return EXIT_CODE
    if found == {RunState.INFEASIBLE}:
        return 2
    return 1 if found & {RunState.FAILED, RunState.INFEASIBLE} else 0
