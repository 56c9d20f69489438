"""Ranks without Ray: results by rank, errors with their cause, dead processes replaced, live ones kept."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gasweep.errors import ConfigError, RunError
from gasweep.training.local_ranks import LocalRanks


def add_up(process, *, value):
    total = torch.tensor(value + process.rank)
    if process.world_size > 1:
        dist.all_reduce(total)
    return int(total), os.getpid()


def raise_on_rank_1(process):
    if process.rank == 1:
        raise ConfigError("field=3 must be even")
    dist.barrier()


def wait_for_ever(process):
    time.sleep(60) if process.rank == 1 else dist.barrier()


@pytest.mark.multiprocess
@pytest.mark.fault
def test_results_errors_and_deaths():
    with LocalRanks(timeout_s=60) as ranks:
        first = ranks.run(2, add_up, value=10)
        assert [total for total, _ in first] == [21, 21]
        assert [total for total, _ in ranks.run(1, add_up, value=5)] == [5]

        with pytest.raises(ConfigError, match="field=3 must be even"):
            ranks.run(2, raise_on_rank_1)
        assert ranks.run(2, add_up, value=10) == first

        victim = ranks.process_ids[1]
        threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
        with pytest.raises(RunError, match="rank 1: the process died"):
            ranks.run(2, wait_for_ever)
        again = ranks.run(2, add_up, value=10)
        assert [total for total, _ in again] == [21, 21]
        assert again[0][1] == first[0][1]
        assert again[1][1] != victim


PARENT = """
from gasweep.training.local_ranks import LocalRanks
from tests.training.test_local_ranks import wait_for_ever

if __name__ == "__main__":
    with LocalRanks(timeout_s=60) as ranks:
        ranks.run(2, wait_for_ever)
"""


@pytest.mark.multiprocess
@pytest.mark.fault
def test_ranks_end_with_a_parent_that_was_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], env=environment) as parent:
        children = wait_until(lambda: joined_ranks(parent.pid), timeout_s=60.0)
        parent.kill()
    wait_until(lambda: not any(is_running(pid) for pid in children), timeout_s=10.0)


def joined_ranks(parent):
    """The two ranks' process ids, once both hold the torch library."""
    pids = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    loaded = [pid for pid in pids if "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()]
    return loaded if len(loaded) == 2 else None


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(found, *, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return value
