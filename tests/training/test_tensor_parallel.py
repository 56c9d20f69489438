"""Accumulation over a tensor-parallel micro-batch gives the gradient of the whole batch on one process."""

import dataclasses
import math

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.profiler import ProfilerActivity, profile

from gasweep.config.run_spec import Layout
from gasweep.data.index_stream import IndexStream
from gasweep.training import ProcessContext
from gasweep.training.build import build_trainer
from gasweep.training.fast_accumulator import FastAccumulator
from gasweep.training.meter import Collective, CommunicationMeter, Sent, StepTraffic
from gasweep.training.parts import TrainingParts
from gasweep.training.planner import StepPlanner
from gasweep.training.precision import Precision
from gasweep.training.randomness import seed_everything
from gasweep.training.step import OptimizerStep
from gasweep.training.strategies.model_collectives import ModelCollectives
from gasweep.training.strategies.tensor_parallel import TensorParallelStrategy
from tests.training.ranks import run_on_ranks
from tests.training.toys import toy_spec

SIZE = 2  # tensor-parallel ranks of each data-parallel one
B = 22  # ragged: 11 examples per data-parallel rank, in groups of 4, 4 and 3
PLAN = {"0": ColwiseParallel(), "3": RowwiseParallel()}
SPEC = toy_spec(
    layout=(4, 2, 3),
    effective_batch_size=B,
    arguments={"dtype": "float64"},
    precision="fp64",
    optimizer={"max_grad_norm": 0.1},
)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def plan_of(planner, *, micro_batch_size):
    return planner.plan(
        optimizer_step=0, contributions=0, effective_batch_size=B, micro_batch_size=micro_batch_size
    )


def measured(step, planner, parameters, *, micro_batch_size):
    """(gradient norm, clipped gradients, updated parameters) of one step of SGD."""
    outcome = step.run(plan_of(planner, micro_batch_size=micro_batch_size), learning_rate=0.1)
    return (
        float(outcome.grad_norm),
        {name: whole(tensor.grad) for name, tensor in parameters},
        {name: whole(tensor) for name, tensor in parameters},
    )


def one_process():
    layout = Layout(micro_batch_size=B, world_size=1, accumulation_steps=1)
    return build_trainer(dataclasses.replace(SPEC, layout=layout), process=ProcessContext())


def on_one_process():
    trainer = one_process()
    return measured(trainer.step, trainer.planner, trainer.parts.parameters, micro_batch_size=B)


def on_the_mesh(rank):
    """The same through `TensorParallelStrategy`, put together by hand: no config asks for it."""
    process = ProcessContext(rank=rank // SIZE, world_size=SPEC.layout.world_size)
    reference = one_process().parts
    precision = Precision("fp64", device=torch.device("cpu"))
    seed_everything(SPEC.seed, "init", cuda=False)
    module = reference.task.build_model().double().train()
    strategy = TensorParallelStrategy(
        tensor_parallel_size=SIZE,
        plan=PLAN,
        process=process,
        options=SPEC.config.strategy_options,
        meter=CommunicationMeter(world_size=process.world_size),
        accumulation_steps=SPEC.layout.accumulation_steps,
    )
    model = strategy.prepare(module, units=None)
    parameters = list(module.named_parameters())
    parts = TrainingParts(
        spec=SPEC,
        process=process,
        device=precision.device,
        task=reference.task,
        data=reference.data,
        stream=IndexStream(num_examples=len(reference.data), seed=reference.stream.seed),
        strategy=strategy,
        precision=precision,
        model=model,
        module=module,
        parameters=parameters,
    )
    optimizer = torch.optim.SGD([tensor for _, tensor in parameters], lr=0.1, foreach=False)
    step = OptimizerStep(
        parts, accumulator=FastAccumulator(parts), optimizer=optimizer, main=None, observer=None
    )
    placements = {name: str(tensor.placements) for name, tensor in parameters}
    planner = StepPlanner(parts)
    found = measured(step, planner, parameters, micro_batch_size=4)
    traffic = StepTraffic(
        model=strategy.meter.model,
        control=strategy.meter.control,
        unsynced_bytes=strategy.unsynced_bytes(SPEC.layout.accumulation_steps),
    )
    strategy.meter.reset()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step.run(plan_of(planner, micro_batch_size=4), learning_rate=0.1)
    profiled = [event.name for event in profiler.events()].count("gloo:all_reduce")
    # gloo scatters a sum by an all-reduce of its own.
    again = sum(strategy.meter.model.calls[name] for name in ("all_reduce", "reduce_scatter"))
    again += strategy.meter.control.calls["all_reduce"]
    return *found, placements, traffic, (profiled, again)


@pytest.mark.multiprocess
def test_accumulation_is_orthogonal_to_tensor_parallelism():
    norm, gradients, parameters = on_one_process()
    for found in run_on_ranks(4, on_the_mesh):
        found_norm, found_gradients, found_parameters, placements, traffic, *_ = found
        assert placements["0.weight"].count("Shard") == 2
        assert math.isclose(found_norm, norm, rel_tol=1e-12)
        for name in gradients:
            torch.testing.assert_close(found_gradients[name], gradients[name], rtol=0, atol=1e-14)
            torch.testing.assert_close(found_parameters[name], parameters[name], rtol=0, atol=1e-14)
        assert traffic.model.calls["reduce_scatter"] == 1


@pytest.mark.multiprocess
def test_collectives_inside_the_model_are_counted():
    """The second layer's output is summed over the T ranks, once per micro-batch, 2 values of 8 bytes for
    each of 11 examples; torch's profiler sees as many calls, those for the gradient's norm included."""
    for *_, traffic, (profiled, counted) in run_on_ranks(4, on_the_mesh):
        inside = traffic.model.by_collective[Collective("all_reduce", torch.float64, "tensor")]
        assert (inside.calls, inside.num_bytes) == (3, 11 * 2 * 8)
        assert profiled == counted > 3
        assert traffic.control.calls["all_reduce"] == counted - 4
        assert traffic.unsynced_bytes - traffic.model.total_bytes == 2 * traffic.model.bytes_of(
            "reduce_scatter"
        )


def exchange_a_dimension(rank):
    """Calls of what DTensor uses on accelerators to move a shard from one dimension to another."""
    meter = CommunicationMeter(world_size=2)
    group = torch.distributed.group.WORLD.group_name
    with ModelCollectives(meter, groups={group: "data"}):
        torch.ops._dtensor.shard_dim_alltoall(torch.ones(2, 4), 0, 1, group)
    return meter.model.by_collective


@pytest.mark.multiprocess
def test_dtensors_own_all_to_all_is_counted():
    for sent in run_on_ranks(2, exchange_a_dimension):
        assert sent == {Collective("all_to_all", torch.float32, "data"): Sent(calls=1, num_bytes=16)}
