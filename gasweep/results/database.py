"""Opening the journal's SQLite file: pragmas, version checks, recovery, errors of one line."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gasweep.errors import SweepDirectoryError
from gasweep.results.schema import APPLICATION_ID, SCHEMA_VERSION, TABLES

# A reader holds the file for one query at a time; these are long beside any query, short beside a sweep.
_WRITER_BUSY_S = 120.0
_READER_BUSY_S = 30.0

# Primary result codes that no user can cause: a wrong statement, a broken constraint, a misused connection.
_OUR_FAULT = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISUSE})


def open_writer(path: Path) -> sqlite3.Connection:
    """Open or create the journal for writing. The caller holds the directory's lock.

    A rollback journal, because WAL needs shared memory and does not survive NFS; TRUNCATE, because with
    synchronous=FULL it also syncs the moment that commits (deleting the journal would not).
    """
    with translated(path):
        connection = sqlite3.connect(path, timeout=_WRITER_BUSY_S, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=TRUNCATE")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")
            if _version(connection) == 0 and not _has_tables(connection):
                _create(connection)
            check_version(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the journal for queries only, whether or not a driver writes to it or died writing to it.

    After a crash the file may need a rollback, which SQLite does on the first read if it may write there;
    where it may not (someone else's directory), a rolled-back copy is read instead.
    Raises SweepDirectoryError when there is no journal, or one of another version.
    """
    if not path.is_file():
        raise SweepDirectoryError(
            f"directory={path.parent} holds no sweep ({path.name} is missing); start one with "
            f"`gasweep run CONFIG --dir {path.parent}`"
        )
    with translated(path):
        connection = _connect_query_only(path)
        try:
            check_version(connection, path)
        except sqlite3.OperationalError as error:
            connection.close()
            if "readonly" not in str(error):
                raise
            connection = _open_recovered_copy(path)
        except BaseException:
            connection.close()
            raise
    return connection


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raises SweepDirectoryError unless the file is a journal of this schema version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = _version(connection)
    if application != APPLICATION_ID:
        what = "is still empty" if version == 0 and not _has_tables(connection) else "is no gasweep journal"
        raise SweepDirectoryError(f"{path} {what}; give a sweep directory that `gasweep run` has started")
    if version != SCHEMA_VERSION:
        age, fix = ("newer", "a newer") if version > SCHEMA_VERSION else ("older", "the older")
        raise SweepDirectoryError(
            f"{path} has schema version {version}, {age} than this gasweep's {SCHEMA_VERSION}; "
            f"use {fix} gasweep for this sweep, or start a new directory"
        )


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as SweepDirectoryError: disk full, permission, damage, a lock held too long."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _OUR_FAULT:
            raise
        raise SweepDirectoryError(
            f"{path}: {error}; free the disk or mend the file, then run again"
        ) from error


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute("INSERT INTO sweep VALUES (lower(hex(randomblob(4))), strftime('%s', 'now'))")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _connect_query_only(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=_READER_BUSY_S, isolation_level=None)
    _query_only(connection)
    return connection


def _open_recovered_copy(path: Path) -> sqlite3.Connection:
    with tempfile.TemporaryDirectory(prefix="gasweep-read-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        rollback = path.with_name(f"{path.name}-journal")
        if rollback.exists():
            shutil.copyfile(rollback, copy.with_name(rollback.name))
        on_disk = sqlite3.connect(copy, isolation_level=None)
        connection = sqlite3.connect(":memory:", isolation_level=None)
        with contextlib.closing(on_disk):
            on_disk.backup(connection)
    check_version(connection, path)
    _query_only(connection)
    return connection


def _query_only(connection: sqlite3.Connection) -> None:
    # Damaged text is found where it is made sense of; SQLite itself would say so as if the query were wrong.
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA query_only=ON")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
