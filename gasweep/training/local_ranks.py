"""Ranks on this machine without Ray: processes that stay, joined into a new process group for each call."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from gasweep.errors import GasweepError, RunError, UserError
from gasweep.training.process import ProcessContext

Task = Callable[..., Any]


class LocalRanks:
    """A context manager; the processes end with it.

    device: "cpu", or "cuda" (rank r takes GPU r). num_threads: intra-op threads of each process.
    timeout_s: how long a call may take.
    """

    def __init__(self, *, device: str = "cpu", num_threads: int = 1, timeout_s: float = 600.0) -> None:
        self._device = device
        self._num_threads = num_threads
        self._timeout_s = timeout_s
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._calls = itertools.count()
        self._folder = tempfile.TemporaryDirectory(prefix="gasweep-ranks-")

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, world_size: int, function: Task, **arguments: Any) -> list[Any]:
        """`function(process, **arguments)` on each rank of a new group; the results by rank.

        `function` must be importable, its arguments and results picklable.
        Raises the user's error a rank raised, else RunError with the ranks' tracebacks. When a process died
        or did not answer, all are replaced.
        """
        self._grow(world_size)
        store = str(Path(self._folder.name) / f"store-{next(self._calls)}")
        workers = self._workers[:world_size]
        for rank, (_, connection) in enumerate(workers):
            connection.send((rank, world_size, store, self._timeout_s, function, arguments))
        outcomes = self._collect(workers)
        errors = [outcome for ok, outcome in outcomes if not ok]
        if errors:
            raise _most_telling(errors)
        return [value for _, value in outcomes]

    @property
    def process_ids(self) -> list[int | None]:
        """Of the processes as they stand, by rank; for a test that wants one dead."""
        return [process.pid for process, _ in self._workers]

    def close(self) -> None:
        self._end_workers()
        self._folder.cleanup()

    def _grow(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        while len(self._workers) < count:
            parent, child = context.Pipe()
            device = f"cuda:{len(self._workers)}" if self._device == "cuda" else "cpu"
            process = context.Process(target=_serve, args=(child, device, self._num_threads), daemon=True)
            process.start()
            child.close()
            self._workers.append((process, parent))

    def _collect(self, workers: list[tuple[BaseProcess, Connection]]) -> list[tuple[bool, Any]]:
        outcomes: dict[int, tuple[bool, Any]] = {}
        died = False
        waiting = {connection: rank for rank, (_, connection) in enumerate(workers)}
        while waiting and (ready := wait(list(waiting), timeout=self._timeout_s)):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    outcomes[rank] = connection.recv()
                except (EOFError, ConnectionError):
                    outcomes[rank] = (False, f"rank {rank}: the process died")
                    died = True
        if died or waiting:
            self._end_workers()
        missing = (False, f"no answer within {self._timeout_s:g} s")
        return [outcomes.get(rank, missing) for rank in range(len(workers))]

    def _end_workers(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.kill()
            process.join()
        self._workers = []


def _most_telling(errors: list[Any]) -> GasweepError:
    """A user's error explains the lost peers that the other ranks report."""
    for error in errors:
        if isinstance(error, UserError):
            return error
    for error in errors:
        if isinstance(error, GasweepError):
            return error
    return RunError("; ".join(str(error) for error in errors))


def _serve(connection: Connection, device: str, num_threads: int) -> None:
    """A rank's process: runs functions until the parent is gone."""
    import torch

    torch.set_num_threads(num_threads)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            rank, world_size, store, timeout_s, function, arguments = connection.recv()
            process = ProcessContext(rank=rank, world_size=world_size, device=device)
            connection.send(_call(process, store, timeout_s, function, arguments))


def _call(
    process: ProcessContext, path: str, timeout_s: float, function: Task, arguments: dict[str, Any]
) -> tuple[bool, Any]:
    from torch._C._distributed_c10d import FileStore

    from gasweep.training.reuse import join_group

    try:
        if process.world_size == 1:
            return True, function(process, **arguments)
        store = FileStore(path, process.world_size)
        with join_group(
            rank=process.rank,
            world_size=process.world_size,
            store=store,
            device=process.device,
            timeout_s=timeout_s,
        ):
            return True, function(process, **arguments)
    except GasweepError as error:
        return False, error
    except Exception:
        return False, f"rank {process.rank}: {traceback.format_exc()}"
