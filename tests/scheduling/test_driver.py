"""The driver over the simulated cluster: what it journals, retries, adopts, refuses and returns."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_fakes import make_result, step_record
from scheduling_play import play
from scheduling_specs import make_config, make_plan, make_spec

from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import BudgetConfig
from gasweep.errors import SweepDirectoryError, WorkerLostError
from gasweep.results.directory import RESULT_FILE, run_directory
from gasweep.results.files import write_result
from gasweep.results.journal import Journal
from gasweep.results.reader import JournalReader
from gasweep.results.states import FINISHED, RunState
from gasweep.scheduling.backend import Cause
from gasweep.scheduling.interrupts import Interrupts
from gasweep.scheduling.leased import LeaseOptions
from gasweep.scheduling.observer import Observer
from gasweep.scheduling.simulated import Script, SimulatedCluster, simulated_backend
from gasweep.scheduling.spool import Spool, spool_path
from gasweep.scheduling.sweep import SweepOutcome, exit_code, run_sweep


class Recorder(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, RunState]] = []
        self.notes: list[str] = []
        self.failed: list[Any] = []

    def run_changed(self, spec: RunSpec, state: RunState, *, reason: str | None, attempt: int) -> None:
        self.changes.append((spec.run_id, state))

    def attempt_failed(self, spec: RunSpec, failed: Any, *, retried: bool) -> None:
        self.failed.append((failed.run_id, failed.cause, retried))

    def note(self, text: str) -> None:
        self.notes.append(text)


def sweep(
    directory: Path,
    specs: list[RunSpec],
    *,
    cluster: SimulatedCluster | None = None,
    play_as: Any = play,
    options: LeaseOptions | None = None,
    num_workers: int = 4,
    **arguments: Any,
) -> SweepOutcome:
    cluster = cluster or SimulatedCluster(play_as, workers_per_node=num_workers)
    return run_sweep(
        make_plan(specs),
        directory=directory,
        open_backend=lambda config: simulated_backend(cluster, options),
        now_s=cluster.now_s,
        **arguments,
    )


def read(directory: Path) -> JournalReader:
    return JournalReader.open(directory)


def test_all_runs_end_and_their_records_are_kept(tmp_path: Path) -> None:
    specs = [make_spec(f"r{i}", world_size=1 + i % 2, steps=4) for i in range(9)]
    outcome = sweep(tmp_path, specs)
    assert outcome.exit_code == 0
    assert outcome.counts["reached"] == 9
    with read(tmp_path) as journal:
        for spec in specs:
            assert journal.state(spec.run_id) is RunState.REACHED
            assert [step.optimizer_step for step in journal.steps(spec.run_id)] == [1, 2, 3, 4]
            assert journal.result(spec.run_id) == make_result(spec, steps=4)
            assert [attempt.cause for attempt in journal.attempts(spec.run_id)] == ["finished"]
    assert (tmp_path / "sweep.yaml").exists()


def test_a_second_run_repeats_nothing_and_an_added_point_alone_runs(tmp_path: Path) -> None:
    """C33: re-running runs exactly what is missing."""
    first = [make_spec("a"), make_spec("b")]
    sweep(tmp_path, first)
    played: list[str] = []

    def watch(spec: RunSpec, attempt: int) -> Script:
        played.append(spec.run_id)
        return play(spec, attempt)

    assert sweep(tmp_path, first, play_as=watch).exit_code == 0
    assert played == []
    sweep(tmp_path, [*first, make_spec("c")], play_as=watch)
    assert played == ["c"]


def test_c33_failed_runs_are_retried_only_when_asked_with_attempts_counted_on(tmp_path: Path) -> None:
    specs = [make_spec("good"), make_spec("bad", behaviour="raise", attempts=1)]
    recorder = Recorder()
    assert sweep(tmp_path, specs, observer=recorder).exit_code == 1
    assert recorder.failed == [("bad", Cause.PYTHON_ERROR, False)]
    recorder = Recorder()
    assert sweep(tmp_path, specs, observer=recorder).exit_code == 1
    assert recorder.failed == []
    assert any("--retry-failed" in note for note in recorder.notes)
    assert sweep(tmp_path, specs, retry_failed=True).exit_code == 0
    with read(tmp_path) as journal:
        assert [attempt.number for attempt in journal.attempts("bad")] == [1, 2]


def test_c13_what_the_cluster_can_never_hold_is_infeasible_at_once_and_the_rest_runs(tmp_path: Path) -> None:
    recorder = Recorder()
    outcome = sweep(tmp_path, [make_spec("huge", world_size=8), make_spec("small")], observer=recorder)
    assert outcome.exit_code == 1
    assert recorder.changes[0] == ("huge", RunState.INFEASIBLE)
    assert outcome.states["small"] is RunState.REACHED
    with read(tmp_path) as journal:
        (run,) = [run for run in journal.runs() if run.run_id == "huge"]
    assert run.reason is not None
    assert run.reason.startswith("world_size=8 needs 8 workers, but the cluster has room for 4")


def test_all_infeasible_is_the_users_to_mend(tmp_path: Path) -> None:
    assert sweep(tmp_path, [make_spec("huge", world_size=8)]).exit_code == 2


def test_an_infeasible_run_runs_once_the_cluster_is_larger(tmp_path: Path) -> None:
    specs = [make_spec("large", world_size=8)]
    assert sweep(tmp_path, specs).exit_code == 2
    assert sweep(tmp_path, specs, num_workers=8).exit_code == 0


def test_what_an_autoscaler_can_add_counts_as_room(tmp_path: Path) -> None:
    cluster = SimulatedCluster(play, num_nodes=1, workers_per_node=4, maximum_nodes=2, shared=True)
    outcome = sweep(tmp_path, [make_spec("large", world_size=8), make_spec("small")], cluster=cluster)
    assert outcome.exit_code == 0
    assert cluster.slots().total == 8


def test_c36_one_runs_failure_leaves_the_others_alone(tmp_path: Path) -> None:
    specs = [
        make_spec("ok1"),
        make_spec("oom", behaviour="oom"),
        make_spec("exit", behaviour="exit"),
        make_spec("ok2"),
    ]
    outcome = sweep(tmp_path, specs, num_workers=1)
    assert outcome.exit_code == 1
    assert outcome.counts["reached"] == outcome.counts["failed"] == 2
    with read(tmp_path) as journal:
        causes = {run_id: [a.cause for a in journal.attempts(run_id)] for run_id in ("oom", "exit")}
        reasons = {run.run_id: run.reason or "" for run in journal.runs()}
    assert causes == {"oom": ["oom", "oom"], "exit": ["process_death", "process_death"]}
    assert "log.txt" in reasons["exit"]


def test_a_lost_worker_is_retried_and_a_users_bug_is_not(tmp_path: Path) -> None:
    specs = [
        make_spec("lost", behaviour="kill", attempts=1, world_size=2, rank=1),
        make_spec("hung", behaviour="hang", attempts=1),
        make_spec("buggy", behaviour="raise"),
    ]
    recorder = Recorder()
    outcome = sweep(tmp_path, specs, observer=recorder)
    assert outcome.states["lost"] is outcome.states["hung"] is RunState.REACHED
    assert outcome.states["buggy"] is RunState.FAILED
    assert sorted(recorder.failed) == [
        ("buggy", Cause.PYTHON_ERROR, False),
        ("hung", Cause.TIMEOUT, True),
        ("lost", Cause.PROCESS_DEATH, True),
    ]


def test_an_oom_on_a_fresh_worker_is_final_and_on_a_used_one_is_tried_again(tmp_path: Path) -> None:
    assert sweep(tmp_path / "fresh", [make_spec("oom", behaviour="oom")]).counts["failed"] == 1
    with read(tmp_path / "fresh") as journal:
        assert len(journal.attempts("oom")) == 1
    specs = [make_spec("before"), make_spec("oom", behaviour="oom", attempts=1, seed=1)]
    assert sweep(tmp_path / "used", specs, num_workers=1).exit_code == 0


def test_a_probe_is_never_timed_beside_other_work_where_workers_share_a_machine(tmp_path: Path) -> None:
    specs = [make_spec(f"p{i}", kind="probe", micro_batch_size=i + 1) for i in range(3)]
    specs += [make_spec(f"r{i}") for i in range(5)]
    cluster = SimulatedCluster(play, workers_per_node=4, isolated_workers=False)
    outcome = sweep(tmp_path, specs, cluster=cluster)
    assert len(outcome.plan.probes) == 3
    with read(tmp_path) as journal:
        for spec in outcome.plan.probes:
            result = journal.result(spec.run_id)
            assert result is not None
            assert result.extra["timed_beside_attempts"] == 0


def test_a_result_that_a_worker_left_is_adopted_not_repeated(tmp_path: Path) -> None:
    spec = make_spec("left")
    with Journal.create_or_open(tmp_path) as journal:
        journal.add_runs([spec])
        journal.start_attempt("left")
        journal.transition("left", RunState.RUNNING)
    write_result(run_directory(tmp_path, "left") / RESULT_FILE, make_result(spec, steps=3))
    recorder = Recorder()
    outcome = sweep(tmp_path, [spec], observer=recorder, play_as=lambda spec, attempt: 1 / 0)
    assert outcome.exit_code == 0
    assert any("whose result a worker had written" in note for note in recorder.notes)
    with read(tmp_path) as journal:
        assert journal.result("left") == make_result(spec, steps=3)
        assert len(journal.attempts("left")) == 1


@pytest.mark.parametrize("damage", ["torn", "another run's"])
def test_a_file_that_is_no_result_of_the_run_is_told_and_the_run_runs_again(
    tmp_path: Path, damage: str
) -> None:
    spec = make_spec("left")
    path = run_directory(tmp_path, "left") / RESULT_FILE
    write_result(path, make_result(make_spec("other")))
    if damage == "torn":
        path.write_text(path.read_text()[:50])
    recorder = Recorder()
    assert sweep(tmp_path, [spec], observer=recorder).exit_code == 0
    assert any("run left runs again" in note for note in recorder.notes)


def test_records_that_only_the_workers_disk_holds_are_recovered(tmp_path: Path) -> None:
    """Steps up to a checkpoint that the driver had not heard of are not repeated, and must not be lost."""
    spec = make_spec("run", steps=8)
    with Journal.create_or_open(tmp_path) as journal:
        journal.add_runs([spec])
        journal.start_attempt("run")
        journal.transition("run", RunState.RUNNING)
        journal.append("run", 1, steps=[step_record(1)])
    folder = run_directory(tmp_path, "run")
    spool = Spool(folder, 1)
    spool.put(steps=[step_record(1), step_record(2)], evaluations=[])
    spool.put(steps=[step_record(3)], evaluations=make_result(spec, steps=3).evaluations)
    spool.close()
    with spool_path(folder, 1).open("a") as file:
        file.write('{"steps": [{"optimizer_st')

    def go_on(spec: RunSpec, attempt: int) -> Script:
        records = [step_record(step) for step in range(4, 9)]
        return Script(duration_s=1.0, result=make_result(spec, steps=8), steps=records)

    assert sweep(tmp_path, [spec], play_as=go_on).exit_code == 0
    with read(tmp_path) as journal:
        assert [record.optimizer_step for record in journal.steps("run")] == list(range(1, 9))
        assert [record.optimizer_step for record in journal.evaluations("run")] == [3, 8]
    assert not spool_path(folder, 1).exists()


def censored(spec: RunSpec, attempt: int) -> Script:
    """Ends where its budget does."""
    steps = spec.config.budget.max_optimizer_steps or 100
    result = dataclasses.replace(make_result(spec, steps=steps), state=RunState.CENSORED, reason="budget")
    return Script(duration_s=steps / 100, result=result)


def with_budget(steps: int) -> RunSpec:
    config = dataclasses.replace(make_config(), budget=BudgetConfig(max_optimizer_steps=steps))
    return make_spec("run", config=config)


def test_a_larger_budget_reopens_a_censored_run_and_an_equal_one_does_not(tmp_path: Path) -> None:
    for steps, attempts in ((10, 1), (10, 1), (30, 2), (20, 2)):
        assert sweep(tmp_path, [with_budget(steps)], play_as=censored).counts["censored"] == 1
        with read(tmp_path) as journal:
            assert len(journal.attempts("run")) == attempts
    with read(tmp_path) as journal:
        result = journal.result("run")
        assert result is not None
        assert result.optimizer_steps == 30


def test_a_stale_result_file_of_a_reopened_run_is_not_adopted(tmp_path: Path) -> None:
    script = censored(with_budget(10), 1)
    assert script.result is not None
    write_result(run_directory(tmp_path, "run") / RESULT_FILE, script.result)
    sweep(tmp_path, [with_budget(30)], play_as=censored)
    with read(tmp_path) as journal:
        result = journal.result("run")
        assert result is not None
        assert result.optimizer_steps == 30


class Stopper(Recorder):
    """Asks for a stop once so many runs have ended, and again after so many idle calls."""

    def __init__(self, interrupts: Interrupts, *, after: int, again: int | None = None) -> None:
        super().__init__()
        self.interrupts = interrupts
        self._after = after
        self._again = again

    def idle(self) -> None:
        ended = sum(state in FINISHED for _, state in self.changes)
        if ended >= self._after and not self.interrupts.asked:
            self.interrupts.ask()
        elif self.interrupts.asked and self._again is not None:
            self._again -= 1
            if self._again == 0:
                self.interrupts._count = 2  # what a second signal does, without its last resort


def test_c70_a_stop_starts_nothing_new_and_leaves_every_run_resumable(tmp_path: Path) -> None:
    specs = [make_spec(f"r{i}", steps=10, seconds=1.0, seed=i) for i in range(12)]
    interrupts = Interrupts()
    stopper = Stopper(interrupts, after=4)
    outcome = sweep(tmp_path, specs, observer=stopper, interrupts=interrupts)
    assert outcome.exit_code == 130
    started = {run_id for run_id, state in stopper.changes if state is RunState.RUNNING}
    assert 4 < len(started) <= 8
    assert set(outcome.states.values()) == {RunState.REACHED, RunState.INTERRUPTED, RunState.WAITING}
    assert sweep(tmp_path, specs).exit_code == 0
    with read(tmp_path) as journal:
        finishes = [a.run_id for a in journal.attempts() if a.cause == "finished"]
    assert sorted(finishes) == sorted(spec.run_id for spec in specs)


def deaf(spec: RunSpec, attempt: int) -> Script:
    return Script(duration_s=1e5, result=make_result(spec), deaf=True)


@pytest.mark.parametrize("again", [None, 2])
def test_c70_a_stop_is_over_within_its_bound_and_a_second_one_at_once(
    tmp_path: Path, again: int | None
) -> None:
    cluster = SimulatedCluster(deaf, workers_per_node=2, start_s=1.0)
    interrupts = Interrupts()
    stopper = Stopper(interrupts, after=0, again=again)
    options = LeaseOptions(attempt_timeout_s=1e6)
    outcome = sweep(
        tmp_path,
        [make_spec("a", world_size=2)],
        cluster=cluster,
        observer=stopper,
        interrupts=interrupts,
        options=options,
    )
    assert outcome.exit_code == 130
    assert cluster.now_s() < (2.0 if again else 12.0)
    assert cluster.workers() == []


def test_a_stop_before_the_first_run_starts_nothing(tmp_path: Path) -> None:
    interrupts = Interrupts()
    interrupts.ask()
    recorder = Recorder()
    outcome = sweep(tmp_path, [make_spec("a")], observer=recorder, interrupts=interrupts)
    assert outcome.exit_code == 130
    assert recorder.changes == []


def test_a_stop_after_everything_has_ended_is_no_stop() -> None:
    assert exit_code({"a": RunState.REACHED}, stopped=True) == 0
    assert exit_code({"a": RunState.FAILED, "b": RunState.REACHED}, stopped=True) == 1
    assert exit_code({"a": RunState.WAITING, "b": RunState.FAILED}, stopped=True) == 130
    assert exit_code({}, stopped=False) == 0


def test_one_driver_per_directory(tmp_path: Path) -> None:
    with (
        Journal.create_or_open(tmp_path),
        pytest.raises(SweepDirectoryError, match=r"is being written by pid \d+ on "),
    ):
        sweep(tmp_path, [make_spec("a")])


def test_a_node_that_dies_takes_its_attempts_with_it_and_they_run_elsewhere(tmp_path: Path) -> None:
    cluster = SimulatedCluster(play, num_nodes=2, workers_per_node=2)

    class NodeKiller(Recorder):
        def run_finished(self, spec: RunSpec, result: Any) -> None:
            if spec.run_id == "r0":
                cluster.lose_node(0)

    specs = [make_spec(f"r{i}", steps=10 + 5 * i, seconds=1.0, seed=i) for i in range(8)]
    outcome = sweep(tmp_path, specs, cluster=cluster, observer=NodeKiller())
    assert outcome.exit_code == 0
    with read(tmp_path) as journal:
        causes = Counter(attempt.cause for attempt in journal.attempts())
    assert causes["finished"] == 8
    assert causes["node_death"] >= 1


def test_runs_that_a_shrunken_cluster_cannot_hold_become_infeasible(tmp_path: Path) -> None:
    cluster = SimulatedCluster(play, num_nodes=2, workers_per_node=2)

    class NodeKiller(Recorder):
        def run_finished(self, spec: RunSpec, result: Any) -> None:
            cluster.lose_node(0)

    specs = [make_spec("small"), make_spec("large", world_size=4, seed=1)]
    outcome = sweep(tmp_path, specs, cluster=cluster, observer=NodeKiller(), play_as=play)
    assert outcome.states["large"] is RunState.INFEASIBLE
    assert outcome.exit_code == 1


def test_workers_that_never_start_end_the_sweep_with_the_reason(tmp_path: Path) -> None:
    cluster = SimulatedCluster(play, workers_per_node=1, start_s=1e9)
    with pytest.raises(WorkerLostError, match="workers do not start"):
        sweep(tmp_path, [make_spec("a")], cluster=cluster)
    with read(tmp_path) as journal:
        assert journal.state("a") is RunState.WAITING


def test_an_observer_that_breaks_leaves_no_run_running(tmp_path: Path) -> None:
    class Broken(Observer):
        def run_progress(self, spec: RunSpec, **arguments: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sweep(tmp_path, [make_spec("a"), make_spec("b")], observer=Broken())
    with read(tmp_path) as journal:
        assert {run.state for run in journal.runs()} <= {RunState.INTERRUPTED, RunState.WAITING}
    assert sweep(tmp_path, [make_spec("a"), make_spec("b")]).exit_code == 0


def test_a_changed_config_is_said(tmp_path: Path) -> None:
    sweep(tmp_path, [make_spec("a")])
    recorder = Recorder()
    config = make_config(attempt_timeout_s=33.0)
    sweep(tmp_path, [make_spec("a", config=config)], observer=recorder)
    assert any("cluster.attempt_timeout_s: 120.0 -> 33.0" in note for note in recorder.notes)


def test_a_directory_of_another_sweep_is_refused_untouched(tmp_path: Path) -> None:
    sweep(tmp_path, [make_spec("a")])
    before = (tmp_path / "sweep.yaml").read_text()
    other = dataclasses.replace(make_config(), name="other")
    with pytest.raises(SweepDirectoryError, match="with name='sweep', not 'other'"):
        sweep(tmp_path, [make_spec("b", config=other)])
    assert (tmp_path / "sweep.yaml").read_text() == before


def test_idle_workers_of_a_shared_cluster_are_given_back(tmp_path: Path) -> None:
    cluster = SimulatedCluster(play, num_nodes=4, workers_per_node=2, shared=True)
    held: list[int] = []

    class Meter(Recorder):
        def idle(self) -> None:
            held.append(len(cluster.workers()))

    short = [make_spec(f"s{i}") for i in range(8)]
    long = make_spec("long", steps=10, seconds=50.0, seed=1)
    sweep(tmp_path, [*short, long], cluster=cluster, observer=Meter(), options=LeaseOptions(lease_idle_s=60))
    assert max(held) == 8
    assert held[-1] <= 2


@pytest.mark.parametrize("num_workers", [3, 16])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_every_run_ends_once_whatever_fails(tmp_path_factory: Any, num_workers: int, seed: int) -> None:
    rng = random.Random(seed)
    specs = [
        make_spec(
            f"r{i}",
            kind="probe" if rng.random() < 0.1 else "convergence",
            micro_batch_size=i + 1,
            world_size=rng.choice([1, 1, 2, 3, 5]),
            behaviour=rng.choice(["ok", "ok", "ok", "kill", "raise", "oom", "hang", "refuse"]),
            attempts=rng.choice([1, 1, 2, 10**6]),
            steps=rng.randint(1, 30),
            seconds=rng.choice([0.01, 0.3, 2.0]),
            seed=i,
        )
        for i in range(30)
    ]
    directory = tmp_path_factory.mktemp("sweep")
    cluster = SimulatedCluster(play, workers_per_node=num_workers, isolated_workers=rng.random() < 0.5)
    outcome = sweep(directory, specs, cluster=cluster, options=LeaseOptions(fresh=rng.random() < 0.3))
    final = FINISHED | {RunState.FAILED, RunState.INFEASIBLE}
    assert set(outcome.states.values()) <= final
    with read(directory) as journal:
        for spec in [*outcome.plan.probes, *outcome.plan.runs]:
            causes = [attempt.cause for attempt in journal.attempts(spec.run_id)]
            assert None not in causes
            assert causes.count("finished") == (outcome.states[spec.run_id] in FINISHED)
            assert ("finished" not in causes) or causes[-1] == "finished"
            infeasible = spec.layout.world_size > num_workers
            assert (outcome.states[spec.run_id] is RunState.INFEASIBLE) == infeasible == (not causes)
            if outcome.states[spec.run_id] in FINISHED:
                steps = [step.optimizer_step for step in journal.steps(spec.run_id)]
                assert steps == list(range(1, spec.config.task["steps"] + 1))
    assert cluster.workers() == []


def test_a_killed_driver_at_any_moment_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The journal as it is after every single event is a point where a driver may have died."""

    class Dead(BaseException):
        pass

    class Mortal(Observer):
        def __init__(self, lives: int) -> None:
            self.lives = lives

        def idle(self) -> None:
            self.lives -= 1
            if self.lives == 0:
                raise Dead

    rng = random.Random(0)
    specs = [make_spec(f"r{i}", world_size=1 + i % 3, steps=5, seconds=1.0, seed=i) for i in range(20)]
    finished_before: set[str] = set()
    for _ in range(200):
        try:
            outcome = sweep(tmp_path, specs, observer=Mortal(rng.randint(25, 60)))
        except Dead:
            with read(tmp_path) as journal:
                finished = set(journal.results())
            assert finished_before <= finished
            finished_before = finished
        else:
            break
    assert outcome.exit_code == 0
    with read(tmp_path) as journal:
        counts = Counter(a.run_id for a in journal.attempts() if a.cause == "finished")
    assert counts == dict.fromkeys((spec.run_id for spec in specs), 1)


