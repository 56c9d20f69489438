"""A cluster that exists on paper: a clock that jumps, thousands of workers, runs that end as they are told.

The leases, replacements, timeouts and policies on top of it are the real ones.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from gasweep.config.run_spec import RunSpec
from gasweep.results.records import RunResult, StepRecord
from gasweep.scheduling.backend import Cause
from gasweep.scheduling.cluster import Cluster, Handle, Ref, Reply, Reservation, Slots
from gasweep.scheduling.leased import LeasedBackend, LeaseOptions
from gasweep.scheduling.order import WorkOrder
from gasweep.scheduling.outcome import Measurements, Outcome
from gasweep.scheduling.pool import WorkerInfo
from gasweep.scheduling.simulated_nodes import Nodes

NEVER_S = float("inf")


@dataclass(frozen=True, kw_only=True)
class Script:
    """How one attempt goes.

    duration_s: until it ends. result: of a run that finishes. cause, rank: the rank that fails at the end,
    and why; its peers notice at once when `heard`, else never. hangs: it never ends and shows no life.
    steps: measurements, told half-way. deaf: it does not react to a stop request.
    """

    duration_s: float
    result: RunResult | None = None
    cause: Cause | None = None
    rank: int = 0
    heard: bool = True
    hangs: bool = False
    deaf: bool = False
    steps: list[StepRecord] = field(default_factory=list)


Playwright = Callable[[RunSpec, int], Script]
"""(spec, attempt number) -> how that attempt goes."""


@dataclass(eq=False)
class _Worker:
    node: int
    alive: bool = True
    order: WorkOrder | None = None
    script: Script | None = None
    run: _Call | None = None
    poll: _Call | None = None
    told: bool = False
    calls: list[_Call] = field(default_factory=list)


@dataclass(eq=False)
class _Call:
    worker: _Worker
    is_run: bool = False
    answered: bool = False


class SimulatedCluster(Cluster):
    """`num_nodes` nodes of `workers_per_node`; `start_s` for a worker to become warm.

    maximum_nodes: what an autoscaler grows the cluster to when room is asked for; a node takes `boot_s`.
    """

    device = "simulated"

    def __init__(
        self,
        play: Playwright,
        *,
        num_nodes: int = 1,
        workers_per_node: int = 8,
        start_s: float = 5.0,
        shared: bool = False,
        isolated_workers: bool = True,
        maximum_nodes: int | None = None,
        boot_s: float = 60.0,
    ) -> None:
        self.shared = shared
        self.isolated_workers = isolated_workers
        self.loopback = num_nodes == 1
        self.nodes = Nodes(
            num_nodes=num_nodes,
            per_node=workers_per_node,
            maximum=maximum_nodes,
            boot=lambda: self._at(boot_s, lambda: self.nodes.join(booted=True)),
        )
        self._play = play
        self._start_s = start_s
        self._clock_s = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._answers: dict[Ref, Reply] = {}
        self._scripts: dict[tuple[str, int], Script] = {}

    def now_s(self) -> float:
        return self._clock_s

    def slots(self) -> Slots:
        return self.nodes.slots()

    def reserve(self, num_workers: int) -> Reservation:
        return self.nodes.reserve(num_workers)

    def is_reserved(self, reservation: Reservation) -> bool:
        self.nodes.settle()
        return self.nodes.is_whole(reservation)

    def release(self, reservation: Reservation) -> None:
        for worker in reservation.workers:
            self._lose(worker, Cause.PROCESS_DEATH, "released")
        self.nodes.release(reservation)

    def spawn(self, reservation: Reservation, index: int) -> tuple[Handle, Ref]:
        node = reservation.nodes[index]
        worker = _Worker(node=node)
        reservation.workers.append(worker)
        call = self._open(worker)
        if self.nodes.alive[node]:
            info = WorkerInfo(
                node=str(node), hostname=f"node{node}", pid=id(worker), address=f"10.0.0.{node}"
            )
            self._at(self._start_s, lambda: self._answer(call, info))
        return worker, call

    def kill(self, handle: Handle) -> None:
        self._lose(handle, Cause.PROCESS_DEATH, "killed")

    def call(self, handle: Handle, method: str, *arguments: Any, control: bool = False) -> Ref:
        call = self._open(handle)
        if not handle.alive:
            self._answers[call] = Reply(ref=call, loss=Cause.PROCESS_DEATH, message="it is dead")
        else:
            getattr(self, f"_on_{method}")(handle, call, *arguments)
        return call

    def wait(self, refs: Collection[Ref], timeout_s: float) -> list[Reply]:
        deadline = self._clock_s + timeout_s
        while True:
            answers, self._answers = self._answers, {}
            ready = [reply for ref, reply in answers.items() if ref in refs]
            if ready:
                return ready
            if not self._agenda or self._agenda[0][0] > deadline:
                self._clock_s = deadline
                return []
            self._clock_s, _, action = heapq.heappop(self._agenda)
            action()

    def close(self) -> None:
        for room in list(self.nodes.rooms):
            self.release(room)

    def lose_node(self, node: int) -> None:
        """A node goes down with everything on it."""
        self.nodes.lose(node)
        for worker in self.workers():
            if worker.node == node:
                self._lose(worker, Cause.NODE_DEATH, f"node{node} has died")

    def workers(self) -> list[Handle]:
        """All living workers."""
        return [worker for room in self.nodes.rooms for worker in room.workers if worker.alive]

    def _on_open_store(self, worker: _Worker, call: _Call, host: str, world_size: int) -> None:
        self._answer(call, (host, 1))

    def _on_linger(self, worker: _Worker, call: _Call) -> None:
        """Answered by loss only."""

    def _on_dump_stacks(self, worker: _Worker, call: _Call) -> None:
        self._answer(call, None)

    def _on_run(self, worker: _Worker, call: _Call, order: WorkOrder, store: Any) -> None:
        key = (order.run_id, order.attempt)
        if key not in self._scripts:
            self._scripts[key] = self._play(RunSpec.from_dict(order.spec), order.attempt)
        script = self._scripts[key]
        assert worker.run is None or worker.run.answered, "a worker was leased twice"
        worker.order, worker.script, worker.run, worker.told = order, script, call, False
        if not script.hangs:
            self._at(script.duration_s / 2, lambda: self._report(worker, call))
            self._at(script.duration_s, lambda: self._end(worker, call))

    def _on_poll(self, worker: _Worker, call: _Call, run_id: str, attempt: int) -> None:
        if worker.run is None or worker.run.answered:
            self._answer(call, Measurements(steps=[], evaluations=[], moved=False))
        else:
            worker.poll = call

    def _on_request_stop(self, worker: _Worker, call: _Call, run_id: str, attempt: int) -> None:
        self._answer(call, None)
        if worker.run is not None and not (worker.script and worker.script.deaf):
            run = worker.run
            self._at(
                0.1, lambda: self._finish(worker, run, Outcome(cause=Cause.INTERRUPTED, message="stopped"))
            )

    def _report(self, worker: _Worker, run: _Call) -> None:
        if worker.run is run and worker.poll is not None and not run.answered:
            assert worker.script is not None
            worker.told = True
            poll, worker.poll = worker.poll, None
            self._answer(poll, Measurements(steps=worker.script.steps, evaluations=[], moved=True))

    def _end(self, worker: _Worker, run: _Call) -> None:
        script, order = worker.script, worker.order
        assert script is not None
        assert order is not None
        if run.answered or worker.run is not run:
            return
        if script.cause is None:
            self._finish(worker, run, Outcome(result=script.result if order.rank == 0 else None))
        elif order.rank != script.rank:
            if script.heard:
                lost = Outcome(cause=Cause.COMMUNICATION, message="connection closed", reusable=False)
                self._at(0.05, lambda: self._finish(worker, run, lost))
        elif script.cause in (Cause.PROCESS_DEATH, Cause.NODE_DEATH):
            self._lose(worker, script.cause, "it died")
        else:
            failed = Outcome(cause=script.cause, message="scripted", reusable=script.cause is not Cause.OOM)
            self._finish(worker, run, failed)

    def _finish(self, worker: _Worker, run: _Call, outcome: Outcome) -> None:
        if run.answered or not worker.alive:
            return
        if worker.poll is not None:
            poll, worker.poll = worker.poll, None
            self._answer(poll, Measurements(steps=[], evaluations=[], moved=True))
        if not worker.told and worker.script is not None and worker.order is not None:
            steps = worker.script.steps if worker.order.rank == 0 else []
            outcome = replace(outcome, steps=steps)
        self._answer(run, outcome)

    def _lose(self, worker: _Worker, cause: Cause, message: str) -> None:
        if worker.alive:
            worker.alive = False
            for call in worker.calls:
                if not call.answered:
                    call.answered = True
                    self._answers[call] = Reply(ref=call, loss=cause, message=message)
            worker.calls.clear()

    def _open(self, worker: _Worker) -> _Call:
        call = _Call(worker)
        worker.calls = [other for other in worker.calls if not other.answered]
        worker.calls.append(call)
        return call

    def _answer(self, call: _Call, value: Any) -> None:
        if not call.answered:
            call.answered = True
            self._answers[call] = Reply(ref=call, value=value)

    def _at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self._clock_s + delay_s, next(self._order), action))


def simulated_backend(cluster: SimulatedCluster, options: LeaseOptions | None = None) -> LeasedBackend:
    """The real leasing backend on a simulated cluster."""
    return LeasedBackend(cluster, options or LeaseOptions())
