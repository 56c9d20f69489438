"""How many workers a cluster's resources make room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gasweep.scheduling.cluster import Slots

Resources = Mapping[str, float]  # as Ray counts them: {"CPU": 8.0, "GPU": 1.0, ...}


def worker_bundle(nodes: Sequence[Resources], *, num_threads: int) -> dict[str, float]:
    """What one worker holds: a GPU where any node has one, with as many of its CPUs as it has threads and as
    every GPU can be given; `num_threads` CPUs elsewhere."""
    with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
    if not with_gpu:
        return {"CPU": float(num_threads)}
    cpus = min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpu)
    bundle = {"GPU": 1.0, "CPU": float(min(num_threads, cpus))}
    return {name: amount for name, amount in bundle.items() if amount > 0}


def count_slots(
    nodes: Sequence[Resources],
    *,
    bundle: Resources,
    available: Resources,
    maximum: Resources | None,
) -> Slots:
    """Room on the alive `nodes`, in what is `available` now, and with autoscaling (None: it is not known, or
    there is none)."""
    per_node = [_fits(node, bundle) for node in nodes]
    total = sum(per_node)
    grown = 0 if maximum is None else _fits(maximum, bundle)
    return Slots(
        total=total,
        maximum=max(total, grown),
        free=min(total, _fits(available, bundle)),
        per_node=max(per_node, default=0),
    )


def _fits(resources: Resources, bundle: Resources) -> int:
    return min(int(resources.get(name, 0) // amount) for name, amount in bundle.items())
