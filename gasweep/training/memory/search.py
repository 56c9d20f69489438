"""Find the largest micro-batch that fits, by trying sizes that only ever grow from ones that fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gasweep.batching.arithmetic import require_positive_int
from gasweep.errors import UserError

Fits = Callable[[int], bool]


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """largest: a size that was itself tried and fitted; None: not even the smallest did.

    tried: every size in the order tried, with its answer.
    reached_limit: whether the search ended at `limit`, not at the memory.
    """

    largest: int | None
    tried: list[tuple[int, bool]]
    reached_limit: bool


def largest_that_fits(
    fits: Fits,
    *,
    start: int = 1,
    limit: int = 2**20,
    powers_only: bool = False,
    resolution: float = 0.0,
) -> SearchResult:
    """Double from `start` until a size does not fit, then bisect between the last two.

    fits: tries one size, in full, and says whether it fitted; never called twice for one size.
    powers_only: stop after the doubling.
    resolution: stop once a size at most this fraction larger is known not to fit; 0: the exact largest.

    A `start` that does not fit is halved first. The returned size has been tried itself.
    """
    require_positive_int(start, field="start", error=UserError)
    require_positive_int(limit, field="limit", error=UserError)
    tried: dict[int, bool] = {}

    def attempt(size: int) -> bool:
        tried[size] = fits(size)
        return tried[size]

    low, high = _bracket(attempt, min(start, limit), limit)
    while low is not None and high is not None and not powers_only:
        if high - low <= max(1, resolution * low):
            break
        middle = (low + high) // 2
        low, high = (middle, high) if attempt(middle) else (low, middle)
    return SearchResult(largest=low, tried=list(tried.items()), reached_limit=low == limit)


def _bracket(attempt: Fits, start: int, limit: int) -> tuple[int | None, int | None]:
    """The largest size known to fit and the smallest known not to, after doubling or halving."""
    size = start
    if not attempt(size):
        while size > 1:
            high, size = size, size // 2
            if attempt(size):
                return size, high
        return None, size
    while size < limit:
        larger = min(size * 2, limit)
        if not attempt(larger):
            return size, larger
        size = larger
    return size, None
