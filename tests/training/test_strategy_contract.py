"""The strategy contract, held by every implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gasweep.config.schema import StrategyOptions
from gasweep.errors import ConfigError
from gasweep.training.process import ProcessContext
from gasweep.training.strategies import build_strategy
from gasweep.training.strategies.base import Strategy, trainable
from tests.training.ranks import run_on_ranks

CASES = [("single", 1), ("ddp", 2), ("fsdp", 2)]
contract = pytest.mark.parametrize(("name", "world_size"), CASES)
pytestmark = pytest.mark.multiprocess


def model() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    net.register_buffer("scale", torch.tensor([2.0]))
    net[0].bias.requires_grad_(False)
    return net


def prepared(rank: int, name: str, world_size: int, **options: Any) -> tuple[Strategy, nn.Module]:
    torch.manual_seed(100 + rank)
    net = model()
    if rank > 0:  # only rank 0's values count
        with torch.no_grad():
            for tensor in [*net.parameters(), *net.buffers()]:
                tensor.add_(1.0)
    strategy = build_strategy(
        name,
        process=ProcessContext(rank=rank, world_size=world_size),
        options=StrategyOptions(**options),
        accumulation_steps=2,
    )
    return strategy, strategy.prepare(net, units=[net[0], net[2]])


def examples(rank: int) -> Tensor:
    return torch.arange(12, dtype=torch.float64).reshape(4, 3).cos() + rank


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def reference_gradients(world_size: int, num_groups: int = 1) -> list[Tensor]:
    """Of Σ outputs over all ranks' groups, on one model."""
    net = model()
    for rank in range(world_size):
        for group in range(num_groups):
            net(examples(rank) + group).sum().backward()
    return [p.grad for p in trainable(net) if p.grad is not None]


def summed(rank: int, name: str, world_size: int) -> bool:
    strategy, net = prepared(rank, name, world_size)
    with strategy.no_sync():
        net(examples(rank)).sum().backward()
    net(examples(rank) + 1).sum().backward()
    found = [whole(p.grad) for p in trainable(strategy.module)]
    return all(
        torch.allclose(a, b, rtol=1e-12)
        for a, b in zip(found, reference_gradients(world_size, 2), strict=True)
    )


@contract
def test_gradients_are_summed_over_ranks_and_micro_steps(name: str, world_size: int) -> None:
    assert all(run_on_ranks(world_size, summed, name, world_size))


def state_of(rank: int, name: str, world_size: int) -> list[tuple[str, Tensor]]:
    strategy, _ = prepared(rank, name, world_size)
    return [(key, value.clone()) for key, value in strategy.full_state()]


@contract
def test_full_state_is_rank_0s_under_the_modules_own_names(name: str, world_size: int) -> None:
    net = model()
    expected = [*net.named_parameters(), *net.named_buffers()]
    for state in run_on_ranks(world_size, state_of, name, world_size):
        assert [key for key, _ in state] == [key for key, _ in expected]
        assert all(torch.equal(a, b.detach()) for (_, a), (_, b) in zip(state, expected, strict=True))


def own_of(rank: int, name: str, world_size: int) -> list[list[Tensor]]:
    strategy, net = prepared(rank, name, world_size)
    seen: list[list[Tensor]] = []
    for group in range(2):
        own: dict[int, Tensor] = {}
        with strategy.own_gradients(lambda i, g, own=own: own.__setitem__(i, g.clone())):
            if group == 0:
                with strategy.no_sync():
                    net(examples(rank)).sum().backward()
            else:
                net(examples(rank) + group).sum().backward()
        seen.append([own[index] for index in sorted(own)])
    return seen


@contract
def test_own_gradients_are_one_groups_on_one_rank_whole(name: str, world_size: int) -> None:
    for rank, seen in enumerate(run_on_ranks(world_size, own_of, name, world_size)):
        for group, gradients in enumerate(seen):
            net = model()
            net(examples(rank) + group).sum().backward()
            expected = [p.grad for p in trainable(net)]
            assert len(gradients) == len(expected) == 3
            assert all(torch.allclose(a, b) for a, b in zip(gradients, expected, strict=True))


