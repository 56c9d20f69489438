"""The workers a sweep holds: started warm, leased in gangs, replaced when damaged, given back when idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gasweep.errors import WorkerLostError
from gasweep.scheduling.calls import OpenCalls
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
    """A place in a block, and the worker in it.

    handle: None while nothing runs there. starting: the call that answers when the worker is warm. watch: one
    that answers only when it is lost. since_s: when it began to start, or became idle. num_attempts: that
    this process has served.
    """

    block: Block
    index: int
    handle: Handle = None
    starting: Ref | None = None
    watch: Ref | None = None
    info: WorkerInfo | None = None
    leased: bool = False
    since_s: float = 0.0
    num_attempts: int = 0


@dataclass(eq=False, kw_only=True)
class Block:
    """A reservation and its places; given back as a whole."""

    reservation: Reservation
    size: int
    asked_s: float
    members: list[Member] = field(default_factory=list)

    @property
    def is_there(self) -> bool:
        return bool(self.members)


class Pool:
    """Keeps up to `limit` workers (None: as many as the cluster has room for).

    note: told lines worth knowing.
    """

    def __init__(
        self,
        cluster: Cluster,
        calls: OpenCalls,
        *,
        limit: int | None,
        idle_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._calls = calls
        self._limit = limit
        self._idle_s = idle_s
        self._note = note
        self._blocks: list[Block] = []
        self._idle: dict[Member, None] = {}
        self._starting: dict[Member, None] = {}
        self._vacant: dict[Member, None] = {}
        self._failed_starts = 0

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def max_workers(self) -> int:
        """What the pool may ever hold at once, with the cluster grown to its maximum."""
        room = self._cluster.slots().maximum
        return room if self._limit is None else min(room, self._limit)

    def lease(self, num_workers: int) -> list[Member]:
        """Take idle workers, on as few nodes as possible, rank 0 first."""
        chosen = choose(list(self._idle), num_workers)
        for member in chosen:
            del self._idle[member]
            member.leased = True
            member.num_attempts += 1
        return chosen

    def give_back(self, member: Member, *, reusable: bool) -> None:
        """End a member's lease; one that is not reusable is replaced by a fresh process."""
        member.leased = False
        if reusable and member.watch is not None:
            member.since_s = self._cluster.now_s()
            self._idle[member] = None
        else:
            self._clear(member)

    def tend(self, wanted: int) -> None:
        """Grow towards `wanted` workers, start workers where there is room, give idle ones back."""
        now_s = self._cluster.now_s()
        self._ask_for_room(min(wanted, self.max_workers()), now_s)
        for block in self._blocks:
            if not block.is_there and self._cluster.is_reserved(block.reservation):
                block.members = [Member(block=block, index=index) for index in range(block.size)]
                self._vacant.update(dict.fromkeys(block.members))
                self._note(f"starting {block.size} worker{'s' * (block.size > 1)}")
        self._fill_vacant(now_s)
        for member in [m for m in self._starting if now_s - m.since_s > START_TIMEOUT_S]:
            self._start_failed(member, f"it was not ready after {START_TIMEOUT_S:g} s")
        if self._cluster.shared:
            self._release_idle(wanted, now_s)

    def _fill_vacant(self, now_s: float) -> None:
        # Room on a node that has died comes back when the reservation has been moved to another one.
        there = {id(m.block): self._cluster.is_reserved(m.block.reservation) for m in self._vacant}
        for member in [m for m in self._vacant if there[id(m.block)]]:
            del self._vacant[member]
            member.handle, ref = self._cluster.spawn(member.block.reservation, member.index)
            member.starting = self._calls.expect(ref, self._started(member))
            member.since_s, member.num_attempts = now_s, 0
            self._starting[member] = None

    def _started(self, member: Member) -> Callable[[Reply], None]:
        def handle(reply: Reply) -> None:
            member.starting = None
            if reply.loss is not None:
                self._start_failed(member, reply.message)
                return
            del self._starting[member]
            member.info = reply.value
            member.since_s = self._cluster.now_s()
            member.watch = self._calls.make(member.handle, "linger", then=self._lost(member), control=True)
            self._idle[member] = None
            self._failed_starts = 0

        return handle

    def _lost(self, member: Member) -> Callable[[Reply], None]:
        def handle(reply: Reply) -> None:
            member.watch = None
            if not member.leased:  # else its open call tells the attempt, and `give_back` replaces it
                self._note(f"an idle worker was lost ({reply.message}); starting another")
                self._clear(member)

        return handle

    def _start_failed(self, member: Member, message: str) -> None:
        self._clear(member)
        if not self._cluster.is_reserved(member.block.reservation):
            return  # its node has died
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise WorkerLostError(
                f"workers do not start ({self._failed_starts} in a row): {message}; `gasweep doctor` checks "
                "the environment they run in"
            )
        self._note(f"a worker did not start: {message}; starting another")

    def _clear(self, member: Member) -> None:
        """End the worker of a place, which is vacant then."""
        self._forget(member)
        self._cluster.kill(member.handle)
        member.handle = member.info = None
        self._vacant[member] = None

    def _forget(self, member: Member) -> None:
        self._calls.forget(member.starting)
        self._calls.forget(member.watch)
        member.starting = member.watch = None
        for group in (self._idle, self._starting, self._vacant):
            group.pop(member, None)

    def _ask_for_room(self, wanted: int, now_s: float) -> None:
        missing = wanted - sum(block.size for block in self._blocks)
        pending = [block for block in self._blocks if not block.is_there]
        if missing <= 0 and not pending:
            return
        slots = self._cluster.slots()
        if missing > 0 and not pending:
            # What is free now comes in pieces of a node, which can be given back one by one; the rest is
            # asked for as one more piece, which an autoscaler sees as demand.
            for size in _pieces(min(missing, slots.free), slots.per_node):
                self._reserve(size, now_s)
            if missing > slots.free:
                self._reserve(min(missing - slots.free, max(slots.per_node, 1)), now_s)
        for block in pending:
            stuck = now_s - block.asked_s > SETTLE_S and slots.free > 0 and block.size > 1
            if stuck and not self._cluster.is_reserved(block.reservation):
                self._drop(block)
                for size in (block.size // 2, block.size - block.size // 2):
                    self._reserve(size, now_s)

    def _release_idle(self, wanted: int, now_s: float) -> None:
        held = sum(block.size for block in self._blocks)
        for block in list(self._blocks):
            superfluous = not block.is_there and held - block.size >= wanted
            resting = block.is_there and all(self._rests(member, now_s) for member in block.members)
            if superfluous or resting:
                num_idle = sum(member in self._idle for member in block.members)
                self._drop(block)
                held -= block.size
                if num_idle:
                    self._note(f"gave {num_idle} idle worker{'s' * (num_idle > 1)} back to the cluster")

    def _rests(self, member: Member, now_s: float) -> bool:
        return member in self._vacant or (member in self._idle and now_s - member.since_s > self._idle_s)

    def _reserve(self, size: int, now_s: float) -> None:
        reservation = self._cluster.reserve(size)
        self._blocks.append(Block(reservation=reservation, size=size, asked_s=now_s))

    def _drop(self, block: Block) -> None:
        for member in block.members:
            self._forget(member)
        self._cluster.release(block.reservation)
        self._blocks.remove(block)


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
