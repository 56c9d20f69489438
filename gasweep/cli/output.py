"""What commands print: JSON objects, tables, lines; rich is imported on first use."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 200  # columns for tables that no terminal limits


def print_json(value: dict[str, Any]) -> None:
    """One object on stdout, nothing else."""
    sys.stdout.write(json.dumps(value, allow_nan=False, indent=2) + "\n")


def print_lines(lines: Sequence[str], *, file: TextIO | None = None) -> None:
    """Lines as they are: never wrapped, never cut."""
    (file or sys.stdout).write("".join(f"{line}\n" for line in lines))


def console(file: TextIO | None = None) -> Console:
    """A console on `file` (stdout); into a pipe it is wide, plain and does not wrap."""
    from rich.console import Console

    out = file or sys.stdout
    width = None if out.isatty() else _PIPE_WIDTH
    return Console(
        file=out, width=width, highlight=False, soft_wrap=not out.isatty(), emoji=False, markup=False
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns padded to their widest cell, the last one to the left."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        sys.stdout.write("  " + "  ".join([*cells, row[-1]]).rstrip() + "\n")
