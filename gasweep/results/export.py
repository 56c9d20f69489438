"""A sweep's journal as tables: CSV for anything, Parquet for data frames. The one file that imports pyarrow.

Columns carry the vocabulary's names and units; absent is an empty cell (CSV) or null (Parquet).
"""

from __future__ import annotations

import csv
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gasweep.errors import MissingDependencyError, UserError
from gasweep.results.columns import (
    EVALUATION_AXES,
    RUN_COLUMNS,
    STEP_COLUMNS,
    Column,
    evaluation_row,
    run_row,
    step_row,
)
from gasweep.results.reader import JournalReader

TABLES = ("runs", "evaluations", "steps")
FORMATS = ("csv", "parquet")

Row = dict[str, Any]
Batches = Iterator[list[Row]]
"""Rows in batches of one run: no table is ever whole in memory, and no read holds the journal for long."""

Write = Callable[[Path, list[Column], Batches], None]


def export_tables(reader: JournalReader, folder: Path, *, format: str = "csv") -> list[Path]:
    """Write runs, evaluations and steps into `folder`; returns the files.

    Each file appears whole or not at all. Raises MissingDependencyError for parquet without pyarrow,
    UserError for another format or a folder that cannot be written.
    """
    if format not in FORMATS:
        raise UserError(f"format={format!r} must be one of {', '.join(FORMATS)}")
    write = _write_csv if format == "csv" else _parquet_writer()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            _whole(folder / f"{table}.{format}", functools.partial(_write, write, reader, table))
            for table in TABLES
        ]
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}); choose another with --out"
        ) from error


def _write(write: Write, reader: JournalReader, table: str, path: Path) -> None:
    columns, batches = _table(reader, table)
    write(path, columns, batches)


def _table(reader: JournalReader, name: str) -> tuple[list[Column], Batches]:
    runs = reader.runs()
    if name == "runs":
        extra_axes = sorted({path for run in runs for path in run.axes})
        columns = [*RUN_COLUMNS, *((path, str) for path in extra_axes)]
        return columns, ([run_row(run, reader.result(run.run_id))] for run in runs)
    if name == "evaluations":
        metrics = sorted({key for run in runs for r in reader.evaluations(run.run_id) for key in r.metrics})
        columns = [*EVALUATION_AXES, *((metric, float) for metric in metrics)]
        return columns, (
            [evaluation_row(run, record) for record in reader.evaluations(run.run_id)] for run in runs
        )
    return [*STEP_COLUMNS], ([step_row(run, record) for record in reader.steps(run.run_id)] for run in runs)


def _whole(path: Path, write: Callable[[Path], None]) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def _write_csv(path: Path, columns: list[Column], batches: Batches) -> None:
    names = [name for name, _ in columns]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names, restval="", lineterminator="\n")
        writer.writeheader()
        for rows in batches:
            writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else value


def _parquet_writer() -> Write:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            "format='parquet' needs the package pyarrow, which is not installed; "
            "`pip install 'gasweep[parquet]'`, or use format='csv'"
        ) from error

    types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}

    def write(path: Path, columns: list[Column], batches: Batches) -> None:
        schema = pyarrow.schema([(name, types[kind]) for name, kind in columns])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for rows in batches:
                if rows:
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))

    return write