def replaced(rank: int, name: str, world_size: int) -> list[float]:
    strategy, net = prepared(rank, name, world_size)
    with strategy.own_gradients(lambda _, gradient: torch.full_like(gradient, 1.0 + rank)):
        net(examples(rank)).sum().backward()
    net(examples(rank)).sum().backward() if name == "single" else None
    return [float(whole(p.grad).flatten()[0]) for p in trainable(strategy.module)]


@contract
def test_a_hooks_answer_takes_the_gradients_place(name: str, world_size: int) -> None:
    expected = {1: 1.0, 2: 3.0}[world_size]
    for values in run_on_ranks(world_size, replaced, name, world_size):
        base = reference_gradients(1) if name == "single" else None
        for index, value in enumerate(values):
            extra = 0.0 if base is None else float(base[index].flatten()[0])
            assert value == pytest.approx(expected + extra)


def norm_of(rank: int, name: str, world_size: int) -> float:
    strategy, net = prepared(rank, name, world_size)
    net(examples(rank)).sum().backward()
    return float(strategy.gradient_norm(list(trainable(strategy.module))))


@contract
def test_the_norm_is_of_the_whole_gradient(name: str, world_size: int) -> None:
    expected = torch.cat([g.flatten() for g in reference_gradients(world_size)]).norm()
    for found in run_on_ranks(world_size, norm_of, name, world_size):
        assert found == pytest.approx(float(expected), rel=1e-12)


def moved(rank: int, name: str, world_size: int, *, folder: Path, write: bool) -> list[Tensor]:
    strategy, _ = prepared(rank, name, world_size)
    tensors = {key: p.detach() for key, p in strategy.module.named_parameters()}
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.mul_(3.0 if write else 0.0)
    if write:
        strategy.write_tensors(tensors, folder)
    else:
        strategy.read_tensors(tensors, folder)
    return [value.clone() for key, value in strategy.full_state() if key != "scale"]


@pytest.mark.parametrize("reader", CASES)
@contract
def test_tensors_written_by_one_are_read_by_another(
    name: str, world_size: int, reader: tuple[str, int], tmp_path: Path
) -> None:
    written = run_on_ranks(world_size, moved, name, world_size, folder=tmp_path, write=True)[0]
    for read in run_on_ranks(reader[1], moved, *reader, folder=tmp_path, write=False):
        assert all(torch.equal(a, b) for a, b in zip(written, read, strict=True))


def buffers_of(rank: int, name: str, world_size: int) -> float:
    strategy, _ = prepared(rank, name, world_size)
    scale = strategy.module.get_buffer("scale")
    scale.fill_(10.0 + rank)
    strategy.sync_buffers()
    return float(scale)


@contract
def test_sync_buffers_gives_rank_0s(name: str, world_size: int) -> None:
    assert run_on_ranks(world_size, buffers_of, name, world_size) == [10.0] * world_size


def control_of(rank: int, name: str, world_size: int) -> tuple[float, int, int]:
    strategy, _ = prepared(rank, name, world_size)
    total = float(strategy.all_reduce(torch.tensor(1.0 + rank)))
    return total, strategy.meter.control.total_bytes, strategy.meter.model.total_bytes


@contract
def test_control_traffic_is_counted_apart(name: str, world_size: int) -> None:
    expected = {1: (1.0, 0, 0), 2: (3.0, 4, 0)}[world_size]
    assert run_on_ranks(world_size, control_of, name, world_size) == [expected] * world_size


def test_one_rank_always_runs_as_single() -> None:
    for name in ("single", "ddp", "fsdp"):
        strategy = build_strategy(
            name, process=ProcessContext(), options=StrategyOptions(), accumulation_steps=1
        )
        assert strategy.name == "single"


def test_refuses_unknown_and_impossible_strategies() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fsdp'"):
        build_strategy("fsdp2", process=ProcessContext(), options=StrategyOptions(), accumulation_steps=1)
    with pytest.raises(ConfigError, match="strategy='single' cannot run world_size=2"):
        build_strategy(
            "single",
            process=ProcessContext(world_size=2),
            options=StrategyOptions(),
            accumulation_steps=1,
        )
