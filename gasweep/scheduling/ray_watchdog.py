"""Outlives a driver just long enough to end what a killed one leaves of its local Ray cluster.

Ray's own processes die with the driver, but two agents wait a minute for the server that died with it. This
runs as a program of its own (standard library only): `python ray_watchdog.py FOLDER`, with a pipe from the
driver as its stdin. A driver that ends in order says so through the pipe first. When the pipe ends without
that, the driver is gone: everything that still has a file of the cluster's folder open is killed, and the
folder removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

IN_ORDER = b"in order"
GRACE_S = 1.0  # for what ends by itself


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    if sys.stdin.buffer.read() == IN_ORDER:
        return
    deadline = time.monotonic() + GRACE_S
    while (users := users_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in users:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def users_of(folder: Path) -> set[int]:
    """Processes, but this one, that have a file below `folder` open; empty where there is no /proc."""
    found = set()
    prefix = f"{folder}/"
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for link in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith(prefix):
                        found.add(int(entry.name))
                        break
    return found - {os.getpid()}


if __name__ == "__main__":
    main()
