"""What is shown while a sweep runs: bounded lines without a terminal, a table that fits with one."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gasweep.cli.display import PlainDisplay
from gasweep.cli.eta import Eta
from gasweep.cli.render import sweep_view
from gasweep.cli.view import SweepView, view_of_specs
from gasweep.config.run_spec import RunSpec
from gasweep.results.records import StepRecord
from gasweep.results.states import RunState
from gasweep.scheduling.backend import Capacity, Cause, Failed
from tests.results.examples import make_eval, make_result
from tests.results.planted import BATCHES, probe_of, spec_of

CPU = Capacity(num_workers=2, max_workers=2, device="cpu")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def specs(count: int) -> list[RunSpec]:
    return [spec_of(64, 0.1, seed) for seed in range(count)]


def started(count: int) -> tuple[PlainDisplay, io.StringIO, Clock, list[RunSpec]]:
    out, clock, made = io.StringIO(), Clock(), specs(count)
    display = PlainDisplay("s", file=out, clock=clock)
    states = {spec.run_id: RunState.WAITING for spec in made}
    display.sweep_started(made, states=states, capacity=CPU)
    return display, out, clock, made


def end(display: PlainDisplay, spec: RunSpec) -> None:
    display.run_changed(spec, RunState.REACHED, reason=None, attempt=1)
    display.run_finished(spec, make_result(spec.run_id, evaluations=[make_eval(10, loss=0.5)]))


def test_a_run_that_ends_is_a_line() -> None:
    display, out, _, (spec,) = started(1)
    end(display, spec)
    lines = out.getvalue().splitlines()
    assert lines[0] == "1 runs, 0 of them finished before; 2 workers (cpu)"
    assert lines[1] == "[1/1] reached: B=64 8x1x8 lr=0.1 seed=0  step 10, eval_loss 0.5"


def test_a_probe_is_measured_and_its_twin_is_named() -> None:
    spec = probe_of(64)
    options = dataclasses.replace(spec.config.strategy_options, sync_every_micro_step=True)
    twin = dataclasses.replace(spec, config=dataclasses.replace(spec.config, strategy_options=options))
    for probe, ending in ((spec, "seed=0"), (twin, "seed=0 syncing every micro-step")):
        out = io.StringIO()
        display = PlainDisplay("s", file=out, clock=Clock())
        display.sweep_started([probe], states={probe.run_id: RunState.WAITING}, capacity=CPU)
        end(display, probe)
        line = out.getvalue().splitlines()[1]
        assert line.startswith("[1/1] measured: probe B=64 ")
        assert line.partition("  ")[0].endswith(ending)


def test_the_table_shows_what_the_target_is_about() -> None:
    spec = spec_of(64, 0.1, 0)
    sweep = view_of_specs("s", [spec], {spec.run_id: RunState.RUNNING})
    (run,) = sweep.runs.values()
    run.loss = 1.75
    assert "1.75" in table_of(sweep)
    run.evaluation = {"eval_loss": 0.375}
    assert "0.375" in table_of(sweep)
    assert "1.75" not in table_of(sweep)


def table_of(sweep: SweepView) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(sweep_view(sweep, width=120, height=24))
    return out.getvalue()


def test_a_thousand_runs_in_a_second_are_a_few_lines() -> None:
    display, out, clock, made = started(1000)
    for spec in made:
        clock.now_s += 0.001
        end(display, spec)
        display.idle()
    assert len(out.getvalue().splitlines()) < 12
    clock.now_s += 10.0
    display.idle()
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("s: 1000/1000 runs done; 99")
    assert last.endswith("more runs ended")


def test_a_failed_attempt_names_its_cause_and_log() -> None:
    display, out, _, (spec,) = started(1)
    display.run_changed(spec, RunState.WAITING, reason="worker 1 died", attempt=1)
    failed = Failed(
        run_id=spec.run_id,
        attempt=1,
        cause=Cause.PROCESS_DEATH,
        message="worker 1 died",
        log_path=Path("runs/x/log.txt"),
        retryable=True,
    )
    display.attempt_failed(spec, failed, retried=True)
    last = out.getvalue().splitlines()[-1]
    assert last.endswith(": worker 1 died; tried again; log: runs/x/log.txt")


def test_a_reader_that_went_away_does_not_end_the_sweep() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    display = PlainDisplay("s", file=Closed())
    made = specs(1)
    display.sweep_started(made, states={made[0].run_id: RunState.WAITING}, capacity=CPU)
    end(display, made[0])
    display.idle()


def big_sweep() -> SweepView:
    made = [probe_of(batch) for batch in BATCHES]
    made += [spec_of(batch, 0.1, seed, axes={"task.width": 64}) for batch in BATCHES for seed in range(30)]
    states = {spec.run_id: RunState.WAITING for spec in made}
    sweep = view_of_specs("a-rather-long-name-of-a-sweep", made, states)
    for index, run in enumerate(sweep.runs.values()):
        run.state = list(RunState)[index % len(RunState)]
        run.reason = "a reason that is much longer than any terminal is wide " * 3
        run.optimizer_step, run.loss, run.seconds_per_optimizer_step = 123456, 0.123456, 0.01
    sweep.num_workers = 4
    return sweep


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 250])
@pytest.mark.parametrize("height", [8, 24, 50])
def test_the_table_fits_its_terminal(width: int, height: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(sweep_view(big_sweep(), width=width, height=height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = out.getvalue()
    assert "state" in text
    for name in ("B", "lr", "step") if width >= 40 else ():
        assert name in text
    if width >= 80:
        assert "running" in text
        assert "b x N x G" in text


def test_running_and_failed_runs_come_first() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(sweep_view(big_sweep(), width=120, height=400))
    states = [line.split()[0] for line in out.getvalue().splitlines()[3:] if not line.startswith("…")]
    assert states[: states.count("running")] == ["running"] * states.count("running")
    first = {name: states.index(name) for name in ("running", "failed", "reached", "waiting")}
    assert sorted(first, key=lambda name: first[name]) == ["running", "failed", "reached", "waiting"]


def step(optimizer_step: int, seconds: float) -> StepRecord:
    return StepRecord(
        optimizer_step=optimizer_step, contributions=0, loss=1.0, learning_rate=0.1, seconds=seconds
    )


def test_eta_takes_steps_from_runs_alike_and_seconds_from_the_run_itself() -> None:
    done, running, waiting = spec_of(64, 0.1, 0), spec_of(64, 0.1, 1), spec_of(64, 0.1, 2)
    states: dict[str, Any] = {
        done.run_id: RunState.REACHED,
        running.run_id: RunState.RUNNING,
        waiting.run_id: RunState.WAITING,
    }
    sweep = view_of_specs("s", [done, running, waiting], states)
    sweep.runs[done.run_id].optimizer_step = 200
    sweep.runs[running.run_id].take_progress([step(50, 0.1)], [])
    sweep.num_workers = 1
    eta = Eta(sweep)
    assert eta.run_s(sweep.runs[running.run_id]) == pytest.approx(150 * 0.1)
    assert eta.run_s(sweep.runs[waiting.run_id]) == pytest.approx(200 * 0.1)
    assert eta.run_s(sweep.runs[done.run_id]) == 0.0
    assert eta.sweep_s() == pytest.approx(35.0)
    sweep.num_workers = 8
    assert Eta(sweep).sweep_s() == pytest.approx(20.0)


def test_eta_without_anything_to_go_by_is_unknown() -> None:
    spec = spec_of(64, 0.1, 0)
    sweep = view_of_specs("s", [spec], {spec.run_id: RunState.WAITING})
    sweep.num_workers = 1
    assert Eta(sweep).run_s(sweep.runs[spec.run_id]) is None
    assert Eta(sweep).sweep_s() is None