def test_who_waits_for_others_to_free_the_cluster_is_told_so(tmp_path: Path) -> None:
    cluster = SimulatedCluster(play, workers_per_node=4, shared=True)
    cluster.nodes.take(3)

    class Neighbour(Recorder):
        def note(self, text: str) -> None:
            super().note(text)
            if "others may hold them" in text:
                cluster.nodes.take(0)

    neighbour = Neighbour()
    outcome = sweep(tmp_path, [make_spec("pair", world_size=2)], cluster=cluster, observer=neighbour)
    assert outcome.exit_code == 0
    assert any("the first needs 2 workers, 1 are ready" in note for note in neighbour.notes)


def test_hundreds_of_runs_on_hundreds_of_workers(tmp_path: Path) -> None:
    rng = random.Random(1)
    specs = [
        make_spec(
            f"r{i}",
            world_size=rng.choice([1] * 12 + [8] * 6 + [64, 256]),
            steps=2,
            seconds=rng.uniform(1, 20),
            seed=i % 3,
        )
        for i in range(400)
    ]
    cluster = SimulatedCluster(play, num_nodes=64, workers_per_node=8)
    outcome = sweep(tmp_path, specs, cluster=cluster)
    assert outcome.counts["reached"] == 400
    work = sum(spec.layout.world_size * 2 * spec.config.task["seconds"] for spec in specs)
    assert work / (512 * cluster.now_s()) > 0.6
