"""The rows of a CSV, TSV or JSONL file as dictionaries, with their line numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gasweep.analysis.sources.cells import BadCell
from gasweep.analysis.sources.options import SourceOptions
from gasweep.errors import SourceError, nearest

Record = tuple[int, dict[str, Any]]


def read_text(path: Path) -> str:
    """The file as text, without a byte order mark. Raises: SourceError naming the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise SourceError(f"{path}: is a directory, not a file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SourceError(f"{path} line {line}: not UTF-8 text; save the file as UTF-8") from None
    if not text.strip():
        raise SourceError(f"{path}: the file is empty")
    return text


def parse_json(text: str, *, path: Path, line: int | None = None) -> Any:
    """The value of a JSON text.

    line: where in the file it stands; None: it is the whole file.
    Raises: SourceError for what is no JSON, a key given twice in one object, and nesting or a whole number
        beyond any use.
    """
    where = f"{path}" if line is None else f"{path} line {line}"
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise SourceError(f"{path} line {line or error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise SourceError(f"{where}: JSON nested too deeply") from None
    except BadCell as problem:
        raise SourceError(f"{where}: {problem}") from None
    except ValueError:
        raise SourceError(f"{where}: a whole number of thousands of digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BadCell(f"key '{repeated}' is given twice in one object; keep one")
    return found


def read_records(path: Path, options: SourceOptions) -> tuple[list[str], list[Record]]:
    """Column names and (line number, row) of the file, filtered by `options.where`.

    Raises: SourceError for a file without rows, a repeated column, a row longer than the header, or a line
        that is not a JSON object.
    """
    text = read_text(path)
    is_json = path.suffix.lower() in (".jsonl", ".ndjson", ".json")
    columns, records = _json_lines(path, text) if is_json else _csv_rows(path, text, options)
    if not records:
        raise SourceError(f"{path}: holds no rows")
    kept = [record for record in records if _matches(path, columns, record[1], options.where)]
    if not kept:
        raise SourceError(f"{path}: no row matches {dict(options.where)}")
    return columns, kept


def _csv_rows(path: Path, text: str, options: SourceOptions) -> tuple[list[str], list[Record]]:
    delimiter = options.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    columns: list[str] = []
    records: list[Record] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
                continue
            if not columns:
                columns = _header(path, [cell.strip() for cell in cells])
                continue
            if len(cells) > len(columns) and any(cell.strip() for cell in cells[len(columns) :]):
                raise SourceError(
                    f"{path} line {reader.line_num}: {len(cells)} cells under {len(columns)} columns; "
                    "quote cells that hold the delimiter"
                )
            records.append((reader.line_num, dict(zip(columns, cells, strict=False))))
    except csv.Error as error:
        raise SourceError(f"{path} line {reader.line_num}: {error}") from None
    return columns, records


def _header(path: Path, columns: list[str]) -> list[str]:
    repeated = {name for name in columns if name and columns.count(name) > 1}
    if repeated:
        raise SourceError(f"{path}: column '{sorted(repeated)[0]}' appears twice; rename one")
    if len(columns) == 1 and any(mark in columns[0] for mark in ";\t|"):
        raise SourceError(f"{path}: one column '{columns[0]}' only; declare the delimiter")
    return columns


def _json_lines(path: Path, text: str) -> tuple[list[str], list[Record]]:
    columns: dict[str, None] = {}
    records: list[Record] = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        row = parse_json(content, path=path, line=line)
        if not isinstance(row, dict):
            raise SourceError(f"{path} line {line}: holds a {type(row).__name__}, not an object")
        columns.update(dict.fromkeys(row))
        records.append((line, row))
    return list(columns), records


def _matches(path: Path, columns: list[str], row: Mapping[str, Any], where: Mapping[str, str]) -> bool:
    for name, text in where.items():
        if name not in columns:
            raise SourceError(f"{path}: where: no column '{name}'; {nearest(name, columns)}")
        if _as_text(row.get(name)) != text:
            return False
    return True


def _as_text(value: Any) -> str:
    """A cell as a file shows it: JSON's true is "true", its null is nothing."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
