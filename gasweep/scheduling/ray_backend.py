"""Ray as a Cluster: the one file that imports ray, and only when a sweep runs on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from gasweep.config.schema import ClusterConfig
from gasweep.scheduling.backend import Cause
from gasweep.scheduling.cluster import Cluster, Handle, Ref, Reply, Reservation, Slots
from gasweep.scheduling.leased import LeasedBackend, LeaseOptions
from gasweep.scheduling.order import DEFAULT_ENTRY
from gasweep.scheduling.pool import WorkerInfo
from gasweep.scheduling.ray_session import RaySession
from gasweep.scheduling.slots import count_slots, worker_bundle
from gasweep.scheduling.worker import Worker

CONTROL_LANES = 4  # one lingers, one polls; the others keep a stop request from waiting behind them
SLOTS_FRESH_S = 1.0


def open_ray_backend(config: ClusterConfig, *, entry: str = DEFAULT_ENTRY) -> LeasedBackend:
    """A backend on the cluster that `config` names; joins or starts it.

    Raises ConfigError when `config.address` leads to no cluster.
    """
    options = LeaseOptions(
        num_workers=config.num_workers,
        fresh=config.isolation == "fresh",
        attempt_timeout_s=config.attempt_timeout_s,
        lease_idle_s=config.lease_idle_s,
        entry=entry,
    )
    return LeasedBackend(RayCluster(config), options)


class RayWorker(Worker):
    """A Worker hosted by a Ray actor: learns from Ray where it is and which GPU is its own."""

    def begin(self, **arguments: Any) -> WorkerInfo:
        """`Worker.prepare` with what Ray knows filled in."""
        import ray

        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        return self.prepare(
            node=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            gpu=gpus[0] if gpus else None,
            **arguments,
        )


class RayCluster(Cluster):
    """Actors as workers, placement groups as reservations, object refs as calls."""

    def __init__(self, config: ClusterConfig) -> None:
        import ray
        import ray.util.scheduling_strategies

        self._ray = ray
        self._num_threads = config.threads_per_worker
        self._session = RaySession(
            ray,
            address=config.address,
            num_workers=config.num_workers,
            num_threads=config.threads_per_worker,
        )
        self.shared = not self._session.owned
        self.loopback = self._session.owned
        nodes = self._alive_nodes()
        self._bundle = worker_bundle(nodes, num_threads=self._num_threads)
        self.isolated_workers = "GPU" in self._bundle
        self.device = _device_name(nodes) if self.isolated_workers else "cpu"
        self._actor = ray.remote(**self._actor_options())(RayWorker)
        self._slots: Slots | None = None
        self._slots_s = 0.0
        self._reservations: list[Reservation] = []
        self._handles: list[Handle] = []
        self._closed = False

    def now_s(self) -> float:
        return time.monotonic()

    def slots(self) -> Slots:
        if self._slots is None or self.now_s() - self._slots_s > SLOTS_FRESH_S:
            self._slots = count_slots(
                self._alive_nodes(),
                bundle=self._bundle,
                available=self._ray.available_resources(),
                maximum=self._session.autoscaling_maximum(),
            )
            self._slots_s = self.now_s()
        return self._slots

    def reserve(self, num_workers: int) -> Reservation:
        group = self._ray.util.placement_group([dict(self._bundle)] * num_workers, strategy="PACK")
        self._reservations.append(group)
        self._slots = None
        return group

    def is_reserved(self, reservation: Reservation) -> bool:
        table = self._ray.util.placement_group_table(reservation)
        return bool(table.get("state") == "CREATED")

    def release(self, reservation: Reservation) -> None:
        self._reservations.remove(reservation)
        self._ray.util.remove_placement_group(reservation)
        self._slots = None

    def spawn(self, reservation: Reservation, index: int) -> tuple[Handle, Ref]:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=reservation, placement_group_bundle_index=index
        )
        handle = self._actor.options(scheduling_strategy=strategy).remote()
        self._handles.append(handle)
        ref = handle.begin.remote(
            num_threads=self._num_threads,
            import_path=[os.getcwd(), *sys.path],
            pinned_interface=self.loopback,
        )
        return handle, ref

    def kill(self, handle: Handle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)
            self._ray.kill(handle, no_restart=True)

    def call(self, handle: Handle, method: str, *arguments: Any, control: bool = False) -> Ref:
        bound = getattr(handle, method)
        if control:
            bound = bound.options(concurrency_group="control")
        ref: Ref = bound.remote(*arguments)
        return ref

    def wait(self, refs: Collection[Ref], timeout_s: float) -> list[Reply]:
        if not refs:
            time.sleep(timeout_s)
            return []
        ready, rest = self._ray.wait(list(refs), num_returns=1, timeout=timeout_s)
        if ready and rest:
            more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
            ready += more
        return [self._reply(ref) for ref in ready]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for handle in list(self._handles):
            self.kill(handle)
        for reservation in list(self._reservations):
            self.release(reservation)
        self._session.close()

    def _reply(self, ref: Ref) -> Reply:
        errors = self._ray.exceptions
        try:
            return Reply(ref=ref, value=self._ray.get(ref))
        except errors.RayTaskError as error:
            return Reply(ref=ref, loss=Cause.PYTHON_ERROR, message=_last_line(str(error)))
        except errors.RayError as error:
            return Reply(ref=ref, loss=_loss(str(error)), message=_loss_message(str(error)))

    def _alive_nodes(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _actor_options(self) -> dict[str, Any]:
        threads = str(self._num_threads)
        return {
            "num_cpus": self._bundle.get("CPU", 0),
            "num_gpus": self._bundle.get("GPU", 0),
            "max_restarts": 0,
            "concurrency_groups": {"control": CONTROL_LANES},
            "runtime_env": {
                "env_vars": {
                    "OMP_NUM_THREADS": threads,
                    "MKL_NUM_THREADS": threads,
                    # All of a node's GPUs stay visible and each worker takes its own: peers that are masked
                    # from each other are reported to lose NCCL's direct paths.
                    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
                }
            },
        }


def _device_name(nodes: list[Mapping[str, float]]) -> str:
    """The card's name as Ray labels nodes, e.g. "H100"; several kinds are joined."""
    prefix = "accelerator_type:"
    kinds = {key.removeprefix(prefix) for node in nodes for key in node if key.startswith(prefix)}
    return "+".join(sorted(kinds)) or "gpu"


def _loss(text: str) -> Cause:
    if "running low on memory" in text:
        return Cause.OOM
    return Cause.NODE_DEATH if "node has died" in text or "node died" in text else Cause.PROCESS_DEATH


def _loss_message(text: str) -> str:
    """One line of Ray's paragraph about a lost actor: the sentences that say what happened."""
    flat = " ".join(text.split())
    for start, end in (("Worker exit detail: ", " Some common causes"), ("The actor died because ", None)):
        if start in flat:
            return "worker lost: " + flat.split(start)[-1].split(end or "\0")[0][:300]
    return f"worker lost: {flat[:300]}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
