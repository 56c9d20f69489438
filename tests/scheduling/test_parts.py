"""Slots, node choice, the mailbox, captured output, interfaces, provenance, signals: small parts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from scheduling_fakes import step_record
from scheduling_specs import make_config

from gasweep.config.schema import ClusterConfig
from gasweep.errors import ConfigError
from gasweep.scheduling import interrupts as interrupts_module
from gasweep.scheduling import ray_watchdog
from gasweep.scheduling.interrupts import Interrupts
from gasweep.scheduling.mailbox import Mailbox
from gasweep.scheduling.network import interface_of, use_interface_of
from gasweep.scheduling.output import append_stacks, captured
from gasweep.scheduling.pool import Block, Member, WorkerInfo, choose
from gasweep.scheduling.provenance import provenance
from gasweep.scheduling.ray_session import LONGEST_BASE, RaySession, _remove_left_behind
from gasweep.scheduling.slots import count_slots, worker_bundle
from gasweep.scheduling.sweep import backend_for


def members(**nodes: int) -> list[Member]:
    block = Block(reservation=None, size=sum(nodes.values()), asked_s=0.0)
    return [
        Member(block=block, index=i, info=WorkerInfo(node=name, hostname=name, pid=i, address="10.0.0.1"))
        for name, count in nodes.items()
        for i in range(count)
    ]


def chosen(count: int, **nodes: int) -> list[str]:
    return [member.info.node for member in choose(members(**nodes), count) if member.info]


def test_a_gang_is_placed_on_the_node_that_fits_it_most_tightly() -> None:
    assert chosen(2, a=8, b=2, c=3) == ["b", "b"]
    assert chosen(3, a=8, b=2, c=3) == ["c", "c", "c"]


def test_a_gang_too_large_for_a_node_takes_the_fullest_nodes_and_keeps_neighbours_together() -> None:
    assert chosen(7, a=2, b=4, c=3) == ["b"] * 4 + ["c"] * 3


def test_cpu_slots_are_counted_per_node() -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 3.0}]
    bundle = worker_bundle(nodes, num_threads=2)
    assert bundle == {"CPU": 2.0}
    slots = count_slots(nodes, bundle=bundle, available={"CPU": 6.0}, maximum=None)
    assert (slots.total, slots.maximum, slots.free, slots.per_node) == (2, 2, 2, 1)


def test_gpus_are_the_slots_where_there_are_any_and_get_the_cpus_that_every_one_can_have() -> None:
    nodes = [{"CPU": 64.0}, {"CPU": 12.0, "GPU": 8.0}, {"CPU": 64.0, "GPU": 8.0}]
    assert worker_bundle(nodes, num_threads=4) == {"GPU": 1.0, "CPU": 1.0}
    assert worker_bundle([{"CPU": 2.0, "GPU": 4.0}], num_threads=1) == {"GPU": 1.0}
    slots = count_slots(nodes, bundle={"GPU": 1.0}, available={"GPU": 5.0}, maximum={"GPU": 64.0})
    assert (slots.total, slots.maximum, slots.free, slots.per_node) == (16, 64, 5, 8)


def test_the_mailbox_waits_for_news_and_gathers_what_follows_it() -> None:
    mailbox = Mailbox(patience_s=60.0, pause_s=60.0)

    def fill() -> None:
        for step in (1, 2, 3):
            mailbox.put(steps=[step_record(step)], evaluations=[])
            time.sleep(0.01)
        mailbox.close()

    thread = threading.Thread(target=fill)
    thread.start()
    batch = mailbox.wait_and_take()
    thread.join()
    assert [record.optimizer_step for record in batch.steps] == [1, 2, 3]
    assert batch.moved
    assert not mailbox.take().moved
    mailbox.beat()
    assert mailbox.take().moved


def test_a_closed_mailbox_keeps_nobody_waiting() -> None:
    mailbox = Mailbox(patience_s=60.0, pause_s=60.0)
    mailbox.close()
    started = time.monotonic()
    assert mailbox.wait_and_take().steps == []
    assert time.monotonic() - started < 30.0


def test_everything_printed_goes_to_the_log_even_by_children(tmp_path: Path, capfd: Any) -> None:
    log = tmp_path / "folder" / "log.txt"
    with captured(log) as say:
        say("header")
        print("python")
        sys.stdout.flush()
        os.write(2, b"native\n")
        subprocess.run(["echo", "child"], check=True)
        append_stacks(log)
    print("outside")
    lines = log.read_text().splitlines()
    assert lines[0] == "header"
    assert {"native", "child"} <= set(lines)
    assert any("test_everything_printed" in line for line in lines)
    assert "outside" not in log.read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_the_loopback_interface_is_found_by_its_address() -> None:
    name = interface_of("127.0.0.1")
    assert name in {name for _, name in socket.if_nameindex()}
    assert interface_of("203.0.113.7") is None
    environment = {"NCCL_SOCKET_IFNAME": "ib0"}
    use_interface_of("127.0.0.1", environment)
    assert environment == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "ib0"}


def test_provenance_changes_with_the_tasks_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    config = make_config()
    config.task = {"_target_": "provenance_probe_task.MyTask"}
    module = tmp_path / "provenance_probe_task.py"
    module.write_text("class MyTask: pass\n")
    before = provenance(config)
    assert provenance(config) == before
    module.write_text("class MyTask: width = 2\n")
    after = provenance(config)
    assert after["task_source_sha256"] != before["task_source_sha256"]
    assert after["source_sha256"] == before["source_sha256"]
    assert {"python", "torch", "gasweep"} <= set(after["versions"])


def test_signals_are_counted_and_handlers_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert not interrupts.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked
        assert not interrupts.insisted
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stop_that_does_not_end_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(interrupts_module, "OVERDUE_S", 0.01)
    monkeypatch.setattr(interrupts_module, "_end_process", ended.set)
    with Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(5.0), "blocked for good, as in a call to a cluster that is gone"


def test_a_stop_that_ends_in_time_leaves_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(interrupts_module, "OVERDUE_S", 0.05)
    monkeypatch.setattr(interrupts_module, "_end_process", ended.set)
    with Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert not ended.wait(0.2)


def test_signals_cannot_be_caught_outside_the_main_thread_and_that_is_no_error() -> None:
    found: list[bool] = []

    def use() -> None:
        with Interrupts() as interrupts:
            interrupts.ask()
            found.append(interrupts.asked)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [True]


def test_an_unknown_backend_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"cluster.backend='rai': did you mean 'ray'\?"):
        backend_for(ClusterConfig(backend="rai"))


class FakeRay:
    """The part of the ray module that a session touches."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.arguments: dict[str, Any] = {}
        self._private = self

    @property
    def worker(self) -> Any:
        return object()

    def is_initialized(self) -> bool:
        return False

    def init(self, **arguments: Any) -> None:
        self.arguments = arguments
        if self.error is not None:
            raise self.error

    def shutdown(self) -> None:
        pass


