"""What runs in a worker process: it trains one run after another and can be spoken to meanwhile. No ray.

`prepare`, `open_store` and `run` are called one after another on the worker's main lane; `poll`,
`request_stop`, `dump_stacks` and `linger` beside them, on the control lane.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from gasweep.scheduling.execute import execute, header
from gasweep.scheduling.gang import log_name
from gasweep.scheduling.mailbox import Mailbox
from gasweep.scheduling.network import LOOPBACK, use_interface_of
from gasweep.scheduling.order import WorkOrder
from gasweep.scheduling.outcome import Measurements, Outcome
from gasweep.scheduling.output import append_stacks, captured
from gasweep.scheduling.pool import WorkerInfo

STORE_TIMEOUT_S = 60.0
STORE_ATTEMPTS = 3


class Worker:
    """One rank's process. Plain Python, so that anything that can host an object can host a worker."""

    def __init__(self) -> None:
        self._device = "cpu"
        self._num_threads = 1
        self._mailbox = Mailbox()
        self._mailbox_of: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._stop_asked: set[tuple[str, int]] = set()
        self._log: Path | None = None
        self._store: Any = None
        self._forever = threading.Event()

    def prepare(
        self,
        *,
        address: str,
        node: str,
        num_threads: int,
        import_path: Sequence[str],
        gpu: str | None,
        pinned_interface: bool,
    ) -> WorkerInfo:
        """Become warm: import torch, build a first DDP, take the device.

        address: this node's, as its peers reach it. import_path: where the driver finds the user's modules.
        gpu: the id of the GPU that is this worker's. pinned_interface: whether all peers are on this node.
        """
        sys.path += [entry for entry in import_path if entry not in sys.path]
        use_interface_of(LOOPBACK if pinned_interface else address)
        from gasweep.training.reuse import take_device, warm_up

        self._num_threads = num_threads
        warm_up(num_threads=num_threads)
        if gpu is not None:
            self._device = take_device(gpu)
        return WorkerInfo(node=node, hostname=socket.gethostname(), pid=os.getpid(), address=address)

    def open_store(self, host: str, world_size: int) -> tuple[str, int]:
        """Serve the store of the next attempt's process group; where to find it."""
        from gasweep.training.reuse import open_store

        self._store = None
        for left in reversed(range(STORE_ATTEMPTS)):
            try:
                self._store, port = open_store(host, world_size=world_size, timeout_s=STORE_TIMEOUT_S)
            except Exception:
                if left == 0:
                    raise
            else:
                break
        return host, port

    def run(self, order: WorkOrder, store_address: tuple[str, int] | None) -> Outcome:
        """Serve one rank of an attempt; never raises."""
        key = (order.run_id, order.attempt)
        mailbox = self._mailbox_for(key)
        self._log = Path(order.run_directory) / log_name(order.rank)
        from gasweep.training.reuse import clean_slate, clean_up

        with captured(self._log) as say:
            say(header(order, where=f"{socket.gethostname()} pid {os.getpid()} {self._device}"))
            with clean_slate(num_threads=self._num_threads):
                outcome = execute(
                    order,
                    device=self._device,
                    mailbox=mailbox,
                    should_stop=lambda: key in self._stop_asked,
                    group=lambda: self._group(order, store_address),
                )
            say(outcome.trace or f"--- {outcome.cause or 'finished'} {outcome.message}".rstrip())
        self._store = None
        mailbox.close()
        clean = clean_up()
        self._stop_asked.discard(key)
        last = mailbox.take()
        return replace(
            outcome,
            reusable=outcome.reusable and clean,
            steps=last.steps,
            evaluations=last.evaluations,
        )

    def poll(self, run_id: str, attempt: int) -> Measurements:
        """That attempt's measurements since the last call; waits a moment for some, unless it has ended."""
        return self._mailbox_for((run_id, attempt)).wait_and_take()

    def request_stop(self, run_id: str, attempt: int) -> None:
        """Make that attempt's `should_stop` answer yes."""
        self._stop_asked.add((run_id, attempt))

    def dump_stacks(self) -> None:
        """Write every thread's stack to the attempt's log: where does it hang?"""
        if self._log is not None:
            append_stacks(self._log)

    def linger(self) -> None:
        """Answers never: its caller learns when this process is lost."""
        self._forever.wait()

    def _mailbox_for(self, key: tuple[str, int]) -> Mailbox:
        # An attempt may be polled before it runs, never after the next one is there.
        with self._lock:
            if self._mailbox_of != key:
                self._mailbox_of, self._mailbox = key, Mailbox()
            return self._mailbox

    def _group(
        self, order: WorkOrder, store_address: tuple[str, int] | None
    ) -> AbstractContextManager[object]:
        if order.world_size == 1:
            return nullcontext()
        from gasweep.training.reuse import join_group

        assert store_address is not None
        return join_group(
            rank=order.rank,
            world_size=order.world_size,
            store=self._store if order.rank == 0 else store_address,
            device=self._device,
            timeout_s=order.timeout_s,
        )
