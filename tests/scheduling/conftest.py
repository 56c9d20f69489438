"""One local Ray cluster, and one backend on it, for all tests that need Ray."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Ray with four CPUs, however many there are; its workers import the test helpers from our path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, at import and start
        import ray

        from gasweep.scheduling.ray_session import RaySession

        session = RaySession(ray, address=None, num_workers=4, num_threads=1)
    yield ray
    session.close()


@pytest.fixture(scope="session")
def ray_backend(ray_cluster: Any) -> Iterator[Any]:
    """A backend with four warm workers, kept over all tests; its trainer is the fake one."""
    from scheduling_fakes import ENTRY
    from scheduling_play import wait_for_workers

    from gasweep.config.schema import ClusterConfig
    from gasweep.scheduling.ray_backend import open_ray_backend

    backend = open_ray_backend(ClusterConfig(attempt_timeout_s=10.0, lease_idle_s=1e6), entry=ENTRY)
    wait_for_workers(backend, 4)
    yield backend
    backend.close()
