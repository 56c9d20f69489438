"""The workers a sweep holds: started warm, leased in gangs, replaced when damaged, given back when idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gasweep.errors import WorkerLostError
from gasweep.scheduling.cluster import Cluster, Handle, Ref, Reply, Reservation

START_TIMEOUT_S = 180.0  # importing torch from a cold network file system takes a minute or two
MAX_FAILED_STARTS = 3  # in a row, with no worker started in between: the environment is broken
SETTLE_S = 10.0  # a reservation that is not there by then, although room is free, is asked for in halves


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """Where a worker runs, as it says itself when it is warm."""

    node: str
    hostname: str
    pid: int
    address: str


@dataclass(eq=False, kw_only=True)
class Member:
    """One worker's place.

    starting, since_s: the call that answers when it is warm, and when it began to start or became idle.
    watch: a call that answers only when the worker is lost. num_attempts: that this process has served.
    """

    block: Block
    index: int
    handle: Handle
    starting: Ref | None
    since_s: float
    info: WorkerInfo | None = None
    watch: Ref | None = None
    leased: bool = False
    num_attempts: int = 0

    @property
    def idle(self) -> bool:
        return self.info is not None and not self.leased


@dataclass(eq=False, kw_only=True)
class Block:
    """A reservation and the workers in it; given back as a whole."""

    reservation: Reservation
    size: int
    asked_s: float
    members: list[Member] = field(default_factory=list)


class Pool:
    """Keeps up to `limit` workers (None: as many as the cluster has room for)."""

    def __init__(self, cluster: Cluster, *, limit: int | None, idle_s: float) -> None:
        self._cluster = cluster
        self._limit = limit
        self._idle_s = idle_s
        self._blocks: list[Block] = []
        self._starting: dict[Ref, Member] = {}
        self._watched: dict[Ref, Member] = {}
        self._failed_starts = 0

    @property
    def members(self) -> Iterator[Member]:
        return (member for block in self._blocks for member in block.members)

    @property
    def num_idle(self) -> int:
        return sum(member.idle for member in self.members)

    @property
    def is_growing(self) -> bool:
        """Whether workers are on their way."""
        return bool(self._starting) or any(not block.members for block in self._blocks)

    @property
    def refs(self) -> list[Ref]:
        """Calls whose answers belong to `answered`."""
        return [*self._starting, *self._watched]

    def max_workers(self) -> int:
        """What the pool may ever hold at once, with the cluster grown to its maximum."""
        room = self._cluster.slots().maximum
        return room if self._limit is None else min(room, self._limit)

    def lease(self, num_workers: int) -> list[Member]:
        """Take idle workers, on as few nodes as possible, rank 0 first."""
        chosen = choose([member for member in self.members if member.idle], num_workers)
        for member in chosen:
            member.leased = True
            member.num_attempts += 1
        return chosen

    def give_back(self, member: Member, *, reusable: bool) -> None:
        """End a member's lease; one that is not reusable is replaced by a fresh process."""
        member.leased = False
        member.since_s = self._cluster.now_s()
        if not reusable or member.watch is None:
            self._cluster.kill(member.handle)
            self._respawn(member)

    def tend(self, wanted: int) -> list[str]:
        """Grow towards `wanted` workers, spawn into reservations that have become real, replace workers that
        do not start, give idle ones back. Returns lines worth telling."""
        notes: list[str] = []
        now_s = self._cluster.now_s()
        self._ask_for_room(min(wanted, self.max_workers()), now_s)
        for block in self._blocks:
            if not block.members and self._cluster.is_reserved(block.reservation):
                block.members = [self._spawn(block, index) for index in range(block.size)]
                notes.append(f"starting {block.size} worker{'s' * (block.size > 1)}")
        for member in [m for m in self._starting.values() if now_s - m.since_s > START_TIMEOUT_S]:
            notes.append(self._start_failed(member, f"it was not ready after {START_TIMEOUT_S:g} s"))
        if self._cluster.shared:
            notes += self._release_idle(wanted, now_s)
        return notes

    def answered(self, reply: Reply) -> str | None:
        """One of `refs` ended: a worker is warm, did not start, or was lost. A line worth telling, if any."""
        watched = self._watched.pop(reply.ref, None)
        if watched is not None:
            watched.watch = None
            if watched.leased:
                return None  # its open call tells the attempt; `give_back` will replace it
            self._respawn(watched)
            return f"an idle worker was lost ({reply.message}); starting another"
        member = self._starting.pop(reply.ref, None)
        if member is None:
            return None  # of a worker that was given up while its answer was on the way
        member.starting = None
        if reply.loss is not None:
            return self._start_failed(member, reply.message)
        member.info = reply.value
        member.since_s = self._cluster.now_s()
        member.watch = self._cluster.call(member.handle, "linger", control=True)
        self._watched[member.watch] = member
        self._failed_starts = 0
        return None

    def _ask_for_room(self, wanted: int, now_s: float) -> None:
        missing = wanted - sum(block.size for block in self._blocks)
        pending = [block for block in self._blocks if not block.members]
        slots = self._cluster.slots()
        if missing > 0 and not pending:
            # What is free now comes in pieces of a node, which can be given back one by one; the rest is
            # asked for as one more piece, which an autoscaler sees as demand.
            for size in _pieces(min(missing, slots.free), slots.per_node):
                self._reserve(size, now_s)
            if missing > slots.free:
                self._reserve(min(missing - max(slots.free, 0), max(slots.per_node, 1)), now_s)
        for block in pending:
            stuck = now_s - block.asked_s > SETTLE_S and slots.free > 0 and block.size > 1
            if stuck and not self._cluster.is_reserved(block.reservation):
                self._drop(block)
                for size in (block.size // 2, block.size - block.size // 2):
                    self._reserve(size, now_s)

    def _release_idle(self, wanted: int, now_s: float) -> list[str]:
        notes = []
        held = sum(block.size for block in self._blocks)
        for block in list(self._blocks):
            superfluous = not block.members and held - block.size >= wanted
            resting = bool(block.members) and all(
                member.idle and now_s - member.since_s > self._idle_s for member in block.members
            )
            if superfluous or resting:
                self._drop(block)
                held -= block.size
                if resting:
                    notes.append(f"gave {block.size} idle worker{'s' * (block.size > 1)} back to the cluster")
        return notes

    def _reserve(self, size: int, now_s: float) -> None:
        reservation = self._cluster.reserve(size)
        self._blocks.append(Block(reservation=reservation, size=size, asked_s=now_s))

    def _drop(self, block: Block) -> None:
        for member in block.members:
            self._forget(member)
        self._cluster.release(block.reservation)
        self._blocks.remove(block)

    def _spawn(self, block: Block, index: int) -> Member:
        handle, ref = self._cluster.spawn(block.reservation, index)
        member = Member(block=block, index=index, handle=handle, starting=ref, since_s=self._cluster.now_s())
        self._starting[ref] = member
        return member

    def _forget(self, member: Member) -> None:
        if member.starting is not None:
            self._starting.pop(member.starting, None)
        if member.watch is not None:
            self._watched.pop(member.watch, None)

    def _respawn(self, member: Member) -> None:
        self._forget(member)
        if member.block in self._blocks:
            member.block.members[member.index] = self._spawn(member.block, member.index)

    def _start_failed(self, member: Member, message: str) -> str:
        self._forget(member)
        self._cluster.kill(member.handle)
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise WorkerLostError(
                f"workers do not start ({self._failed_starts} in a row): {message}; `gasweep doctor` checks "
                "the environment they run in"
            )
        self._respawn(member)
        return f"a worker did not start: {message}; starting another"


def choose(idle: Sequence[Member], num_workers: int) -> list[Member]:
    """Of the idle members, `num_workers` on as few nodes as possible: the node that fits them most tightly,
    or, where none holds them all, the fullest nodes first. Members of one node stay neighbours in rank."""
    nodes: dict[str, list[Member]] = {}
    for member in idle:
        assert member.info is not None
        nodes.setdefault(member.info.node, []).append(member)
    fitting = [members for members in nodes.values() if len(members) >= num_workers]
    if fitting:
        return min(fitting, key=len)[:num_workers]
    by_size = sorted(nodes.values(), key=len, reverse=True)
    return [member for members in by_size for member in members][:num_workers]


def _pieces(total: int, size: int) -> Iterator[int]:
    while total > 0:
        yield min(total, size)
        total -= size
