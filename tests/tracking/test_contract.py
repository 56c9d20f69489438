"""The tracker contract, over every implementation: nothing, W&B offline, a service that breaks, a thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gasweep.config.schema import SweepConfig, TrackingConfig, WandbConfig
from gasweep.results.journal import Journal
from gasweep.tracking.background import BackgroundTracker
from gasweep.tracking.base import NoTracker, Tracker
from gasweep.tracking.create import create_tracker
from gasweep.tracking.mirror import MirrorTracker
from tests.results.examples import make_eval, make_result, make_spec, make_step
from tests.tracking.service import FakeService


def _mirror(tmp_path: Path) -> Tracker:
    return MirrorTracker(FakeService())


def _background(tmp_path: Path) -> Tracker:
    return BackgroundTracker(lambda warn: MirrorTracker(FakeService(), warn=warn))


def _wandb_offline(tmp_path: Path) -> Tracker:
    Journal.create_or_open(tmp_path).close()
    config = SweepConfig(name="t", tracking=TrackingConfig(wandb=WandbConfig(mode="offline")))
    return create_tracker(config, tmp_path)


def _failing(method: str) -> Callable[[Path], Tracker]:
    return lambda tmp_path: MirrorTracker(FakeService(fails_in=method))


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "none": lambda tmp_path: NoTracker(),
    "mirror": _mirror,
    "background": _background,
    "wandb offline": _wandb_offline,
    "fails at open": _failing("open_run"),
    "fails at log": _failing("log"),
    "fails at finish": _failing("finish"),
    "fails at summary": _failing("log_summary"),
    "fails at close": _failing("close"),
}


@pytest.fixture(params=TRACKERS, ids=str)
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tracker]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracker = TRACKERS[request.param](tmp_path)
        yield tracker
        tracker.close()
    assert len(caught) <= (1 if request.param.startswith("fails") else 0), [str(w.message) for w in caught]


def test_a_whole_life_raises_nothing(tracker: Tracker, tmp_path: Path) -> None:
    for run_id in ("a", "b"):
        tracker.start_run(make_spec(run_id))
        tracker.start_run(make_spec(run_id))
    tracker.log("a", steps=[], evaluations=[make_eval(0)])
    tracker.log("b", steps=[make_step(1), make_step(2, loss=None)], evaluations=[make_eval(2)])
    tracker.log("b", steps=[make_step(1), make_step(2)], evaluations=[make_eval(2)])
    tracker.log("b", steps=[], evaluations=[])
    tracker.finish_run("a", None, state="failed")
    tracker.finish_run("b", make_result("b", optimizer_steps=2, evaluations=[make_eval(2)]), state="reached")
    tracker.summarize({"critical_batch_size": {"value": None}}, table=[{"B": 1}, {"B": "x"}], images=[])
    tracker.close()
    tracker.close()
    tracker.log("a", steps=[make_step(3)], evaluations=[])


def test_calls_out_of_place_are_ignored(tracker: Tracker) -> None:
    tracker.log("unknown", steps=[make_step(1)], evaluations=[])
    tracker.finish_run("unknown", make_result("unknown"), state="reached")
    tracker.start_run(make_spec("a"))
    tracker.finish_run("a", None, state="interrupted")
    tracker.finish_run("a", None, state="interrupted")
    tracker.log("a", steps=[make_step(1)], evaluations=[])


@pytest.mark.parametrize("method", ["open_run", "log", "finish", "log_summary", "close"])
def test_a_breaking_service_warns_once_and_is_left_alone(method: str) -> None:
    service = FakeService(fails_in=method)
    tracker = MirrorTracker(service)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for run_id in ("a", "b"):
            tracker.start_run(make_spec(run_id))
            tracker.log(run_id, steps=[make_step(1)], evaluations=[])
            tracker.finish_run(run_id, make_result(run_id), state="reached")
        tracker.summarize({}, table=[], images=[])
        tracker.close()
    assert [str(w.message) for w in caught] == [
        "tracking stopped (RuntimeError: the service is down); the sweep goes on and its journal holds "
        "everything: `gasweep export DIR --format wandb` mirrors it later"
    ]
    assert service.failures <= 2


def test_a_tracker_that_cannot_be_built_warns_once(tmp_path: Path) -> None:
    def build(warn: Any) -> Tracker:
        raise ImportError("no such package")

    tracker = BackgroundTracker(build)
    tracker.start_run(make_spec("a"))
    assert tracker.wait(timeout_s=5.0)
    with pytest.warns(UserWarning, match="tracking is off: no such package"):
        tracker.close()


def test_warnings_that_are_errors_do_not_reach_the_sweep() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker = BackgroundTracker(lambda warn: MirrorTracker(FakeService(fails_in="open_run"), warn=warn))
        tracker.start_run(make_spec("a"))
        tracker.close()
