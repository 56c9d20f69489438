"""The framing of a `.wandb` file: records in the LevelDB log format.

Source: LevelDB, doc/log_format.md (blocks of 32 KiB; a record is one full chunk, or a first, middle and last
one); W&B writes seven bytes before the first block's chunks: ":W&B", a magic number and a version.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from gasweep.errors import SourceError

_BLOCK = 32 * 1024
_CHUNK_HEADER = struct.Struct(
    "<IHB"
)  # CRC-32 of type and payload (not LevelDB's masked CRC-32C), length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FILE_HEADER = struct.Struct("<4sHB")
_IDENT, _MAGIC = b":W&B", 0xBEE1


def records(data: bytes) -> Iterator[bytes]:
    """The payloads in a `.wandb` file's bytes, in order.

    A torn tail (its writer was killed) ends the iteration without an error, as W&B's own reader does.
    Raises SourceError when the bytes do not start like such a file, or when a chunk fails its checksum.
    """
    header = _FILE_HEADER.pack(_IDENT, _MAGIC, 0)
    if len(data) < _FILE_HEADER.size and header.startswith(data):
        return
    if len(data) < _FILE_HEADER.size or _FILE_HEADER.unpack_from(data)[:2] != (_IDENT, _MAGIC):
        raise SourceError("not a .wandb file: it does not start with W&B's header")
    position, parts = _FILE_HEADER.size, b""
    while position + _CHUNK_HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _CHUNK_HEADER.size:
            position += left
            continue
        checksum, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        start = position + _CHUNK_HEADER.size
        position = start + length
        chunk = data[start:position]
        if len(chunk) < length or (kind == 0 and length == 0):
            return
        if zlib.crc32(bytes([kind]) + chunk) != checksum:
            raise SourceError(f"a record near byte {start} fails its checksum: the file is damaged")
        parts = chunk if kind in (_FULL, _FIRST) else parts + chunk
        if kind in (_FULL, _LAST):
            yield parts
