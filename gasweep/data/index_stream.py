"""The infinite stream of example indices that a run trains on.

The stream depends on (dataset length, data seed, sampling) and on nothing else: not on the micro-batch size,
the number of ranks, the accumulation steps or where a run was interrupted. Positions count contributions, so
an optimizer step takes the next B of them and a ramp may change B without replaying or skipping any.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gasweep.data.streams import derive_seed
from gasweep.errors import ConfigError, TaskError

Indices = np.ndarray[Any, np.dtype[np.int64]]
Sampling = Literal["epoch", "replacement"]

_REPLACEMENT_BLOCK = 4096
_KEPT_BLOCKS = 4


class IndexStream:
    """Indices 0..D-1, without end.

    sampling: "epoch", a fresh permutation of the data set per epoch, or "replacement", independent uniform
        draws.

    Raises ConfigError for an unknown sampling, TaskError for an empty data set.
    """

    def __init__(self, *, num_examples: int, seed: int, sampling: str = "epoch") -> None:
        if sampling not in ("epoch", "replacement"):
            raise ConfigError(f"data.sampling={sampling!r} must be epoch or replacement")
        if num_examples < 1:
            raise TaskError(f"the training data hold {num_examples} examples; at least 1 is needed")
        self.num_examples = num_examples
        self.seed = seed
        self.sampling: Sampling = "epoch" if sampling == "epoch" else "replacement"
        self._block_length = num_examples if sampling == "epoch" else _REPLACEMENT_BLOCK
        self._blocks: dict[int, Indices] = {}

    def take(self, start: int, count: int) -> Indices:
        """The indices at positions start..start+count-1, shape [count]: a pure function of its arguments."""
        if start < 0 or count < 0:
            raise ValueError(f"start={start} and count={count} must be >= 0")
        pieces = []
        position, stop = start, start + count
        while position < stop:
            block, offset = divmod(position, self._block_length)
            piece = self._block(block)[offset : offset + stop - position]
            pieces.append(piece)
            position += len(piece)
        if len(pieces) == 1:
            return pieces[0].copy()
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def straddles_epoch(self, start: int, count: int) -> bool:
        """Whether positions start..start+count-1 fall in more than one epoch; False under replacement."""
        if self.sampling == "replacement" or count < 2:
            return False
        return start // self.num_examples != (start + count - 1) // self.num_examples

    def num_distinct(self, start: int, count: int) -> int:
        """Distinct examples among the contributions start..start+count-1."""
        if self.sampling == "epoch":
            to_epoch_end = self.num_examples - start % self.num_examples
            if count <= to_epoch_end:
                return count
            if start % self.num_examples == 0 or count - to_epoch_end >= self.num_examples:
                return self.num_examples
        seen = np.zeros(self.num_examples, dtype=bool)
        for offset in range(0, count, self._block_length):
            seen[self.take(start + offset, min(self._block_length, count - offset))] = True
        return int(seen.sum())

    def has_duplicates(self, start: int, count: int) -> bool:
        """Whether one example contributes more than once among positions start..start+count-1."""
        if self.sampling == "epoch" and not self.straddles_epoch(start, count):
            return False
        return self.num_distinct(start, count) < count

    def _block(self, block: int) -> Indices:
        """Epoch `block` of an epoch stream, or the `block`-th run of draws; the last few are kept."""
        if block not in self._blocks:
            bits = _random_bits(derive_seed(self.seed, "data", self.sampling, block), self._block_length)
            while len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[block] = self._indices(bits)
        return self._blocks[block]

    def _indices(self, bits: np.ndarray[Any, np.dtype[np.uint64]]) -> Indices:
        if self.sampling == "epoch":
            return np.argsort(bits, kind="stable").astype(np.int64)
        uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return (uniform * self.num_examples).astype(np.int64)


def _random_bits(seed: int, length: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """64 random bits per position.

    Of NumPy's generators only the bit generators' raw output is promised to stay the same between versions;
    `Generator.permutation` and `integers` are not, and a run must not depend on the installed NumPy.
    """
    bits: np.ndarray[Any, np.dtype[np.uint64]] = np.random.PCG64(seed).random_raw(length)
    return bits
