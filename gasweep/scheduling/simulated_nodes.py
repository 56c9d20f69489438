"""The nodes of a simulated cluster, and who holds room on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gasweep.scheduling.cluster import Slots


@dataclass(eq=False, kw_only=True)
class Room:
    """A reservation: the node of each place (None: not there yet), and the workers started in it."""

    size: int
    nodes: list[int] | None = None
    workers: list[Any] = field(default_factory=list)


class Nodes:
    """`num_nodes` nodes with `per_node` workers' room each; an autoscaler may add up to `maximum`.

    boot: called when a node is to be added later; `join` adds it.
    """

    def __init__(
        self, *, num_nodes: int, per_node: int, maximum: int | None, boot: Callable[[], None]
    ) -> None:
        self.rooms: list[Room] = []
        self.alive = dict.fromkeys(range(num_nodes), True)
        self._per_node = per_node
        self._maximum = maximum or 0
        self._boot = boot
        self._booting = 0
        self._taken = 0
        self._slots: Slots | None = None

    def slots(self) -> Slots:
        if self._slots is None:
            self._slots = self._count()
        return self._slots

    def reserve(self, size: int) -> Room:
        room = Room(size=size)
        self.rooms.append(room)
        self.settle()
        return room

    def release(self, room: Room) -> None:
        self.rooms.remove(room)
        self._slots = None

    def take(self, num_workers: int) -> None:
        """Room that others hold from now on."""
        self._taken = num_workers
        self._slots = None

    def _count(self) -> Slots:
        total = sum(self.alive.values()) * self._per_node
        held = sum(self.alive[node] for room in self.rooms for node in room.nodes or [])
        return Slots(
            total=total,
            maximum=max(total, self._maximum * self._per_node),
            free=max(0, total - held - self._taken),
            per_node=self._per_node,
        )

    def settle(self) -> None:
        """Give room to reservations in the order they were made as far as it goes; boot for the rest."""
        for room in self.rooms:
            if room.nodes is None and room.size <= self.slots().free:
                room.nodes = self._places(room.size)
                self._slots = None
            elif room.nodes is not None and not self.is_whole(room):
                self._move(room, room.nodes)
        asked = sum(room.size for room in self.rooms if room.nodes is None)
        if asked > self._booting * self._per_node and len(self.alive) + self._booting < self._maximum:
            self._booting += 1
            self._boot()

    def join(self, *, booted: bool = False) -> None:
        """One more node."""
        self._booting -= booted
        self.alive[len(self.alive)] = True
        self._slots = None

    def lose(self, node: int) -> None:
        """A node dies; reservations that had places on it wait for new ones."""
        self.alive[node] = False
        self._slots = None
        self.settle()

    def is_whole(self, room: Room) -> bool:
        """Whether every place of a reservation is on a living node."""
        return room.nodes is not None and all(self.alive[node] for node in room.nodes)

    def _move(self, room: Room, nodes: list[int]) -> None:
        lost = [index for index, node in enumerate(nodes) if not self.alive[node]]
        for index, node in zip(lost, self._places(len(lost)), strict=False):
            nodes[index] = node
        self._slots = None

    def _places(self, count: int) -> list[int]:
        used = dict.fromkeys(self.alive, 0)
        for room in self.rooms:
            for node in room.nodes or []:
                used[node] += 1
        places: list[int] = []
        for node, alive in self.alive.items():
            if alive:
                places += [node] * min(self._per_node - used[node], count - len(places))
        return places
