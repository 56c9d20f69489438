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

    taken: workers' room that others hold. boot: called when a node is to be added later; `join` adds it.
    """

    def __init__(
        self, *, num_nodes: int, per_node: int, maximum: int | None, boot: Callable[[], None]
    ) -> None:
        self.taken = 0
        self.rooms: list[Room] = []
        self.alive = dict.fromkeys(range(num_nodes), True)
        self._per_node = per_node
        self._maximum = max(num_nodes, maximum or 0)
        self._boot = boot
        self._booting = 0

    def slots(self) -> Slots:
        total = sum(self.alive.values()) * self._per_node
        held = sum(room.size for room in self.rooms if room.nodes is not None)
        return Slots(
            total=total,
            maximum=max(total, self._maximum * self._per_node),
            free=max(0, total - held - self.taken),
            per_node=self._per_node,
        )

    def settle(self) -> None:
        """Give room to reservations in the order they were made as far as it goes; boot for the rest."""
        for room in self.rooms:
            if room.nodes is None and room.size <= self.slots().free:
                room.nodes = self._places(room.size)
        asked = sum(room.size for room in self.rooms if room.nodes is None)
        if asked > self._booting * self._per_node and len(self.alive) + self._booting < self._maximum:
            self._booting += 1
            self._boot()

    def join(self, *, booted: bool = False) -> None:
        """One more node."""
        self._booting -= booted
        self.alive[len(self.alive)] = True

    def node_for(self, room: Room, index: int) -> int:
        """The node of a reservation's place, moved to a living one if its own has died."""
        assert room.nodes is not None
        node = room.nodes[index]
        if not self.alive[node]:
            node = next((other for other, alive in self.alive.items() if alive), node)
            room.nodes[index] = node
        return node

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
