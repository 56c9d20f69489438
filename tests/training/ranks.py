"""Run a function on several ranks of a gloo group, fast: the processes stay, the group is new each time."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0


class RankError(AssertionError):
    """A rank raised, died or hung; the message holds its traceback."""


def run_on_ranks(world_size: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """`function(rank, *args, **kwargs)` on each rank of a fresh default gloo group; the results by rank.

    `function` must be importable (top level of a test module), its arguments and results picklable. A rank
    that raises leaves the group at once, so the others fail too instead of waiting.
    """
    return _POOL.run(world_size, function, args, kwargs)


class _Pool:
    def __init__(self) -> None:
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._runs = itertools.count()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, world_size: int, function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        self._grow(world_size)
        assert self._folder is not None
        store = str(Path(self._folder.name) / f"store-{next(self._runs)}")
        workers = self._workers[:world_size]
        for rank, (_, connection) in enumerate(workers):
            connection.send((rank, world_size, store, function, args, kwargs))
        outcomes = self._collect(workers)
        if len(outcomes) < world_size:
            self.close()
            raise RankError(f"only ranks {sorted(outcomes)} answered; the others died or hung")
        failed = [f"rank {rank}: {text}" for rank, (ok, text) in sorted(outcomes.items()) if not ok]
        if failed:
            raise RankError("\n".join(failed))
        return [outcomes[rank][1] for rank in range(world_size)]

    def _grow(self, count: int) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        while len(self._workers) < count:
            parent, child = context.Pipe()
            process = context.Process(target=_serve, args=(child,), daemon=True)
            process.start()
            child.close()
            self._workers.append((process, parent))

    def _collect(self, workers: list[tuple[BaseProcess, Connection]]) -> dict[int, tuple[bool, Any]]:
        outcomes: dict[int, tuple[bool, Any]] = {}
        waiting = {connection: rank for rank, (_, connection) in enumerate(workers)}
        while waiting:
            ready = wait(list(waiting), timeout=TIMEOUT_S)
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                with contextlib.suppress(EOFError):
                    outcomes[rank] = connection.recv()
        return outcomes

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.kill()
            process.join()
        self._workers = []


def _serve(connection: Connection) -> None:
    """A rank's process: waits for functions until the parent is gone."""
    import torch

    from gasweep.training.reuse import warm_up

    torch.set_num_threads(1)
    warm_up(num_threads=1)
    while True:
        try:
            rank, world_size, path, function, args, kwargs = connection.recv()
        except EOFError:
            return
        connection.send(_run_rank(rank, world_size, path, function, args, kwargs))


def _run_rank(
    rank: int, world_size: int, path: str, function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[bool, Any]:
    import torch.distributed as dist

    from gasweep.training.reuse import join_group

    try:
        store = dist.FileStore(path, world_size)
        with join_group(rank=rank, world_size=world_size, store=store, device="cpu", timeout_s=TIMEOUT_S):
            return True, function(rank, *args, **kwargs)
    except Exception:
        return False, traceback.format_exc()


_POOL = _Pool()
atexit.register(_POOL.close)
