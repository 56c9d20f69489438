"""A cluster of several nodes, joined by address: gangs across nodes, a node lost without a word, one added.

In a process of its own: Ray can join one cluster at a time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(600)]

SCRIPT = """
import os, sys, warnings
from pathlib import Path

os.makedirs("/tmp/ray", exist_ok=True)  # where cluster_utils leaves its address
os.environ["RAY_worker_niceness"] = "0"
from ray.cluster_utils import Cluster
from scheduling_fakes import ENTRY
from scheduling_play import attempt_of, poll_until_end, wait_for_workers
from scheduling_specs import make_spec
from gasweep.config.schema import ClusterConfig
from gasweep.scheduling.backend import Cause, Failed, Finished, Progress
from gasweep.scheduling.ray_backend import open_ray_backend

health = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
health["health_check_failure_threshold"] = 5
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": health},
)
doomed = cluster.add_node(num_cpus=2)
backend = open_ray_backend(ClusterConfig(address=cluster.address, lease_idle_s=1e6), entry=ENTRY)
folder = Path(sys.argv[1])

def end_of(run_id, **arguments):
    backend.start(attempt_of(make_spec(run_id, **arguments), folder))
    return poll_until_end(backend)[-1]

assert backend.infeasible_reason(make_spec("x", world_size=4)).startswith("world_size=4 needs 4 workers")
wait_for_workers(backend, 3)
across = end_of("across", world_size=3, value=1)
assert isinstance(across, Finished) and across.result.extra["total"] == 6.0, across

backend.start(attempt_of(make_spec("long", world_size=3, steps=100_000, seconds=0.01), folder))
while not any(isinstance(event, Progress) for event in backend.poll(0.5)):
    pass
cluster.remove_node(doomed, allow_graceful=False)
lost = poll_until_end(backend)[-1]
assert isinstance(lost, Failed) and lost.retryable, lost
assert lost.cause in (Cause.NODE_DEATH, Cause.PROCESS_DEATH), lost
wait_for_workers(backend, 1)
assert isinstance(end_of("alone"), Finished)

cluster.add_node(num_cpus=2)
wait_for_workers(backend, 3)
assert isinstance(end_of("again", world_size=3), Finished)
backend.close()
cluster.shutdown()
print("all nodes done")
"""


def test_gangs_span_nodes_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    helpers = Path(__file__).parent.parent / "scheduling"
    code = f"import sys; sys.path.insert(0, {str(helpers)!r})\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=500.0
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all nodes done" in done.stdout
