"""Counts what the ranks send, at the collective itself.

Units of bytes: what one rank puts on the wire in a bandwidth-optimal algorithm. An all-gather or a
reduce-scatter of a tensor of p bytes sends p·(N-1)/N, an all-reduce twice that.

Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH".
Assumes: ring or halving/doubling collectives (gloo and NCCL both, for large tensors); headers not counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

UNITS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


@dataclass(kw_only=True)
class Traffic:
    """Totals of one kind: calls and wire bytes per collective."""

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values())

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
    """Traffic since the last `reset`, model traffic (gradients and parameters) and control traffic apart.

    is_muted: whoever counts a collective must leave it out (see `muted`).
    """

    def __init__(self, *, world_size: int) -> None:
        self.world_size = world_size
        self.is_muted = False
        self.model = Traffic()
        self.control = Traffic()

    def wire_bytes(self, collective: str, payload_bytes: int) -> int:
        """What one rank sends for one call over a whole tensor of `payload_bytes`."""
        return UNITS[collective] * payload_bytes * (self.world_size - 1) // self.world_size

    def count(self, collective: str, payload_bytes: int, *, control: bool = False) -> None:
        """One call of `collective` over a whole tensor of `payload_bytes` (an all-gather's output, a
        reduce-scatter's input)."""
        traffic = self.control if control else self.model
        traffic.calls[collective] = traffic.calls.get(collective, 0) + 1
        wire = self.wire_bytes(collective, payload_bytes)
        traffic.num_bytes[collective] = traffic.num_bytes.get(collective, 0) + wire

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """In the block the strategy's collectives are left out, though counted: what a step costs without
        them. Each rank then computes with what it holds, so the model is good for nothing but timing."""
        self.is_muted = True
        try:
            yield
        finally:
            self.is_muted = False

    def reset(self) -> None:
        self.model = Traffic()
        self.control = Traffic()
