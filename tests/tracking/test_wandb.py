"""W&B itself: files that its own record types read back, ids, groups, monotone steps, resume, no server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from gasweep.config.schema import SweepConfig, TrackingConfig, WandbConfig
from gasweep.errors import SourceError
from gasweep.results.journal import Journal
from gasweep.results.records import StepRecord
from gasweep.results.states import RunState
from gasweep.tracking.background import BackgroundTracker
from gasweep.tracking.base import NoTracker, Tracker
from gasweep.tracking.create import catch_up, create_tracker, effective_mode, wandb_tracker
from gasweep.tracking.wandb_tracker import WandbFile, read_wandb_file
from tests.results.examples import make_eval, make_result, make_spec, make_step, started
from tests.tracking.wandb_server import FakeWandbServer

pytest.importorskip("wandb")

ROOT = Path(__file__).parents[2]


def config_of(mode: str = "offline") -> SweepConfig:
    return SweepConfig(name="sweep", tracking=TrackingConfig(wandb=WandbConfig(project="p", mode=mode)))


def offline(directory: Path) -> Tracker:
    return wandb_tracker(config_of(), directory, warn=warnings.warn)


def files(directory: Path) -> list[WandbFile]:
    return [read_wandb_file(path) for path in sorted(directory.glob("wandb/*run-*/*.wandb"))]


@pytest.fixture
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))


def test_c39_one_run_each_with_its_group_job_type_and_config(tmp_path: Path) -> None:
    with started(tmp_path, "a", "b") as journal:
        sweep_id = journal.sweep_id
    tracker = offline(tmp_path)
    for run_id, rate in (("a", 0.1), ("b", 5.0)):
        tracker.start_run(make_spec(run_id, learning_rate=rate, layout=(4, 2, 2)))
        steps = [make_step(i, loss=1 / i) for i in range(1, 31)]
        tracker.log(run_id, steps=steps, evaluations=[make_eval(0), make_eval(30)])
        tracker.finish_run(run_id, make_result(run_id, optimizer_steps=30), state="reached")
    tracker.close()
    found = sorted(files(tmp_path), key=lambda file: file.run_id)
    assert [file.run_id for file in found] == [f"{sweep_id}-a", f"{sweep_id}-b"]
    assert [file.config["learning_rate"] for file in found] == [0.1, 5.0]
    for file in found:
        assert (file.group, file.job_type, file.project) == (f"sweep-{sweep_id}", "convergence", "p")
        assert (file.config["world_size"], file.config["effective_batch_size"]) == (2, 16)
        assert file.config["sweep_config"]["name"] == "t"
        assert [row["optimizer_step"] for row in file.history] == list(range(31))
        assert [row["_step"] for row in file.history] == list(range(31))
        assert [row["loss"] for row in file.history[1:]] == [1 / i for i in range(1, 31)]
        assert [step for step, row in enumerate(file.history) if "eval_loss" in row] == [0, 30]
        assert file.summary["state"] == "reached"
        assert file.exit_code == 0


def test_the_summary_run_holds_the_estimates_the_table_and_the_plot(tmp_path: Path) -> None:
    from PIL import Image

    Journal.create_or_open(tmp_path / "sweep").close()
    Image.new("RGB", (20, 10)).save(tmp_path / "critical_batch_size.png")
    tracker = offline(tmp_path / "sweep")
    table = [{"effective_batch_size": 8, "state": "reached", "steps": 12.5}, {"state": "failed"}]
    estimate = {"value": None, "low": 64.0, "high": None, "reason": "too short a range"}
    tracker.summarize(
        {"critical_batch_size": estimate}, table=table, images=[tmp_path / "critical_batch_size.png"]
    )
    tracker.close()
    (file,) = files(tmp_path / "sweep")
    assert (file.job_type, file.name) == ("summary", "summary")
    assert file.summary["critical_batch_size"] == estimate
    assert file.history[0]["runs"]["nrows"] == 2
    assert file.history[0]["critical_batch_size"]["_type"] == "image-file"
    assert list(tmp_path.glob("sweep/wandb/*run-*/files/media/images/critical_batch_size*.png"))


@pytest.mark.fault
def test_a_killed_driver_resumes_without_a_gap_or_a_step_twice(tmp_path: Path) -> None:
    with started(tmp_path, "a") as journal:
        journal.append("a", 1, steps=[make_step(i) for i in range(1, 41)], evaluations=[make_eval(20)])
    code = """
