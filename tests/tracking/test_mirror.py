"""What is mirrored: every optimizer step once, in order, with the run's whole history; never in the way."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from gasweep.results.records import StepRecord
from gasweep.tracking.background import BackgroundTracker
from gasweep.tracking.mirror import MirrorTracker
from gasweep.tracking.rows import run_config, step_row
from tests.results.examples import make_eval, make_result, make_spec, make_step
from tests.tracking.service import FakeService


def test_c15_two_runs_in_one_process_stay_apart() -> None:
    service = FakeService()
    tracker = MirrorTracker(service)
    for run_id, rate in (("a", 0.1), ("b", 5.0)):
        tracker.start_run(make_spec(run_id, learning_rate=rate))
        tracker.log(run_id, steps=[make_step(1)], evaluations=[])
    tracker.close()
    assert [(run.run_id, run.config["learning_rate"]) for run in service.runs] == [("a", 0.1), ("b", 5.0)]
    assert all(run.summary is not None for run in service.runs)


def test_a_row_holds_an_optimizer_step_and_its_evaluation_under_the_vocabularys_names() -> None:
    service = FakeService()
    tracker = MirrorTracker(service)
    tracker.start_run(make_spec("a"))
    step = StepRecord(
        optimizer_step=1,
        contributions=16,
        loss=2.0,
        learning_rate=0.1,
        examples_per_s=160.0,
        bytes_on_wire=100,
        bytes_saved=300,
        extra={"noise_scale": 7.0},
    )
    tracker.log(
        "a", steps=[step, make_step(2, loss=None)], evaluations=[make_eval(0), make_eval(1, loss=3.0)]
    )
    tracker.log("a", steps=[], evaluations=[make_eval(2, loss=2.5)])
    tracker.close()
    rows = dict(service.runs[0].rows)
    assert list(rows) == [0, 1, 2]
    assert rows[1] == {
        "optimizer_step": 1,
        "contributions": 16,
        "loss": 2.0,
        "learning_rate": 0.1,
        "examples_per_s": 160.0,
        "bytes_on_wire": 100,
        "bytes_saved_by_no_sync": 300,
        "saving_from_no_sync": 0.75,
        "noise_scale": 7.0,
        "eval_loss": 3.0,
    }
    assert "loss" not in rows[2]
    assert rows[2]["eval_loss"] == 2.5
    assert "saving_from_no_sync" not in step_row(make_step(1))


def test_a_row_is_sent_once_it_is_complete() -> None:
    service = FakeService()
    tracker = MirrorTracker(service)
    tracker.start_run(make_spec("a"))
    tracker.log("a", steps=[make_step(1), make_step(2)], evaluations=[])
    assert [step for step, _ in service.runs[0].rows] == [1]
    tracker.log("a", steps=[], evaluations=[make_eval(2)])
    tracker.log("a", steps=[make_step(3)], evaluations=[])
    assert [("eval_loss" in row, step) for step, row in service.runs[0].rows] == [(False, 1), (True, 2)]


def test_a_retried_attempts_repeated_steps_are_ignored() -> None:
    service = FakeService()
    tracker = MirrorTracker(service)
    tracker.start_run(make_spec("a"))
    tracker.log("a", steps=[make_step(i, loss=1.0) for i in range(1, 6)], evaluations=[make_eval(4)])
    tracker.log("a", steps=[make_step(i, loss=2.0) for i in range(3, 8)], evaluations=[make_eval(4)])
    tracker.close()
    assert [(step, row["loss"]) for step, row in service.runs[0].rows] == [
        (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 1.0), (6, 2.0), (7, 2.0)
    ]  # fmt: skip


def test_a_resumed_driver_sends_what_the_service_lacks_and_nothing_twice() -> None:
    journal = ([make_step(i) for i in range(1, 41)], [make_eval(0), make_eval(20), make_eval(40)])
    service = FakeService(last_steps={"a": 25})
    tracker = MirrorTracker(service, history=lambda run_id: journal)
    tracker.start_run(make_spec("a"))
    tracker.log("a", steps=[make_step(i) for i in range(38, 44)], evaluations=[make_eval(40)])
    tracker.close()
    rows = service.runs[0].rows
    assert [step for step, _ in rows] == list(range(26, 44))
    assert [step for step, row in rows if "eval_loss" in row] == [40]


def test_c73_hundreds_of_runs_are_open_a_few_at_a_time_and_none_is_lost() -> None:
    service = FakeService()
    tracker = MirrorTracker(service, max_open=4)
    names = [f"r{i}" for i in range(200)]
    for name in names:
        tracker.start_run(make_spec(name))
        tracker.log(name, steps=[make_step(1), make_step(2)], evaluations=[make_eval(2)])
    for name in reversed(names):
        tracker.log(name, steps=[make_step(3)], evaluations=[])
        tracker.finish_run(name, make_result(name, optimizer_steps=3), state="reached")
    assert service.most_open <= 5
    assert {run.run_id for run in service.runs} == set(names)
    assert all([step for step, _ in run.rows] == [1, 2, 3] for run in service.runs)
    assert all(run.summary is not None and run.summary["state"] == "reached" for run in service.runs)


def test_evaluations_of_the_result_complete_the_run() -> None:
    service = FakeService()
    tracker = MirrorTracker(service)
    tracker.start_run(make_spec("a"))
    tracker.log("a", steps=[make_step(1)], evaluations=[make_eval(0)])
    result = make_result("a", optimizer_steps=9, evaluations=[make_eval(0), make_eval(9)])
    tracker.finish_run("a", result, state="reached")
    assert [step for step, row in service.runs[0].rows if "eval_loss" in row] == [0, 9]
    assert service.runs[0].summary is not None
    assert service.runs[0].summary["throughput"]["saving_from_no_sync"] == 0.5


def test_every_optimizer_steps_keeps_evaluated_ones() -> None:
    service = FakeService()
    tracker = MirrorTracker(service, every_optimizer_steps=10)
    tracker.start_run(make_spec("a"))
    tracker.log("a", steps=[make_step(i) for i in range(1, 31)], evaluations=[make_eval(0), make_eval(25)])
    tracker.close()
    assert [step for step, _ in service.runs[0].rows] == [0, 10, 20, 25, 30]


def test_close_finishes_what_is_open_as_interrupted() -> None:
    service = FakeService()
    tracker = MirrorTracker(service)
    tracker.start_run(make_spec("a"))
    tracker.close()
    assert service.runs[0].summary == {"state": "interrupted", "effective_batch_size": 16}
    assert service.runs[0].succeeded is False


def test_config_keys_carry_no_dots() -> None:
    config = run_config(make_spec("a"))
    assert config["axes"] == {"task/width": 64}
    assert (config["world_size"], config["accumulation_steps"], config["kind"]) == (1, 2, "convergence")


def test_a_service_that_hangs_never_holds_the_sweep_up() -> None:
    held = threading.Event()
    service = FakeService(held=held)
    tracker = BackgroundTracker(
        lambda warn: MirrorTracker(service, warn=warn), max_pending=100, close_timeout_s=0.05
    )
    before = time.monotonic()
    tracker.start_run(make_spec("a"))
    for i in range(1, 80):
        tracker.log("a", steps=[make_step(i)], evaluations=[])
    with pytest.warns(UserWarning, match="tracking cannot keep up"):
        tracker.log("a", steps=[make_step(i) for i in range(80, 400)], evaluations=[])
    with pytest.warns(UserWarning, match=r"still behind after 0\.05 s"):
        tracker.close()
    assert time.monotonic() - before < 2.0
    held.set()


def test_the_background_thread_keeps_the_order() -> None:
    service = FakeService()
    tracker = BackgroundTracker(lambda warn: MirrorTracker(service, warn=warn))
    tracker.start_run(make_spec("a"))
    for i in range(1, 200):
        tracker.log("a", steps=[make_step(i)], evaluations=[])
    assert tracker.wait(timeout_s=5.0)
    assert [step for step, _ in service.runs[0].rows] == list(range(1, 199))
    tracker.close()
    assert [step for step, _ in service.runs[0].rows] == list(range(1, 200))
    assert service.runs[0].summary is not None


def test_a_measurement_is_sent_however_rarely_steps_are_with_its_smoothed_ratio() -> None:
    service = FakeService()
    tracker = MirrorTracker(service, every_optimizer_steps=10)
    tracker.start_run(make_spec("a"))
    counts = {"noise_num_groups": 4.0, "noise_num_examples": 32.0}
    measured = {
        3: {"grad_sq_norm": 1.0, "grad_noise_trace": 16.0, **counts},
        7: {"grad_sq_norm": -0.2, "grad_noise_trace": 25.6, **counts},
    }
    steps = [dataclasses.replace(make_step(i), extra=measured.get(i, {})) for i in range(1, 9)]
    tracker.log("a", steps=steps, evaluations=[])
    tracker.close()
    rows = dict(service.runs[0].rows)
    assert list(rows) == [3, 7]
    assert rows[7]["grad_sq_norm"] == -0.2
    assert rows[3]["noise_scale_smoothed"] == pytest.approx(16.0)
    weights = (0.95 * 0.05, 0.05)
    expected = (weights[0] * 16.0 + weights[1] * 25.6) / (weights[0] * 1.0 + weights[1] * -0.2)
    assert rows[7]["noise_scale_smoothed"] == pytest.approx(expected)
