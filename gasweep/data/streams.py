"""Named RNG streams: every random choice of a run has a name, and its seed follows from the name alone."""

from __future__ import annotations

import hashlib

Name = str | int


def derive_seed(*names: Name) -> int:
    """A seed in [0, 2**63) for the stream called `names`, e.g. `derive_seed(seed, "dropout", step, rank)`.

    SHA-256 of an unambiguous encoding (type, length, value of each name), so it is the same in every
    process, Python version and platform, and streams of different names are unrelated: ("a", "b") is not
    ("ab",) and 1 is not "1". Raises TypeError for anything but text and whole numbers (a bool or a float
    would be equal to an int and yet print differently).

    >>> derive_seed(0, "init") == derive_seed(0, "init") != derive_seed(0, "dropout")
    True
    """
    digest = hashlib.sha256()
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise TypeError(f"stream name {name!r} must be text or a whole number")
        text = str(name).encode()
        kind = b"s" if isinstance(name, str) else b"i"
        digest.update(kind + len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def run_data_seed(data_seed: int, run_seed: int) -> int:
    """The seed of a run's index stream.

    It follows the run's seed as well as `data.seed`: repetitions of a run must differ in the order of their
    data too, or their spread would understate what the order alone can do. Every (b, N, G) of one run seed
    still sees the same stream.
    """
    return derive_seed("data", data_seed, run_seed)