def test_a_local_cluster_is_private_and_an_explicit_worker_count_is_taken_at_its_word() -> None:
    ray = FakeRay()
    session = RaySession(ray, address=None, num_workers=8, num_threads=2)
    folder = Path(ray.arguments["_temp_dir"])
    assert ray.arguments["address"] == "local"
    assert ray.arguments["num_cpus"] == 16
    assert ray.arguments["include_dashboard"] is False
    assert folder.is_dir()
    assert len(str(folder.parent)) <= LONGEST_BASE
    session.close()
    assert not folder.exists()


def test_no_cluster_at_the_address_is_the_users_to_mend() -> None:
    error = ConnectionError("Could not find any running Ray instance.\nmore")
    with pytest.raises(ConfigError, match=r"cluster.address='auto' leads to no Ray cluster \(Could not"):
        RaySession(FakeRay(error), address="auto", num_workers=None, num_threads=1)
    with pytest.raises(ConfigError, match="Ray Client is not supported"):
        RaySession(FakeRay(), address="ray://head:10001", num_workers=None, num_threads=1)


def test_folders_of_killed_sweeps_are_removed_and_living_ones_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f"gasweep-{dead.pid}-x", f"gasweep-{os.getpid()}-x", "gasweep-notapid-x", "other-1-x"):
        (tmp_path / name).mkdir()
    _remove_left_behind(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f"gasweep-{os.getpid()}-x", "gasweep-notapid-x", "other-1-x"]
    )


def test_the_watchdog_ends_what_a_dead_driver_left_and_spares_one_that_ends_in_order(tmp_path: Path) -> None:
    for last_words, survives in ((b"", False), (ray_watchdog.IN_ORDER, True)):
        folder = tmp_path / f"cluster-{survives}"
        folder.mkdir()
        with (folder / "log").open("w") as log:
            leftover = subprocess.Popen(["sleep", "60"], stdout=log)
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", ray_watchdog.__file__, str(folder)], stdin=subprocess.PIPE
        )
        watchdog.communicate(last_words, timeout=30.0)
        assert (leftover.poll() is None or leftover.wait() == 0) == survives
        assert folder.exists() == survives
        leftover.kill()
        leftover.wait()