import sys, time, warnings
from pathlib import Path
from tests.tracking.test_wandb import offline
from tests.results.examples import make_spec, make_step, make_eval
tracker = offline(Path(sys.argv[1]))
tracker.start_run(make_spec("a"))
print("logged", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=_own_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"logged\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _wait_until_quiet(tmp_path)

    tracker = offline(tmp_path)
    tracker.start_run(make_spec("a"))
    tracker.log("a", steps=[make_step(i) for i in range(31, 61)], evaluations=[make_eval(60)])
    tracker.finish_run("a", make_result("a", optimizer_steps=60), state="reached")
    tracker.close()
    # W&B's own process may have died before it wrote anything: then the second file holds it all.
    parts = sorted((file for file in files(tmp_path) if file.run_id), key=lambda file: file.last_step)
    assert len({file.run_id for file in parts}) == 1
    assert [row["optimizer_step"] for file in parts for row in file.history] == list(range(1, 61))
    assert parts[-1].exit_code == 0


def test_runs_that_ended_without_their_tracker_are_mirrored_once(tmp_path: Path) -> None:
    with started(tmp_path, "a", "b", "c") as journal:
        for run_id in ("a", "b"):
            journal.append(run_id, 1, steps=[make_step(i) for i in range(1, 6)], evaluations=[make_eval(5)])
            journal.record_result(make_result(run_id, optimizer_steps=5, evaluations=[make_eval(5)]))
    for expected in (2, 0):
        tracker = offline(tmp_path)
        assert catch_up(tracker, tmp_path) == expected
        tracker.close()
    assert [len(file.history) for file in files(tmp_path)] == [5, 5]
    assert [file.summary["state"] for file in files(tmp_path)] == ["reached", "reached"]


def _own_environment() -> dict[str, str]:
    """For a process that starts W&B's service itself, as a driver does."""
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return {**inherited, "PYTHONPATH": str(ROOT)}


def _wait_until_quiet(directory: Path) -> None:
    """W&B's own process outlives the driver for an instant and writes what it was given."""
    sizes: list[int] = []
    for _ in range(100):
        sizes.append(sum(path.stat().st_size for path in directory.glob("wandb/*/*.wandb")))
        if len(sizes) > 5 and len(set(sizes[-5:])) == 1 and sizes[-1] > 0:
            return
        time.sleep(0.1)


def test_c37_without_a_key_the_sweep_goes_offline_with_one_warning(
    tmp_path: Path, clean_environment: None
) -> None:
    said = _run_online_sweep(tmp_path, base_url="http://127.0.0.1:9", key=None)
    assert said.count("warning:") == 1
    assert "no W&B API key was found (`wandb login`); W&B runs are written below" in said
    assert [file.summary["state"] for file in files(tmp_path)] == ["reached"] * 2


@pytest.mark.long
def test_c37_an_unreachable_server_holds_nothing_up(tmp_path: Path, clean_environment: None) -> None:
    said = _run_online_sweep(tmp_path, base_url="http://127.0.0.1:9", key="a" * 40)
    assert said.count("warning:") == 1
    assert "W&B could not be reached" in said
    assert float(said.split("calls took ")[1].split(" s")[0]) < 1.0
    assert [file.summary["state"] for file in files(tmp_path) if file.history] == ["reached"] * 2


def test_an_online_run_reaches_the_server_whole(tmp_path: Path, clean_environment: None) -> None:
    with FakeWandbServer() as server:
        said = _run_online_sweep(tmp_path, base_url=server.url, key="a" * 40)
    assert "warning:" not in said
    histories = server.histories()
    assert len(histories) == 2
    for rows in histories.values():
        assert [row["optimizer_step"] for row in rows] == list(range(1, 21))
    assert {run["groupName"] for run in server.runs.values()} == {f"sweep-{_sweep_id(tmp_path)}"}


def _sweep_id(directory: Path) -> str:
    with Journal.create_or_open(directory) as journal:
        return journal.sweep_id


def _run_online_sweep(directory: Path, *, base_url: str, key: str | None) -> str:
    """Two runs in a process of their own: W&B keeps credentials and settings for a process's life."""
    with started(directory, "a", "b"):
        pass
    code = """
import sys, time, warnings
from pathlib import Path
from gasweep.tracking.create import create_tracker
from tests.tracking.test_wandb import config_of
from tests.results.examples import make_result, make_spec, make_step
warnings.showwarning = lambda message, *rest: print("warning:", message, flush=True)
started = time.monotonic()
tracker = create_tracker(config_of("online"), Path(sys.argv[1]))
for run_id in ("a", "b"):
    tracker.start_run(make_spec(run_id))
    tracker.log(run_id, steps=[make_step(i) for i in range(1, 21)], evaluations=[])
    tracker.finish_run(run_id, make_result(run_id), state="reached")
print("calls took", time.monotonic() - started, "s", flush=True)
tracker.close()
"""
    environment = _own_environment() | {"WANDB_BASE_URL": base_url}
    if key is not None:
        environment["WANDB_API_KEY"] = key
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Journal.create_or_open(tmp_path).close()
    monkeypatch.setitem(sys.modules, "wandb", None)
    tracker = create_tracker(config_of(), tmp_path)
    assert isinstance(tracker, BackgroundTracker)
    tracker.start_run(make_spec("a"))
    assert tracker.wait(timeout_s=5.0)
    with pytest.warns(UserWarning, match=r"tracking is off: .*`pip install 'gasweep\[wandb\]'`"):
        tracker.close()


def test_the_environment_can_only_make_it_less_public(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for environment, config, expected in (
        ("online", "offline", "offline"),
        ("offline", "online", "offline"),
        ("disabled", "online", "disabled"),
        ("dryrun?", "online", "online"),
    ):
        monkeypatch.setenv("WANDB_MODE", environment)
        assert effective_mode(WandbConfig(mode=config)) == expected
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert isinstance(create_tracker(config_of(), tmp_path), NoTracker)
    assert isinstance(create_tracker(SweepConfig(), tmp_path), NoTracker)


def test_a_file_torn_at_birth_holds_nothing(tmp_path: Path) -> None:
    for data in (b"", b":W&B\xe1"):
        (tmp_path / "x.wandb").write_bytes(data)
        assert read_wandb_file(tmp_path / "x.wandb").last_step == -1


def test_what_is_no_wandb_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wandb").write_bytes(b"PK\x03\x04 not one")
    with pytest.raises(SourceError, match=r"not a \.wandb file"):
        read_wandb_file(tmp_path / "x.wandb")


def test_a_damaged_record_is_found_and_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    with started(tmp_path, "a"):
        pass
    tracker = offline(tmp_path)
    tracker.start_run(make_spec("a"))
    padding = {f"key{i}": 0.1 for i in range(50)}
    steps = [
        StepRecord(optimizer_step=i, contributions=i, loss=1.0, learning_rate=0.1, extra=padding)
        for i in range(1, 101)
    ]
    tracker.log("a", steps=steps, evaluations=[])
    tracker.finish_run("a", None, state=RunState.INTERRUPTED.value)
    tracker.close()
    (path,) = tmp_path.glob("wandb/*run-*/*.wandb")
    data = path.read_bytes()
    assert len(data) > 3 * 32 * 1024
    whole = read_wandb_file(path)
    assert [row["optimizer_step"] for row in whole.history] == list(range(1, 101))
    path.write_bytes(data[: len(data) // 2])
    torn = read_wandb_file(path)
    assert torn.history == whole.history[: len(torn.history)]
    assert 0 < len(torn.history) < 100
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :])
    with pytest.raises(SourceError, match="fails its checksum"):
        read_wandb_file(path)
