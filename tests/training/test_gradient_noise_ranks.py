"""`GradientNoiseScale` on several ranks: DDP and FSDP2 agree with one process holding all groups."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gasweep.analysis.noise_scale import NOT_FINITE, NoiseMeasurement, NotMeasured, measure_groups
from gasweep.errors import MeasurementError
from gasweep.training.gradient_noise import GradientNoiseScale
from gasweep.training.gradient_noise_ranks import UNEQUAL_DIVISORS
from tests.training.ranks import RankError, run_on_ranks

pytestmark = pytest.mark.multiprocess

B, STEPS = 4, 3


def build(hidden: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3))


def batches(step: int, count: int, *, size: int = B):
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(count, size, 6, generator=generator)
    targets = torch.randint(0, 3, (count, size), generator=generator)
    lengths = torch.randint(1, 6, (count, size), generator=generator)
    return list(zip(inputs, targets, lengths, strict=True))


def wrapped(strategy: str) -> nn.Module:
    model = build()
    if strategy == "ddp":
        return DistributedDataParallel(model)
    if strategy.startswith("fsdp"):
        reshard = strategy != "fsdp_keep"
        low = torch.bfloat16 if strategy == "fsdp_bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        fully_shard(model[0], reshard_after_forward=reshard, mp_policy=policy)
        fully_shard(model, reshard_after_forward=reshard, mp_policy=policy)
    return model


def hold(model: nn.Module, strategy: str, last: bool):
    if strategy == "ddp" and not last:
        return model.no_sync()
    if strategy.startswith("fsdp"):
        model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def measure(rank: int, strategy: str, world_size: int, groups_per_rank: int, loss: str = "mean", adam=False):
    """Values of each step: plain, or of Adam's metric."""
    model = wrapped(strategy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    noise = GradientNoiseScale(
        model,
        micro_batch_size=B if loss == "mean" else None,
        loss_reduction="mean" if loss == "mean" else "sum",
        items_differ=loss == "items",
        optimizer=optimizer if adam else None,
        every=1,
        parameter_group=lambda name: name.split(".")[0],
    )
    for step in range(STEPS):
        groups = batches(step, world_size * groups_per_rank)
        total = float(sum(lengths.sum() for _, _, lengths in groups))
        optimizer.zero_grad()
        for number, (x, y, lengths) in enumerate(groups[rank::world_size]):
            explicit = noise.group(num_examples=len(y), num_items=float(lengths.sum()))
            with hold(model, strategy, number == groups_per_rank - 1):
                if loss == "mean":
                    (functional.cross_entropy(model(x), y) / groups_per_rank).backward()
                else:
                    with explicit:
                        each = functional.cross_entropy(model(x), y, reduction="none")
                        ((each * lengths).sum() * world_size / total).backward()
        noise.step(loss_divisor=None if loss == "mean" else total / world_size)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    metric = "adam" if adam else "plain"
    return [
        (m.grad_noise_trace, m.grad_sq_norm, m.num_groups, m.num_examples)
        for label in (None, "0", "2")
        for m in noise.steps(metric=metric, label=label)
        if isinstance(m, NoiseMeasurement)
    ]


def assert_close(found, expected, rel=2e-5):
    assert len(found) == len(expected) > 0
    for one, two in zip(found, expected, strict=True):
        assert one[0] == pytest.approx(two[0], rel=rel)
        assert one[1] == pytest.approx(two[1], rel=rel, abs=rel * two[0])
        assert one[2:] == two[2:]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp_keep"])
@pytest.mark.parametrize("groups_per_rank", [1, 3])
def test_every_factorisation_sees_the_same_groups(strategy, groups_per_rank):
    single = measure(0, "single", 1, 2 * groups_per_rank)
    for found in run_on_ranks(2, measure, strategy, 2, groups_per_rank):
        assert_close(found, single)


def test_bf16_compute_with_fp32_shards_is_squared_in_fp32():
    single = measure(0, "single", 1, 2)
    for found in run_on_ranks(2, measure, "fsdp_bf16", 2, 1):
        for one, two in zip(found[:1], single[:1], strict=True):
            assert one[0] == pytest.approx(two[0], rel=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_adams_metric_and_items_on_whole_and_sharded_gradients(strategy):
    """Whole gradients give the single process's numbers. A rank of a sharded model sees its own groups on
    the coordinates it owns: another unbiased estimate, with the same number of groups."""
    for loss, adam in (("mean", True), ("items", False)):
        single = measure(0, "single", 1, 4, loss, adam)
        found = run_on_ranks(2, measure, strategy, 2, 2, loss, adam)
        assert found[0] == found[1]
        if strategy == "ddp":
            assert_close(found[0], single, rel=1e-4)
        else:
            assert len(found[0]) == len(single)
            for one, two in zip(found[0], single, strict=True):
                assert one[0] == pytest.approx(two[0], rel=0.9)
                assert one[2:] == two[2:]


def sharded_average(rank: int, loss: str, adam: bool) -> tuple[list[float], list[float]]:
    """Mean (tr Σ, |G|²) over many draws at fixed parameters, sharded and whole."""
    means = []
    for strategy in ("fsdp", "ddp"):
        model = wrapped(strategy)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0, eps=1e-2)
        noise = GradientNoiseScale(
            model,
            loss_reduction="sum",
            items_differ=loss == "items",
            optimizer=optimizer if adam else None,
            every=1,
        )
        values = []
        for step in range(151):
            groups = batches(step, 4, size=2)
            weights = [g[2] if loss == "items" else torch.ones(2) for g in groups]
            total = float(sum(weight.sum() for weight in weights))
            optimizer.zero_grad()
            for number, (x, y, _) in enumerate(groups[rank::2]):
                weight = weights[rank::2][number]
                with hold(model, strategy, number == 1), noise.group(num_examples=2, num_items=weight.sum()):
                    each = functional.cross_entropy(model(x), y, reduction="none")
                    ((each * weight).sum() * 2 / total).backward()
            noise.step(loss_divisor=total / 2)
            if step == 0:
                optimizer.step()
        for m in noise.steps(metric="adam" if adam else "plain"):
            assert isinstance(m, NoiseMeasurement)
            values.append((m.grad_noise_trace, m.grad_sq_norm))
        means.append(torch.tensor(values[-150:]).mean(dim=0).tolist())
    return means[0], means[1]


@pytest.mark.parametrize(("loss", "adam"), [("examples", True), ("items", False), ("items", True)])
def test_what_a_rank_sees_of_its_own_coordinates_is_unbiased(loss, adam):
    sharded, whole = run_on_ranks(2, sharded_average, loss, adam)[0]
    assert sharded[0] == pytest.approx(whole[0], rel=0.06)
    assert sharded[1] == pytest.approx(whole[1], abs=0.06 * whole[0])


def misuse(rank: int, mistake: str):
    model = build() if mistake in ("bare", "by hand") else DistributedDataParallel(build())
    group = dist.group.WORLD if mistake == "by hand" else None
    noise = GradientNoiseScale(
        model, micro_batch_size=B, every=1, process_group=group, ranks_average=group is None
    )
    if mistake == "16 bits":
        model.register_comm_hook(None, fp16_compress_hook)
    x, y, _ = batches(0, 2)[rank]
    if mistake == "nan" and rank == 1:
        x = x * float("nan")
    for _ in range(2):
        (functional.cross_entropy(model(x), y) / 2).backward()
    if mistake in ("bare", "by hand"):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    return noise.step()


def test_a_nan_on_one_rank_leaves_the_step_out_on_all():
    results = run_on_ranks(2, misuse, "nan")
    assert results == [NotMeasured(reason=NOT_FINITE)] * 2


def test_a_model_that_does_not_tell_its_ranks_is_an_error():
    with pytest.raises(RankError, match="wrap the synced model") as caught:
        run_on_ranks(2, misuse, "bare")
    assert MeasurementError.__name__ in str(caught.value)


def test_a_sum_made_by_hand_is_measured_once_its_group_is_given():
    found = run_on_ranks(2, misuse, "by hand")
    ddp = run_on_ranks(2, misuse, "none")
    assert isinstance(found[0], NoiseMeasurement)
    assert found[0].num_groups == 4
    assert found[0].grad_noise_trace == pytest.approx(ddp[0].grad_noise_trace, rel=1e-4)
    assert found[0].grad_sq_norm == pytest.approx(ddp[0].grad_sq_norm, rel=1e-4)


def test_a_sync_in_16_bits_is_no_mistake():
    found, exact = run_on_ranks(2, misuse, "16 bits"), run_on_ranks(2, misuse, "none")
    assert found[0].grad_noise_trace == pytest.approx(exact[0].grad_noise_trace, rel=1e-2)


def measure_unequal(rank: int, loss: str):
    """Three groups on rank 0, two on rank 1, each rank dividing by its own count; and the truth."""
    model = DistributedDataParallel(build())
    noise = GradientNoiseScale(
        model,
        micro_batch_size=B,
        every=1,
        loss_reduction="mean" if loss == "mean" else "sum",
        items_differ=loss == "items",
    )
    groups = batches(0, 5)
    own = groups[:3] if rank == 0 else groups[3:]
    for number, (x, y, _) in enumerate(own):
        last = number == len(own) - 1
        with hold(model, "ddp", last), noise.group(num_examples=B, num_items=float(B)):
            (functional.cross_entropy(model(x), y) / len(own)).backward()
    found = noise.step(loss_divisor=None if loss == "mean" else float(B * len(own)))
    noise.close()
    gradients = []
    for x, y, _ in groups:
        each = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
        gradients.append(torch.cat([gradient.flatten() for gradient in each]).double())
    weights = torch.tensor([1 / 6] * 3 + [1 / 4] * 2, dtype=torch.float64)
    truth = measure_groups(
        [float(gradient @ gradient) for gradient in gradients],
        counts=[B] * 5,
        weights=weights.tolist(),
        mean_sq_norm=float((weights @ torch.stack(gradients)).square().sum()),
    )
    return found, truth


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_ranks_that_divide_by_their_own_counts_weigh_their_groups_so(loss):
    for found, truth in run_on_ranks(2, measure_unequal, loss):
        assert found.grad_noise_trace == pytest.approx(truth.grad_noise_trace, rel=1e-5)
        assert found.grad_sq_norm == pytest.approx(
            truth.grad_sq_norm, rel=1e-5, abs=1e-5 * truth.grad_noise_trace
        )
        assert found.num_groups == 5


def test_sums_over_unequal_items_need_one_divisor_for_all_ranks():
    for found, _ in run_on_ranks(2, measure_unequal, "items"):
        assert found == NotMeasured(reason=UNEQUAL_DIVISORS)


def find_spacing(rank: int):
    model = DistributedDataParallel(build())
    noise = GradientNoiseScale(model, micro_batch_size=B, overhead_fraction=0.1)
    for step in range(32):
        x, y, _ = batches(step, 2)[rank]
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        noise.step()
    return noise.every


def test_ranks_agree_on_the_spacing():
    found = run_on_ranks(2, find_spacing)
    assert found[0] == found[1]
    assert found[0] is not None
