"""Ranks on this machine without Ray: processes that stay, joined into a new process group for each call."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from gasweep.errors import GasweepError, RunError, UserError
from gasweep.training.process import ProcessContext

Task = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What a rank made of a call. reusable: whether its process can serve another."""

    ok: bool
    value: Any
    reusable: bool


class LocalRanks:
    """A context manager; the processes end with it, and with this process however it ends.

    device: "cpu", or "cuda" (rank r takes GPU r). num_threads: intra-op threads of each process.
    timeout_s: how long a call may take.
    """

    def __init__(self, *, device: str = "cpu", num_threads: int = 1, timeout_s: float = 600.0) -> None:
        self._device = device
        self._num_threads = num_threads
        self._timeout_s = timeout_s
        self._workers: dict[int, tuple[BaseProcess, Connection]] = {}
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
        Raises the user's error a rank raised, else RunError with the ranks' tracebacks. Processes that died,
        did not answer or could not join their group are replaced.
        """
        self._fill(world_size)
        store = str(Path(self._folder.name) / f"store-{next(self._calls)}")
        for rank in range(world_size):
            self._workers[rank][1].send((rank, world_size, store, self._timeout_s, function, arguments))
        answers = self._collect(world_size)
        for rank, answer in enumerate(answers):
            if not answer.reusable:
                self._end(rank)
        errors = [answer.value for answer in answers if not answer.ok]
        if errors:
            raise _most_telling(errors)
        return [answer.value for answer in answers]

    @property
    def process_ids(self) -> list[int | None]:
        """Of the processes as they stand, by rank; for a test that wants one dead."""
        return [worker[0].pid for _, worker in sorted(self._workers.items())]

    def close(self) -> None:
        for rank in list(self._workers):
            self._end(rank)
        self._folder.cleanup()

    def _fill(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        for rank in range(count):
            if rank in self._workers:
                continue
            parent, child = context.Pipe()
            device = f"cuda:{rank}" if self._device == "cuda" else "cpu"
            process = context.Process(target=_serve, args=(child, device, self._num_threads), daemon=True)
            process.start()
            child.close()
            self._workers[rank] = (process, parent)

    def _collect(self, world_size: int) -> list[_Answer]:
        missing = _Answer(ok=False, value=f"no answer within {self._timeout_s:g} s", reusable=False)
        answers = dict.fromkeys(range(world_size), missing)
        waiting = {self._workers[rank][1]: rank for rank in range(world_size)}
        while waiting and (ready := wait(list(waiting), timeout=self._timeout_s)):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, ConnectionError):
                    told = f"rank {rank}: the process died"
                    answers[rank] = _Answer(ok=False, value=told, reusable=False)
        return [answers[rank] for rank in range(world_size)]

    def _end(self, rank: int) -> None:
        process, connection = self._workers.pop(rank)
        connection.close()
        process.kill()
        process.join()


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

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            rank, world_size, store, timeout_s, function, arguments = connection.recv()
            process = ProcessContext(rank=rank, world_size=world_size, device=device)
            connection.send(_call(process, store, timeout_s, function, arguments))


def _end_with_parent() -> None:
    """A parent that was killed closes nothing, and a rank amid a long call would not look: it ends here."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(
    process: ProcessContext, path: str, timeout_s: float, function: Task, arguments: dict[str, Any]
) -> _Answer:
    from torch._C._distributed_c10d import FileStore

    from gasweep.training.reuse import join_group

    joined = process.world_size == 1
    try:
        if joined:
            return _Answer(ok=True, value=function(process, **arguments), reusable=True)
        store = FileStore(path, process.world_size)
        with join_group(
            rank=process.rank,
            world_size=process.world_size,
            store=store,
            device=process.device,
            timeout_s=timeout_s,
        ):
            joined = True
            return _Answer(ok=True, value=function(process, **arguments), reusable=True)
    except GasweepError as error:
        return _Answer(ok=False, value=error, reusable=joined)
    except Exception:
        return _Answer(ok=False, value=f"rank {process.rank}: {traceback.format_exc()}", reusable=joined)
