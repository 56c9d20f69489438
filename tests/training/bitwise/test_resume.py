"""A resumed run has the bits of an undisturbed one, on the same or on another number of ranks."""

import json
import multiprocessing
import os
import random
import signal
import time

import pytest

from gasweep.errors import RefusedError
from gasweep.training import Interrupted
from tests.training.bitwise.test_layouts import bits, spec_of, trained
from tests.training.ranks import RankError, run_on_ranks
from tests.training.toys import train_toy

OPTIONS = {"arguments": {"dropout": 0.3}, "max_optimizer_steps": 12, "run_id": "resumed"}


def stop_and_resume(rank=0, *, stopped, resumed, folder, stop_after):
    with pytest.raises(Interrupted):
        train_toy(rank, spec=stopped, run_directory=folder, stop_after=stop_after)
    return train_toy(rank, spec=resumed, run_directory=folder)


def end_of(outcome):
    """The final parameters and every evaluation, those before the stop included."""
    result = outcome[0]
    return result.parameter_sha256, [record.metrics for record in result.evaluations], result.optimizer_steps


@pytest.mark.parametrize("stop_after", [1, 5, 11])
def test_resume_on_one_rank_has_the_bits_of_an_undisturbed_run(tmp_path, stop_after):
    spec = spec_of(8, 1, **OPTIONS)
    resumed = stop_and_resume(stopped=spec, resumed=spec, folder=tmp_path, stop_after=stop_after)
    assert end_of(resumed) == end_of(trained(8, 1, **OPTIONS))


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_resume_on_several_ranks_has_the_bits_of_an_undisturbed_run(tmp_path, strategy):
    spec = spec_of(4, 2, strategy=strategy, **OPTIONS)
    resumed = run_on_ranks(2, stop_and_resume, stopped=spec, resumed=spec, folder=tmp_path, stop_after=5)[0]
    assert end_of(resumed) == end_of(trained(8, 1, **OPTIONS))


@pytest.mark.multiprocess
def test_a_run_goes_on_in_another_layout_and_strategy_with_the_same_bits(tmp_path):
    with pytest.raises(Interrupted):
        train_toy(spec=spec_of(28, 1, **OPTIONS), run_directory=tmp_path, stop_after=4)
    with pytest.raises(RankError, match="Interrupted"):
        run_on_ranks(
            2, train_toy, spec=spec_of(8, 2, strategy="fsdp", **OPTIONS), run_directory=tmp_path, stop_after=4
        )
    last = run_on_ranks(4, train_toy, spec=spec_of(4, 4, **OPTIONS), run_directory=tmp_path)[0]
    assert end_of(last) == end_of(trained(8, 1, **OPTIONS))


def test_resume_under_other_kernels_is_refused(tmp_path):
    spec = spec_of(8, 1, **OPTIONS)
    with pytest.raises(Interrupted):
        train_toy(spec=spec, run_directory=tmp_path, stop_after=3)
    for meta in tmp_path.rglob("checkpoint.json"):
        stored = json.loads(meta.read_text())
        stored["accumulator"]["kernels"]["torch"] = "0.1"
        meta.write_text(json.dumps(stored))
    with pytest.raises(RefusedError, match=r"torch 0\.1 -> .*: a resumed run would not have the bits"):
        train_toy(spec=spec, run_directory=tmp_path)


def train_until_killed(folder, spec, started):
    started.set()
    train_toy(spec=spec, run_directory=folder)


@pytest.mark.fault
@pytest.mark.multiprocess
def test_a_run_killed_at_a_random_moment_resumes_to_the_same_bits(tmp_path):
    """SIGKILL, not a polite stop; checkpoints every step, so that it may fall into the writing of one."""
    options = {**OPTIONS, "max_optimizer_steps": 60, "checkpoint": {"every_optimizer_steps": 1}}
    spec = spec_of(8, 1, **options)
    context = multiprocessing.get_context("spawn")
    generator = random.Random(0)
    for _ in range(2):
        started = context.Event()
        process = context.Process(target=train_until_killed, args=(tmp_path, spec, started))
        process.start()
        assert started.wait(60)
        deadline = time.monotonic() + 30
        while not list(tmp_path.rglob("checkpoint.json")) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(generator.uniform(0.0, 0.15))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert bits(train_toy(spec=spec, run_directory=tmp_path))[0] == bits(trained(8, 1, **options))[0]
