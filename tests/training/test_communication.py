"""How often the ranks talk, counted at the collective and checked against torch's own profiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from gasweep.errors import RefusedError
from gasweep.training.meter import CommunicationMeter, StepTraffic
from gasweep.training.throughput import communication_records
from tests.training.ranks import RankError, run_on_ranks
from tests.training.toys import gradients_of, toy_spec, train_toy

G = 4
NUM_BYTES = 66 * 4  # the toy model's parameters in fp32


KEPT = {"reshard_after_forward": False, "reshard_after_backward": False}


def metered(
    strategy: str,
    *,
    layout: tuple[int, int, int] = (2, 2, G),
    task: str = "ToyRegression",
    arguments: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Traffic of the second optimizer step, the first of which sets FSDP up."""
    spec = toy_spec(
        layout=layout, strategy=strategy, task=task, arguments=arguments, strategy_options=options
    )
    return run_on_ranks(layout[1], gradients_of, spec=spec, num_steps=2)[0][2]


def saving(traffic: Any) -> float:
    return 1 - traffic.model.total_bytes / traffic.unsynced_bytes


@pytest.mark.multiprocess
def test_c03_ddp_reduces_once_per_optimizer_step() -> None:
    traffic = metered("ddp")
    assert traffic.model.calls == {"all_reduce": 1}
    assert traffic.model.units == 2
    assert traffic.model.total_bytes == NUM_BYTES  # 2 units, half of which each of two ranks sends
    assert traffic.unsynced_bytes == G * NUM_BYTES
    assert saving(traffic) == pytest.approx(0.75)


@pytest.mark.multiprocess
def test_c03_fsdp_keeps_its_all_gathers() -> None:
    """Two sharded layers: 16 all-gathers + 8 reduce-scatters become 16 + 2, a saving of 25 %."""
    traffic = metered("fsdp")
    assert traffic.model.calls == {"all_gather": 16, "reduce_scatter": 2}
    assert saving(traffic) == pytest.approx(0.25, abs=0.01)
    every = metered("fsdp", sync_every_micro_step=True)
    assert every.model.calls == {"all_gather": 16, "reduce_scatter": 8}
    assert every.model.total_bytes == traffic.unsynced_bytes
    assert saving(every) == 0


@pytest.mark.multiprocess
def test_c03_fsdp_without_resharding_after_forward() -> None:
    """8 + 8 become 8 + 2, a saving of 37.5 %."""
    traffic = metered("fsdp", reshard_after_forward=False)
    assert traffic.model.calls == {"all_gather": 8, "reduce_scatter": 2}
    assert saving(traffic) == pytest.approx(0.375, abs=0.01)
    every = metered("fsdp", reshard_after_forward=False, sync_every_micro_step=True)
    assert every.model.calls == {"all_gather": 8, "reduce_scatter": 8}


@pytest.mark.multiprocess
def test_c03_fsdp_kept_unsharded_gathers_once() -> None:
    """One all-gather per layer and optimizer step: 75 % saved, as under DDP, for the parameters' memory."""
    traffic = metered("fsdp", reshard_after_forward=False, reshard_after_backward=False)
    assert traffic.model.calls == {"all_gather": 2, "reduce_scatter": 2}
    assert saving(traffic) == pytest.approx(0.75, abs=0.01)


@pytest.mark.multiprocess
@pytest.mark.parametrize("reshard", [{}, {"reshard_after_forward": False}, KEPT])
@pytest.mark.parametrize("model", [{"calls": 2}, {"skips": True}])
def test_what_a_sync_every_time_would_send_is_what_it_sends(model: Any, reshard: Any) -> None:
    """Of a layer that is called twice in a forward, or not in every one, too."""
    options = {**reshard, "find_unused_parameters": "skips" in model}
    held, every = (
        metered("fsdp", task="ToySharedLayer", arguments=model, sync_every_micro_step=sync, **options)
        for sync in (False, True)
    )
    assert held.unsynced_bytes == every.unsynced_bytes == every.model.total_bytes > held.model.total_bytes


@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_c03_one_micro_step_saves_nothing(strategy: str) -> None:
    traffic = metered(strategy, layout=(4, 2, 1))
    assert traffic.model.total_bytes == traffic.unsynced_bytes > 0


def test_c03_one_rank_sends_nothing() -> None:
    traffic = gradients_of(spec=toy_spec(layout=(4, 1, 4)))[2]
    assert traffic.model.total_bytes == traffic.unsynced_bytes == traffic.control.total_bytes == 0


