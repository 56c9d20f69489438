"""Files that are whole or absent: written under a temporary name, synced, then moved into place."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gasweep.errors import SourceError
from gasweep.results.codec import result_from_dict, to_json_dict
from gasweep.results.records import RunResult


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8); a crash at any instant leaves the old file or the new one.

    The content is on the disk, and so is its directory entry, before this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a sweep directory is meant to be read by others where the umask allows.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of JSON; raises ValueError on NaN or infinity, TypeError on what is no plain data."""
    write_text(path, json.dumps(value, allow_nan=False, indent=2) + "\n")


def write_result(path: Path, result: RunResult) -> None:
    """A worker's `result.json`; raises AssertionError when the result holds a non-finite number."""
    write_json(path, to_json_dict(result))


def read_result(path: Path) -> RunResult | None:
    """The result that a worker left at `path`, or None when there is none.

    Raises SourceError naming the file when it is no result (written by another version, or edited).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return result_from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise SourceError(
            f"{path} is not a result this gasweep can read ({error}); remove the file to run it again"
        ) from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    # Some network file systems refuse to sync a directory; the rename itself is atomic there all the same.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
