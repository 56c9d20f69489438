"""Where a step's time goes: the parts are there, they add up, and muting leaves communication out."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gasweep.training.build import build_trainer
from gasweep.training.process import ProcessContext
from gasweep.training.progress import RunProgress
from gasweep.training.step_split import measure_split
from tests.training.ranks import run_on_ranks
from tests.training.toys import ToyData, ToyRegression, toy_spec, train_toy

PROBE: dict[str, Any] = {"probe_optimizer_steps": 6, "probe_warmup_optimizer_steps": 2}
SLOW_S = 0.05


def split(rank: int = 0, *, spec: Any, slow_link: bool = False) -> dict[str, float]:
    world_size = spec.layout.world_size
    trainer = build_trainer(spec, process=ProcessContext(rank=rank, world_size=world_size))
    all_reduce = dist.all_reduce
    if slow_link:
        dist.all_reduce = _slowly(all_reduce)
    try:
        return measure_split(trainer, progress=RunProgress(), num_pairs=3, flags=lambda: (False, False))
    finally:
        dist.all_reduce = all_reduce


def _slowly(function: Any) -> Any:
    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(SLOW_S)
        return function(*args, **kwargs)

    return slow


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (ToyData, "batch", "data"),
        (ToyRegression, "loss", "compute"),
        (torch.optim.SGD, "_init_group", "optimizer"),
    ],
)
def test_the_slow_part_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, part: str) -> None:
    monkeypatch.setattr(owner, name, _slowly(getattr(owner, name)))
    found = split(spec=toy_spec(layout=(4, 1, 1)))
    assert set(found) == {"data", "optimizer", "compute"}
    assert found.pop(part) >= SLOW_S
    assert max(found.values()) < SLOW_S


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [{}, {"sync_every_micro_step": True}])
def test_a_slow_link_is_exposed(options: dict[str, bool]) -> None:
    spec = toy_spec(layout=(2, 2, 2), strategy="ddp", strategy_options=options)
    found = run_on_ranks(2, split, spec=spec, slow_link=True)[0]
    assert found["exposed_communication"] >= 2 * SLOW_S  # the gradients, and the ranks' agreement
    assert max(found["compute"], found["data"], found["optimizer"]) < SLOW_S


def muted_calls(rank: int, *, spec: Any) -> tuple[int, int]:
    """Calls of torch's collectives in a muted and in an ordinary optimizer step."""
    from gasweep.training.advance import Stepper

    trainer = build_trainer(spec, process=ProcessContext(rank=rank, world_size=2))
    stepper = Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))
    for _ in range(2):  # in its second step DDP rebuilds its buckets, which talks
        stepper.attempt()
    with trainer.parts.strategy.meter.muted():
        muted = _gloo_calls(stepper)
    return muted, _gloo_calls(stepper)


def _gloo_calls(stepper: Any) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        stepper.attempt()
    return sum(event.name.startswith("gloo:") for event in profiler.events())


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_muted_step_sends_nothing(strategy: str) -> None:
    muted, spoken = run_on_ranks(2, muted_calls, spec=toy_spec(layout=(2, 2, 2), strategy=strategy))[0]
    assert muted == 0 < spoken


@pytest.mark.multiprocess
def test_a_probe_reports_the_split_beside_its_timed_steps() -> None:
    spec = toy_spec(kind="probe", layout=(2, 2, 4), sweep=PROBE)
    result = run_on_ranks(2, train_toy, spec=spec)[0][0]
    assert set(result.throughput.seconds_split) == {"data", "optimizer", "compute", "exposed_communication"}
    assert result.optimizer_steps == 8


def test_a_bitwise_probe_has_no_split() -> None:
    spec = toy_spec(kind="probe", layout=(2, 1, 4), sweep=PROBE, determinism="bitwise", grain=2)
    assert train_toy(spec=spec)[0].throughput.seconds_split == {}


def test_measuring_leaves_no_hooks_on_the_optimizer() -> None:
    trainer = build_trainer(toy_spec(layout=(4, 1, 1)), process=ProcessContext())
    before = copy.copy(trainer.optimizer._optimizer_step_pre_hooks)
    measure_split(trainer, progress=RunProgress(), num_pairs=1, flags=lambda: (False, False))
    assert trainer.optimizer._optimizer_step_pre_hooks == before