@pytest.mark.multiprocess
def test_ddp_sends_exactly_one_gth_of_every_micro_step_sync() -> None:
    for steps in (1, 2, 8):
        held = metered("ddp", layout=(1, 2, steps))
        every = metered("ddp", layout=(1, 2, steps), sync_every_micro_step=True)
        assert every.model.total_bytes == steps * held.model.total_bytes == held.unsynced_bytes


def count_profiled(rank: int, *, spec: Any) -> tuple[dict[str, int], Any]:
    """Collective operators that torch ran in the whole call, by kind, and what the meter counted."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        traffic = gradients_of(rank, spec=spec)[2]
    events = [event.name for event in profiler.events() if event.name.startswith("gloo:")]
    return {name: events.count(name) for name in set(events)}, traffic


@pytest.mark.multiprocess
def test_c03_the_meter_agrees_with_the_profiler() -> None:
    spec = toy_spec(layout=(2, 2, G), strategy="ddp")
    profiled, traffic = run_on_ranks(2, count_profiled, spec=spec)[0]
    assert (
        profiled["gloo:all_reduce"] == traffic.model.calls["all_reduce"] + traffic.control.calls["all_reduce"]
    )


def reductions(rank: int, *, inside: str) -> tuple[int, float]:
    """Buckets reduced in one optimizer step of 4 micro-steps, and the gradient, by what no_sync encloses."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    count = 0

    def hook(_: object, bucket: Any) -> Any:
        nonlocal count
        count += 1
        buffer = bucket.buffer() / 2
        return torch.distributed.all_reduce(buffer, async_op=True).get_future().then(lambda f: f.value()[0])

    model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    for i in range(G):
        held = i < G - 1
        with model.no_sync() if held and inside != "backward" else _nothing():
            loss = model(torch.tensor([[(rank + 1.0) * (i + 1.0)]])).sum() / G
            if inside == "both":
                loss.backward()
        if inside != "both":
            with model.no_sync() if held and inside == "backward" else _nothing():
                loss.backward()
    assert model.module.weight.grad is not None
    return count, float(model.module.weight.grad)


def _nothing() -> Any:
    return torch.enable_grad()


@pytest.mark.multiprocess
def test_c20_no_sync_must_enclose_the_forward() -> None:
    """Why the strategy's no_sync is entered around the whole micro-step: DDP decides in the forward."""
    assert run_on_ranks(2, reductions, inside="both") == [(1, 3.75)] * 2
    assert run_on_ranks(2, reductions, inside="backward") == [(4, 3.75)] * 2


def held_elements(rank: int, *, options: dict[str, Any]) -> list[int]:
    """Gradient elements this rank holds after each micro-step of one optimizer step."""
    from gasweep.training.build import build_trainer
    from gasweep.training.fast_accumulator import FastAccumulator
    from gasweep.training.process import ProcessContext
    from tests.training.toys import Recorder, RunProgress, Stepper

    spec = toy_spec(layout=(2, 2, 4), strategy="fsdp", arguments={"width": 64}, strategy_options=options)
    trainer = build_trainer(spec, process=ProcessContext(rank=rank, world_size=2))
    counts: list[int] = []
    accumulate = FastAccumulator.accumulate

    def counting(self: FastAccumulator, *args: Any, **kwargs: Any) -> None:
        accumulate(self, *args, **kwargs)
        held = 0
        for module in trainer.parts.module:  # type: ignore[attr-defined]
            state = getattr(module, "_get_fsdp_state", None)
            for group in state()._fsdp_param_groups if state else ():
                for parameter in group.fsdp_params:
                    whole, shard = parameter._unsharded_param.grad, parameter.sharded_param.grad
                    held += 0 if whole is None else whole.numel()
                    held += 0 if shard is None else shard.to_local().numel()
        counts.append(held)

    FastAccumulator.accumulate = counting  # type: ignore[method-assign]
    try:
        Stepper(trainer, progress=RunProgress(), sink=Recorder(), flags=lambda: (False, False)).attempt()
    finally:
        FastAccumulator.accumulate = accumulate  # type: ignore[method-assign]
    return counts


