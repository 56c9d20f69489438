"""Run a function on several ranks of a gloo group, fast: the processes stay for the whole test session."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from gasweep.errors import GasweepError
from gasweep.training.local_ranks import LocalRanks
from gasweep.training.process import ProcessContext

TIMEOUT_S = 240.0

_RANKS = LocalRanks(timeout_s=TIMEOUT_S)
atexit.register(_RANKS.close)


class RankError(AssertionError):
    """A rank raised, died or hung; the message says what."""


def run_on_ranks(world_size: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """`function(rank, *args, **kwargs)` on each rank of a fresh default gloo group; the results by rank.

    `function` must be importable (top level of a test module), its arguments and results picklable.
    """
    try:
        return _RANKS.run(world_size, _call, called=function, args=args, kwargs=kwargs)
    except GasweepError as error:
        raise RankError(f"{type(error).__name__}: {error}") from error


def _call(process: ProcessContext, *, called: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return called(process.rank, *args, **kwargs)
