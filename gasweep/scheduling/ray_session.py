"""A connection to Ray: a private local cluster, one that is joined, or one that this process joined already.

Gets the ray module from its caller, so that ray is imported in one file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gasweep.errors import ConfigError
from gasweep.scheduling import ray_watchdog

LONGEST_BASE = 24  # characters; a Unix socket's path, which Ray makes of it, may have 107
OBJECT_STORE_BYTES = 100 * 2**20  # only orders, records and results travel; Ray's default is 30 % of memory
_PREFIX = "gasweep-"

_ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # 15 by default: training would yield to everything else on the machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class RaySession:
    """owned: the cluster is ours alone, was started here, and ends with us."""

    def __init__(self, ray: Any, *, address: str | None, num_workers: int | None, num_threads: int) -> None:
        self._ray = ray
        self._folder: Path | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._joined_before = bool(ray.is_initialized())
        self.owned = address is None and not self._joined_before
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if self.owned:
            self._start(num_workers=num_workers, num_threads=num_threads)
        elif not self._joined_before:
            self._join(str(address))
        if not self._joined_before:
            self._silence()

    def autoscaling_maximum(self) -> Mapping[str, float] | None:
        """All resources of the cluster grown to its maximum; None where it does not grow or does not say."""
        if self.owned:
            return None
        # Ray has no public call for it; its own libraries ask the same way.
        with contextlib.suppress(Exception):
            found: Mapping[str, float] | None
            found = self._ray._private.state.state.get_max_resources_from_cluster_config()
            return found
        return None

    def close(self) -> None:
        """Leave; a cluster of our own ends."""
        if not self._joined_before:
            self._ray.shutdown()
        self._tidy_up()

    def _tidy_up(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._watchdog is not None:
            self._watchdog.communicate(ray_watchdog.IN_ORDER)
            self._watchdog = None

    def _start(self, *, num_workers: int | None, num_threads: int) -> None:
        # A folder of our own: Ray's default is shared by all clusters of the machine; a file left there by
        # a cluster that ended badly makes the next start join a dead one.
        self._folder = _private_folder()
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", ray_watchdog.__file__, str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )
        try:
            self._ray.init(
                address="local",
                num_cpus=_num_cpus(num_workers=num_workers, num_threads=num_threads),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(self._folder),
                **_quiet(),
            )
        except BaseException:
            self._tidy_up()
            raise

    def _silence(self) -> None:
        """Keep Ray from printing a paragraph to stdout for every lost worker, into a live table: a lost
        worker is an event here, told once. Ray has no option for it."""
        worker = self._ray._private.worker
        if hasattr(worker, "print_to_stdstream"):
            worker.print_to_stdstream = lambda *arguments, **keywords: None

    def _join(self, address: str) -> None:
        if "://" in address:
            raise ConfigError(
                f"cluster.address='{address}': Ray Client is not supported; run gasweep on a node of the "
                "cluster with cluster.address=auto, or give host:port of its head"
            )
        try:
            self._ray.init(address=address, **_quiet())
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"cluster.address='{address}' leads to no Ray cluster ({reason}); start one with "
                "`ray start --head`, correct the address, or set cluster.address=null for a local one"
            ) from error


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}


def _num_cpus(*, num_workers: int | None, num_threads: int) -> int | None:
    """CPUs that a local cluster claims to have; None: what Ray detects.

    An explicit num_workers is taken at its word, even where it means several workers per core.
    """
    if num_workers is not None:
        return num_workers * num_threads
    return num_threads if num_threads > (os.cpu_count() or 1) else None


def _private_folder() -> Path:
    base = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(base) > LONGEST_BASE:
        base = "/tmp"
    _remove_left_behind(Path(base))
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def _remove_left_behind(base: Path) -> None:
    """Folders of sweeps of this user that were killed."""
    for folder in base.glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not _is_alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
