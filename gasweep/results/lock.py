"""One driver per sweep directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from gasweep.errors import SweepDirectoryError
from gasweep.results.directory import LOCK_FILE

# `holder` takes the lock for an instant to see if it is free; a driver that starts just then tries again.
_ACQUIRE_ATTEMPTS = 20
_ACQUIRE_PAUSE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who drives a sweep; `started_at` in seconds since the epoch."""

    pid: int
    host: str
    started_at: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


class DirectoryLock:
    """Exclusive ownership of a sweep directory, for the life of this object's process.

    An flock on `driver.lock`: the kernel (on NFS, the server) drops it when its process dies, however it
    dies, so a dead driver's lock is free at once, while a live one is refused from any host. The file stays
    and names its last owner; only the flock counts. Forked children do not keep it.
    """

    def __init__(self, directory: Path) -> None:
        """Take the lock; raises SweepDirectoryError naming the owner's pid and host when it is held."""
        path = directory / LOCK_FILE
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _acquire(self._descriptor, directory)
            owner = Owner(pid=os.getpid(), host=socket.gethostname(), started_at=time.time())
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(asdict(owner)).encode(), 0)
        except BaseException:
            os.close(self._descriptor)
            raise
        _HELD.add(self)

    def release(self) -> None:
        """Give the directory up; safe to call twice."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None
        _HELD.discard(self)

    def forget(self) -> None:
        """Close this process's copy without giving the lock up: what a forked child must do."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def holder(directory: Path) -> Owner | None:
    """Who drives `directory` now; None when nobody does (or when locks cannot be tested there)."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_owner(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _acquire(descriptor: int, directory: Path) -> None:
    for _ in range(_ACQUIRE_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_ACQUIRE_PAUSE_S)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise SweepDirectoryError(
                    f"directory={directory} is on a file system without file locks ({error.strerror}); "
                    f"put the sweep on one that has them (a local disk, NFS)"
                ) from error
            raise
    owner = _read_owner(descriptor)
    who = "another process" if owner is None else str(owner)
    raise SweepDirectoryError(
        f"directory={directory} is being written by {who}; wait for it, stop it, or follow it with "
        f"`gasweep status {directory} --watch`"
    )


def _read_owner(descriptor: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError, OSError):
        return None
