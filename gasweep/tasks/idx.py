"""Reading IDX files, the format of MNIST and Fashion-MNIST, plain or gzip-compressed.

Source: http://yann.lecun.com/exdb/mnist/ ("the IDX file format"): two zero bytes, a type code (8 = unsigned
byte), the number of dimensions, each dimension as a big-endian uint32, then the values in C order.
"""

from __future__ import annotations

import functools
import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gasweep.errors import SourceError

UNSIGNED_BYTE = 8
GZIP_MAGIC = b"\x1f\x8b"


def find_idx(folders: list[Path], stem: str) -> Path:
    """The file `stem` or `stem`.gz in the first of `folders` that has one.

    Raises SourceError naming the folders and the names looked for.
    """
    for folder in folders:
        for name in (stem, f"{stem}.gz"):
            if (folder / name).is_file():
                return folder / name
    if not folders[0].is_dir():
        raise SourceError(f"data.root={str(folders[0])!r} is no folder; it should hold {stem} or {stem}.gz")
    looked = " and ".join(str(folder) for folder in folders)
    raise SourceError(f"data.root={str(folders[0])!r}: no {stem} or {stem}.gz in {looked}")


def read_idx(path: Path, *, shape: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
    """The array of unsigned bytes in `path`, read-only; cached by path, size and time of change.

    shape: what every dimension must be; None where any length will do.
    Raises SourceError naming the file and what is wrong with it.
    """
    status = path.stat()
    return _read(path, shape, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(path: Path, shape: tuple[int | None, ...], size: int, mtime_ns: int) -> np.ndarray[Any, Any]:
    content = _decompressed(path)
    if len(content) < 4 or content[0] or content[1] or content[2] != UNSIGNED_BYTE:
        raise SourceError(f"{path}: starts with {content[:4].hex(' ')}, no IDX header of unsigned bytes")
    header_bytes = 4 + 4 * content[3]
    if content[3] != len(shape) or len(content) < header_bytes:
        raise SourceError(f"{path}: an IDX file of {content[3]} dimensions, expected {len(shape)}")
    found = struct.unpack(f">{content[3]}I", content[4:header_bytes])
    if any(want is not None and want != have for want, have in zip(shape, found, strict=True)):
        wanted = "x".join("n" if want is None else str(want) for want in shape)
        raise SourceError(f"{path}: shape {'x'.join(map(str, found))}, expected {wanted}")
    if len(content) - header_bytes != math.prod(found):
        raise SourceError(
            f"{path}: its header promises {math.prod(found)} values, the file holds "
            f"{len(content) - header_bytes}; it is truncated or damaged"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(found)


def _decompressed(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == GZIP_MAGIC else content
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read ({error}); is it truncated or damaged?") from error
