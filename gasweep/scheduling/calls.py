"""The calls to workers that have not answered yet, and who wants each answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gasweep.scheduling.cluster import Cluster, Handle, Ref, Reply

Handler = Callable[[Reply], None]


class OpenCalls:
    """Makes calls and hands each answer to its handler, once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._handlers: dict[Ref, Handler] = {}

    def expect(self, ref: Ref, handler: Handler) -> Ref:
        """Hand the answer of a call that was already made to `handler`."""
        self._handlers[ref] = handler
        return ref

    def make(self, handle: Handle, method: str, *arguments: Any, then: Handler, control: bool = False) -> Ref:
        """Call a Worker method; see Cluster.call."""
        return self.expect(self._cluster.call(handle, method, *arguments, control=control), then)

    def tell(self, handle: Handle, method: str, *arguments: Any) -> None:
        """A control call whose answer nobody wants."""
        self._cluster.call(handle, method, *arguments, control=True)

    def forget(self, ref: Ref | None) -> None:
        """Nobody wants this answer any more."""
        if ref is not None:
            self._handlers.pop(ref, None)

    def serve(self, timeout_s: float) -> None:
        """Wait for answers, `timeout_s` at most for the first, and hand them over."""
        for reply in self._cluster.wait(self._handlers.keys(), timeout_s):
            handler = self._handlers.pop(reply.ref, None)
            if handler is not None:  # else it was forgotten by the handler of an answer just before
                handler(reply)