@pytest.mark.multiprocess
def test_c22_fsdp_holds_whole_gradients_between_micro_steps() -> None:
    """P elements while accumulating instead of P/N: g·P·(1 - 1/N) bytes more, which syncing gives back."""
    parameters = 5 * 64 + 64 + 64 * 2 + 2
    assert run_on_ranks(2, held_elements, options={})[0] == [parameters] * 3 + [parameters // 2]
    synced = run_on_ranks(2, held_elements, options={"sync_every_micro_step": True})[0]
    assert synced == [parameters // 2] * 4


@pytest.mark.multiprocess
def test_c67_static_graph_is_refused_where_no_sync_hides_the_graph() -> None:
    with pytest.raises(RankError, match="static_graph=true cannot be combined with accumulation_steps=4"):
        metered("ddp", static_graph=True)
    for options in ({"layout": (2, 2, 1)}, {"sync_every_micro_step": True}):
        assert metered("ddp", static_graph=True, **options).model.calls["all_reduce"] >= 1


@pytest.mark.multiprocess
def test_c67_branches_used_only_in_early_micro_steps() -> None:
    """Without the option DDP's complaint becomes one line that names it; with it no branch is lost."""
    common: dict[str, Any] = {"task": "ToyBranches", "arguments": {"dtype": "float64"}, "precision": "fp64"}
    reference = gradients_of(spec=toy_spec(layout=(8, 1, 1), **common))[0]
    for strategy in ("ddp", "fsdp"):
        spec = toy_spec(
            layout=(1, 2, 4), strategy=strategy, strategy_options={"find_unused_parameters": True}, **common
        )
        for gradients, _, _ in run_on_ranks(2, gradients_of, spec=spec):
            for name, expected in reference.items():
                torch.testing.assert_close(torch.tensor(gradients[name]), torch.tensor(expected))
    with pytest.raises(RankError, match=r"strategy_options\.find_unused_parameters=true"):
        run_on_ranks(2, train_toy, spec=toy_spec(layout=(1, 2, 4), strategy="ddp", **common))


@pytest.mark.multiprocess
def test_sharded_branches_that_ranks_take_differently_are_told() -> None:
    """FSDP gathers whatever the other rank is at: of equal sizes it would train on mixed-up parameters."""
    spec = toy_spec(
        layout=(1, 2, 4),
        strategy="fsdp",
        task="ToyBranches",
        arguments={"shard_branches": True},
        strategy_options={"find_unused_parameters": True},
    )
    with pytest.raises(RankError, match="the ranks ran different sharded submodules"):
        run_on_ranks(2, train_toy, spec=spec)


def test_wire_bytes_of_each_collective() -> None:
    meter = CommunicationMeter(world_size=4)
    assert meter.wire_bytes("all_gather", 1000) == meter.wire_bytes("reduce_scatter", 1000) == 750
    assert meter.wire_bytes("all_reduce", 1000) == 1500
    meter.count("all_reduce", torch.empty(250))
    meter.count("all_reduce", torch.empty(1, dtype=torch.float64), control=True)
    assert (meter.model.units, meter.model.total_bytes, meter.control.total_bytes) == (2, 1500, 12)
    assert CommunicationMeter(world_size=1).wire_bytes("all_reduce", 1000) == 0


def test_traffic_is_told_apart_by_dtype_and_group() -> None:
    meter = CommunicationMeter(world_size=4)
    meter.group_sizes["tensor"] = 2
    for _ in range(2):
        meter.count("all_gather", torch.empty(100, dtype=torch.bfloat16))
    meter.count("all_gather", torch.empty(100))
    meter.count("all_reduce", torch.empty(100), group="tensor")
    traffic = StepTraffic(model=meter.model, control=meter.control, unsynced_bytes=0)
    found = [
        (sent.collective, sent.dtype, sent.group, sent.num_ranks, sent.calls, sent.num_bytes)
        for sent in communication_records(traffic, meter.group_sizes)
    ]
    assert found == [
        ("all_gather", "bfloat16", "data", 4, 2, 300),
        ("all_gather", "float32", "data", 4, 1, 300),
        ("all_reduce", "float32", "tensor", 2, 1, 400),
    ]
    assert meter.model.calls == {"all_gather": 3, "all_reduce": 1}
    assert (meter.model.bytes_of("all_gather"), meter.model.bytes_of("all_reduce")) == (600, 400)


@pytest.mark.multiprocess
def test_a_bf16_model_gathers_in_bf16_and_reduces_in_fp32() -> None:
    """What `_policy` of the strategy promises, read off the wire."""
    spec = toy_spec(layout=(2, 2, G), strategy="fsdp", arguments={"dtype": "bfloat16"})
    sent = run_on_ranks(2, gradients_of, spec=spec, num_steps=2)[0][2].model.by_collective
    assert {(kind.name, kind.dtype, kind.group) for kind in sent} == {
        ("all_gather", torch.bfloat16, "data"),
        ("reduce_scatter", torch.float32, "data"),
    }


def test_static_graph_error_is_the_users_to_mend() -> None:
    assert RefusedError.exit_code == 2
