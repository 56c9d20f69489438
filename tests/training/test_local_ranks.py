"""Ranks without Ray: results by rank, errors with their cause, dead processes replaced, live ones kept."""

import os
import signal
import threading
import time

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
