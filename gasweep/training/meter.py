"""Counts what the ranks send, at the collective itself.

Units of bytes: what one rank puts on the wire in a bandwidth-optimal algorithm. An all-gather, a
reduce-scatter or an all-to-all of a tensor of p bytes over N ranks sends p·(N-1)/N, an all-reduce twice that,
a broadcast p·(N-1)/N on average over the ranks.

Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH".
Assumes: ring or halving/doubling collectives (gloo and NCCL both, for large tensors); headers not counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

UNITS = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "broadcast": 1, "all_reduce": 2}
DATA_GROUP = "data"


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of call. name: a key of `UNITS`. dtype: on the wire. group: whose ranks talk (see
    `CommunicationMeter.group_sizes`)."""

    name: str
    dtype: torch.dtype
    group: str


@dataclass(kw_only=True, slots=True)
class Sent:
    """Calls of one kind, and the bytes that one rank sent in them."""

    calls: int = 0
    num_bytes: int = 0


@dataclass(kw_only=True)
class Traffic:
    """What was sent, by kind of collective, and sums of that."""

    by_collective: dict[Collective, Sent] = field(default_factory=dict)

    def add(self, collective: Collective, num_bytes: int) -> None:
        sent = self.by_collective.setdefault(collective, Sent())
        sent.calls += 1
        sent.num_bytes += num_bytes

    def bytes_of(self, *names: str) -> int:
        """Over every dtype and group."""
        return sum(sent.num_bytes for kind, sent in self.by_collective.items() if kind.name in names)

    @property
    def calls(self) -> dict[str, int]:
        """By the collective's name."""
        totals: dict[str, int] = {}
        for kind, sent in self.by_collective.items():
            totals[kind.name] = totals.get(kind.name, 0) + sent.calls
        return totals

    @property
    def total_bytes(self) -> int:
        return sum(sent.num_bytes for sent in self.by_collective.values())

    @property
    def units(self) -> int:
        """Calls weighted: all-gather = reduce-scatter = 1, all-reduce = 2."""
        return sum(UNITS[name] * calls for name, calls in self.calls.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTraffic:
    """One optimizer step's traffic, and what it would have been with a sync on every micro-step."""

    model: Traffic
    control: Traffic
    unsynced_bytes: int


class CommunicationMeter:
    """Traffic since the last `reset`, model traffic (gradients, parameters, activations) and control traffic
    apart.

    group_sizes: ranks per process group; `DATA_GROUP` are the data-parallel ranks, a strategy adds others.
    is_muted: whoever counts a collective must leave it out (see `muted`).
    """

    def __init__(self, *, world_size: int) -> None:
        self.group_sizes = {DATA_GROUP: world_size}
        self.is_muted = False
        self.model = Traffic()
        self.control = Traffic()

    def wire_bytes(self, collective: str, payload_bytes: int, *, group: str = DATA_GROUP) -> int:
        """What one rank sends for one call over a whole tensor of `payload_bytes`."""
        ranks = self.group_sizes[group]
        return UNITS[collective] * payload_bytes * (ranks - 1) // ranks

    def count(
        self, collective: str, payload: Tensor, *, group: str = DATA_GROUP, control: bool = False
    ) -> None:
        """One call of `collective` over the whole tensor `payload` (an all-gather's output, a
        reduce-scatter's input)."""
        traffic = self.control if control else self.model
        kind = Collective(collective, payload.dtype, group)
        traffic.add(kind, self.wire_bytes(collective, payload.nbytes, group=group))

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """In the block the strategy's collectives are left out, though counted: what a step costs without
        them. Each rank then computes with what it holds, so the model is good for nothing but timing."""
        before, self.is_muted = self.is_muted, True
        try:
            yield
        finally:
            self.is_muted = before

    def reset(self) -> None:
        self.model = Traffic()
        self.control = Traffic()
