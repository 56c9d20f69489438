"""What a leasing backend needs of a cluster; Ray is one, the simulation another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

from gasweep.scheduling.backend import Cause

Handle = Any  # a worker process
Reservation = Any  # resources for several workers, held together
Ref = Hashable  # a call that has not answered yet


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Room for workers: one per GPU, or per `threads_per_worker` CPUs where no node has a GPU.

    total: on the nodes alive now, whoever uses them. maximum: what autoscaling can add included.
    free: reserved by nobody now. per_node: on the largest node.
    """

    total: int
    maximum: int
    free: int
    per_node: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A call that ended: `value`, or the `loss` of its worker (or an exception that escaped it)."""

    ref: Ref
    value: Any = None
    loss: Cause | None = None
    message: str = ""


class Cluster(ABC):
    """Starts worker processes and carries calls to them. One thread uses it; nothing here blocks but `wait`.

    device: e.g. "cpu" or a card's name. isolated_workers: see Backend. shared: others use the cluster too,
    so that idle workers are given back. loopback: all workers are on this machine.
    """

    device: str
    isolated_workers: bool
    shared: bool
    loopback: bool

    @abstractmethod
    def now_s(self) -> float:
        """A monotonic clock."""

    @abstractmethod
    def slots(self) -> Slots:
        """Room now; cheap enough to ask several times a second."""

    @abstractmethod
    def reserve(self, num_workers: int) -> Reservation:
        """Begin to reserve room for workers, packed on as few nodes as possible, all or none."""

    @abstractmethod
    def is_reserved(self, reservation: Reservation) -> bool:
        """Whether the room is there."""

    @abstractmethod
    def release(self, reservation: Reservation) -> None:
        """Give the room back; workers in it are gone."""

    @abstractmethod
    def spawn(self, reservation: Reservation, index: int) -> tuple[Handle, Ref]:
        """Start a worker in the reservation's `index`-th place; the call answers with its WorkerInfo when it
        is warm."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End a worker at once; its open calls answer with a loss."""

    @abstractmethod
    def call(self, handle: Handle, method: str, *arguments: Any, control: bool = False) -> Ref:
        """Call a Worker method. Calls of one worker run in turn, except that `control` calls run beside
        them. An argument may be an open call's ref: it is replaced by that call's value."""

    @abstractmethod
    def wait(self, refs: Collection[Ref], timeout_s: float) -> list[Reply]:
        """The calls that have ended, at least one unless `timeout_s` passed first. A ref is answered once."""

    @abstractmethod
    def close(self) -> None:
        """End every worker within seconds and let go of the cluster. Safe to call twice."""
