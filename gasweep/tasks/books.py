"""Text as bytes: reading a folder of books and splitting each into training and held-out text."""

from __future__ import annotations

import functools
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gasweep.errors import SourceError

SHIPPED = Path(__file__).parent / "shipped" / "books"
SUFFIXES = (".txt", ".txt.gz")


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Where windows of `length` + 1 bytes start in `text`; the last byte is a target only.

    text: uint8 [num_bytes], all books end to end. starts: int64 [num_windows].
    """

    text: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]
    length: int

    def take(self, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """int64 [n, length + 1]."""
        offsets = np.arange(self.length + 1)
        window: np.ndarray[Any, Any] = self.text[self.starts[indices][:, None] + offsets]
        return window.astype(np.int64, copy=False)


def read_windows(root: str | None, *, length: int, eval_fraction: float) -> tuple[Windows, Windows]:
    """(training, held-out) windows; each book's last `eval_fraction` is held out, no window crosses books.

    Raises SourceError when the folder holds no text or too little for one window of either kind.
    """
    folder = SHIPPED if root is None else Path(root).expanduser()
    books = [_read_book(path, path.stat().st_mtime_ns) for path in _book_paths(folder)]
    text = np.concatenate(books)
    train, held_out = [], []
    end_of_last = 0
    for book in books:
        split = end_of_last + round(len(book) * (1.0 - eval_fraction))
        end = end_of_last + len(book)
        train.append(np.arange(end_of_last, split - length, length))
        held_out.append(np.arange(split, end - length, length))
        end_of_last = end
    parts = [Windows(text=text, starts=np.concatenate(starts), length=length) for starts in (train, held_out)]
    if min(len(part.starts) for part in parts) == 0:
        raise SourceError(
            f"{folder}: {len(text)} bytes of text are too few for a training and a held-out window of "
            f"{length + 1} bytes; add text or use a smaller task.context"
        )
    return parts[0], parts[1]


def _book_paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise SourceError(f"data.root={str(folder)!r} is no folder; it should hold .txt or .txt.gz files")
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file())
    if not paths:
        raise SourceError(f"data.root={str(folder)!r} holds no .txt or .txt.gz file")
    return paths


@functools.lru_cache(maxsize=64)
def _read_book(path: Path, mtime_ns: int) -> np.ndarray[Any, Any]:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read ({error}); is it truncated or damaged?") from error
    return np.frombuffer(content, dtype=np.uint8)
