"""`GradientNoiseScale` under syncs that round, and beside FSDP2 parameters that are not sharded."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gasweep.analysis.noise_scale import NoiseMeasurement
from gasweep.training.gradient_noise import GradientNoiseScale
from tests.training.ranks import RankError, run_on_ranks
from tests.training.test_gradient_noise_ranks import B, assert_close, batches, build, hold

pytestmark = pytest.mark.multiprocess


def bf16_hook(state, bucket):
    sent = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())

    def done(future):
        return bucket.buffer().copy_(future.value()[0])

    return dist.all_reduce(sent, async_op=True).get_future().then(done)


bf16_hook.__annotations__ = {}


def low_precision(rank: int, strategy: str, steps: int) -> int:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    if strategy == "fsdp":
        fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    else:
        model = DistributedDataParallel(model)
        model.register_comm_hook(None, bf16_hook)
    noise = GradientNoiseScale(model, micro_batch_size=8, every=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(10 + rank)
    for _ in range(steps):
        for number in range(2):
            x = torch.randn(8, 8, generator=generator)
            y = x[:, :1] + 3 + torch.randn(8, 1, generator=generator)
            with hold(model, strategy, number == 1):
                ((model(x) - y).square().mean() / 2).backward()
        noise.step()
        optimizer.step()
        optimizer.zero_grad()
    return len([step for step in noise.steps() if isinstance(step, NoiseMeasurement)])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_no_step_of_a_sync_in_bf16_is_refused(strategy):
    assert run_on_ranks(2, low_precision, strategy, 150) == [150, 150]


def partly_sharded(rank: int, strategy: str, averages: bool):
    model = build()
    if strategy == "ignored":
        fully_shard(model, ignored_params=set(model[0].parameters()))
    elif strategy == "one block":
        fully_shard(model[2])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    world_size = 1 if strategy == "single" else 2
    noise = GradientNoiseScale(
        model, micro_batch_size=B, every=1, parameter_group=lambda name: name[0], optimizer=optimizer
    )
    for step in range(2):
        optimizer.zero_grad()
        own = batches(step, 4)[rank::world_size]
        for x, y, _ in own:
            (functional.cross_entropy(model(x), y) / len(own)).backward()
        for parameter in model[0].parameters():
            if averages:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
        noise.step()
        optimizer.step()
    measured = [step for label in (None, "0", "2") for step in noise.steps(label=label)]
    adams = noise.steps(metric="adam", label="0")
    assert [type(step) for step in adams] == [NoiseMeasurement]
    return [(m.grad_noise_trace, m.grad_sq_norm, m.num_groups, m.num_examples) for m in measured]


@pytest.mark.parametrize("strategy", ["ignored", "one block"])
def test_parameters_that_fsdp2_leaves_whole_count_once(strategy):
    single = partly_sharded(0, "single", False)
    for found in run_on_ranks(2, partly_sharded, strategy, True):
        assert_close(found, single)


def test_a_whole_parameter_that_nobody_syncs_is_named():
    with pytest.raises(RankError, match=r"final gradient of 0\.\w+ \(not sharded by fully_shard: average"):
        run_on_ranks(2, partly_sharded, "one block", False)
