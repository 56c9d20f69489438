"""Ctrl-C and friends: the first asks for an orderly end, the second for an immediate one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_CODE = 130
LAST_RESORT_S = 3.0  # after the second signal the process ends by itself within this time, whatever blocks it
# The same after the first. Who signals a whole process group (timeout, a batch system) takes a local
# cluster's servers away too, and calls to them block for a minute.
OVERDUE_S = 30.0
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP while entered; they raise nothing, so no write is torn.

    Outside the main thread signals cannot be caught: there it counts nothing, and `ask` is the way to stop.
    A SIGHUP that was ignored (nohup) stays ignored. Whoever has not left OVERDUE_S after the first signal, or
    LAST_RESORT_S after the second, ends with the process.
    """

    def __init__(self) -> None:
        self._count = 0
        self._previous: dict[int, Any] = {}
        self._left = threading.Event()

    @property
    def asked(self) -> bool:
        return self._count > 0

    @property
    def insisted(self) -> bool:
        return self._count > 1

    def ask(self) -> None:
        """As if a signal had come."""
        self._count += 1
        if self._count == 2:
            self._end_after(LAST_RESORT_S)
        elif self._count > 2:
            _end_process()

    def install(self) -> None:
        """Take the signals over, again if some library has put its own handler there."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            current = signal.getsignal(number)
            if number == getattr(signal, "SIGHUP", None) and current is signal.SIG_IGN:
                continue
            self._previous.setdefault(number, current)
            signal.signal(number, self._handle)

    def __enter__(self) -> Self:
        self._left.clear()
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = {}
        self._count = 0
        self._left.set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.ask()
        if self._count == 1:
            self._end_after(OVERDUE_S)

    def _end_after(self, seconds: float) -> None:
        """End the process unless it has left by then."""

        def wait() -> None:
            if not self._left.wait(seconds):
                _end_process()

        threading.Thread(target=wait, daemon=True).start()


def _end_process() -> None:
    # Everything in the journal is durable already, and the workers of a local cluster die with this process.
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # a live table has hidden the cursor
    os.write(2, b"stopped at once; the same command goes on from the journal\n")
    os._exit(EXIT_CODE)
