"""A backend over any cluster: gangs of leased workers, polled for progress, watched, replaced when hurt."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import EvalRecord, StepRecord
from gasweep.scheduling.backend import Attempt, Backend, Capacity, Cause, Event, Note, Progress
from gasweep.scheduling.calls import OpenCalls
from gasweep.scheduling.cluster import Cluster, Ref, Reply
from gasweep.scheduling.gang import Gang
from gasweep.scheduling.network import LOOPBACK
from gasweep.scheduling.order import DEFAULT_ENTRY, WorkOrder
from gasweep.scheduling.outcome import Measurements, Outcome
from gasweep.scheduling.pool import Member, Pool

TICK_S = 0.25  # how often deadlines and reservations are looked at while nothing happens
STACKS_S = 0.5  # for ranks that hang to write their threads' stacks before they are killed
COLLECTIVE_PATIENCE = 2.0  # times attempt_timeout_s: the driver, who sees all ranks, judges first


@dataclass(eq=False, kw_only=True)
class _Running:
    """An attempt and its workers in rank order.

    is_asked: whether a call for measurements is open. reusable: rank -> what it said when it ended.
    doomed: ranks to kill at `doomed_s`.
    """

    gang: Gang
    members: list[Member]
    is_asked: bool = False
    reusable: dict[int, bool] = field(default_factory=dict)
    doomed: list[int] = field(default_factory=list)
    doomed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LeaseOptions:
    """num_workers: at most (None: all there is room for). fresh: new processes for every attempt.

    attempt_timeout_s: without progress. lease_idle_s: before idle workers of a
    shared cluster are given back. entry: dotted path "module:function" of what trains (tests give fakes).
    """

    num_workers: int | None = None
    fresh: bool = False
    attempt_timeout_s: float = 120.0
    lease_idle_s: float = 60.0
    entry: str = DEFAULT_ENTRY


class LeasedBackend(Backend):
    """Backend on a Cluster: all policy about workers is here and in the pool and the gang, none in Ray."""

    def __init__(self, cluster: Cluster, options: LeaseOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._calls = OpenCalls(cluster)
        self._pool = Pool(
            cluster,
            self._calls,
            limit=options.num_workers,
            idle_s=options.lease_idle_s,
            note=lambda text: self._events.append(Note(text=text)),
        )
        self._running: dict[str, _Running] = {}
        self._events: deque[Event] = deque()
        self._wanted = 0
        self._looked_s = 0.0
        self._closed = False
        self.isolated_workers = cluster.isolated_workers

    def capacity(self) -> Capacity:
        slots = self._cluster.slots()
        limit = self._options.num_workers
        now = slots.total if limit is None else min(slots.total, limit)
        return Capacity(num_workers=now, max_workers=self._pool.max_workers(), device=self._cluster.device)

    def free_workers(self) -> int:
        return self._pool.num_idle

    def infeasible_reason(self, spec: RunSpec) -> str | None:
        needed, room = spec.layout.world_size, self._pool.max_workers()
        if needed <= room:
            return None
        grown = " even when it has grown to its maximum" if self._cluster.slots().maximum > room else ""
        return (
            f"world_size={needed} needs {needed} workers, but the cluster has room for {room}{grown}; "
            "lower grid.world_size, or raise cluster.num_workers or the cluster's size"
        )

    def want(self, num_workers: int) -> None:
        self._wanted = num_workers

    def start(self, attempt: Attempt) -> None:
        world_size = attempt.spec.layout.world_size
        members = self._pool.lease(world_size)
        assert len(members) == world_size, "started without enough free workers"
        options, cluster = self._options, self._cluster
        gang = Gang(
            attempt,
            now_s=cluster.now_s(),
            timeout_s=options.attempt_timeout_s,
            used=any(member.num_attempts > 1 for member in members),
        )
        store: Ref | None = None
        if world_size > 1:
            store = cluster.call(members[0].handle, "open_store", self._store_host(members), world_size)
        running = _Running(gang=gang, members=members)
        self._running[attempt.spec.run_id] = running
        orders = WorkOrder.for_ranks(
            attempt, entry=options.entry, timeout_s=COLLECTIVE_PATIENCE * options.attempt_timeout_s
        )
        for member, order in zip(members, orders, strict=True):
            then = partial(self._rank_ended, running, order.rank)
            self._calls.make(member.handle, "run", order, store, then=then)
        self._ask_progress(running)

    def poll(self, timeout_s: float) -> list[Event]:
        deadline = self._cluster.now_s() + timeout_s
        self._look_after()
        while True:
            if self._cluster.now_s() >= self._looked_s + TICK_S:
                self._look_after()
            until = min(deadline, self._looked_s + TICK_S)
            self._calls.serve(0.0 if self._events else max(0.0, until - self._cluster.now_s()))
            if self._events or self._cluster.now_s() >= deadline:
                events = list(self._events)
                self._events.clear()
                return events

    def stop(self, run_id: str) -> None:
        running = self._running.get(run_id)
        if running is not None:
            number = running.gang.attempt.number
            for member in running.members:
                self._calls.tell(member.handle, "request_stop", run_id, number)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._cluster.close()

    def _store_host(self, members: list[Member]) -> str:
        info = members[0].info
        assert info is not None
        return LOOPBACK if self._cluster.loopback else info.address

    def _ask_progress(self, running: _Running) -> None:
        attempt = running.gang.attempt
        then = partial(self._progressed, running)
        running.is_asked = True
        self._calls.make(
            running.members[0].handle, "poll", attempt.spec.run_id, attempt.number, then=then, control=True
        )

    def _progressed(self, running: _Running, reply: Reply) -> None:
        running.is_asked = False
        if reply.loss is None:
            batch: Measurements = reply.value
            if batch.moved:
                running.gang.progressed(self._cluster.now_s())
            self._tell(running, batch.steps, batch.evaluations)
            if 0 not in running.reusable:
                self._ask_progress(running)
        self._end_if_done(running)

    def _rank_ended(self, running: _Running, rank: int, reply: Reply) -> None:
        outcome = reply.value
        if reply.loss is not None:
            # `run` raises nothing: what escaped it is that the attempt's store could not be opened.
            cause = Cause.COMMUNICATION if reply.loss is Cause.PYTHON_ERROR else reply.loss
            outcome = Outcome(cause=cause, message=reply.message, reusable=False)
        running.gang.rank_ended(rank, outcome, now_s=self._cluster.now_s())
        running.reusable[rank] = outcome.reusable
        self._end_if_done(running)

    def _end_if_done(self, running: _Running) -> None:
        # An open call for progress may still carry measurements, which must be told before the end.
        if not running.gang.done or running.is_asked:
            return
        last = running.gang.outcome(0)
        self._tell(running, last.steps, last.evaluations)
        for rank, member in enumerate(running.members):
            keep = running.reusable[rank] and not self._options.fresh
            self._pool.give_back(member, reusable=keep)
        del self._running[running.gang.attempt.spec.run_id]
        self._events.append(running.gang.ending())

    def _tell(self, running: _Running, steps: list[StepRecord], evaluations: list[EvalRecord]) -> None:
        if steps or evaluations:
            attempt = running.gang.attempt
            self._events.append(
                Progress(
                    run_id=attempt.spec.run_id,
                    attempt=attempt.number,
                    steps=steps,
                    evaluations=evaluations,
                )
            )

    def _look_after(self) -> None:
        self._looked_s = now_s = self._cluster.now_s()
        for running in self._running.values():
            ranks = running.gang.to_kill(now_s)
            if ranks:
                running.doomed, running.doomed_s = ranks, now_s + STACKS_S
                for rank in ranks:
                    self._calls.tell(running.members[rank].handle, "dump_stacks")
            if running.doomed and now_s >= running.doomed_s:
                for rank in running.doomed:
                    self._cluster.kill(running.members[rank].handle)
                running.doomed = []
        held = sum(len(running.members) for running in self._running.values())
        wanted = max(self._wanted, held) if self._cluster.shared else self._pool.max_workers()
        self._pool.tend(wanted)
