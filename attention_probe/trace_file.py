"""A trace file from the inside: its tables, its checksums, and what is told when it is torn or another's."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from attention_probe.measure.definitions import ARRAYS
from harness.errors import JournalError
from harness.runs.journal import differences

APPLICATION_ID, VERSION = 0x6D6C7373, 1
MAGIC = b"SQLite format 3\0"
NAMES = ("problem_id", "condition", "subject", "level", "outcome", "control", "prompt_sha256")
ENTRY = f"{', '.join(NAMES)}, size, filler_start, filler_stop"
RECORD = f"{ENTRY}, facts, measures, arrays"
# the small columns stand first: SQLite then need not walk the pages of the curves to reach the measures
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE header (value BLOB NOT NULL);
CREATE TABLE receipt (value BLOB NOT NULL);
CREATE TABLE trace (number INTEGER PRIMARY KEY, {ENTRY}, facts BLOB NOT NULL, measures BLOB NOT NULL,
                    arrays BLOB NOT NULL, UNIQUE (condition, problem_id));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""


_KINDS = dict.fromkeys(("mean_all", "mean_common"), np.float32) | {"roles": np.int8}


def pack(arrays: Mapping[str, NDArray[Any]], what: str) -> bytes:
    """Named arrays as one sealed blob."""
    kinds = {name: _KINDS.get(name, np.int32 if name in ARRAYS else np.float32) for name in arrays}
    whole = {name: np.ascontiguousarray(values, dtype=kinds[name]) for name, values in arrays.items()}
    return seal(safetensors.numpy.save(whole), what)


def unpack(path: Path, blob: bytes, what: str) -> dict[str, NDArray[Any]]:
    """The named arrays of a blob.

    Raises:
        JournalError: its bytes have changed.
    """
    return safetensors.numpy.load(unseal(path, blob, what))


def to_text(value: Mapping[str, Any], what: str) -> bytes:
    """A JSON value as a sealed blob."""
    return seal(json.dumps(value).encode(), what)


def read_texts(path: Path, connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    """All JSON values of a table, in order.

    Raises:
        JournalError: there is none, or its bytes have changed.
    """
    rows = connection.execute(f"SELECT value FROM {table} ORDER BY rowid").fetchall()
    if not rows:
        raise torn(path, f"no {table}")
    return [json.loads(unseal(path, value, table)) for (value,) in rows]


def seal(content: bytes, what: str) -> bytes:
    """Bytes with a checksum of their own: SQLite notices a broken page, not a changed byte or a misplaced blob.

    Args:
        content: The bytes.
        what: What they are and of which record; it goes into the checksum.
    """
    return zlib.crc32(content, zlib.crc32(what.encode())).to_bytes(4, "big") + content


def unseal(path: Path, blob: bytes, what: str) -> bytes:
    """What was sealed as `what`.

    Raises:
        JournalError: it was not, or its bytes have changed.
    """
    if not isinstance(blob, bytes) or seal(blob[4:], what) != blob:
        raise torn(path, "the checksum of a record differs")
    return blob[4:]


def check_bytes(path: Path) -> None:
    """Raise for a file that is no database, or has lost its end.

    An empty file is what a kill left before the first page: that will do. While a log lies beside it, what is missing
    may be in there: SQLite sees to that.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        start = stream.read(100)
        size = os.fstat(stream.fileno()).st_size
    if start[: len(MAGIC)] not in (b"", MAGIC):
        raise foreign(path)
    if start and not any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal")):
        page, pages = int.from_bytes(start[16:18], "big"), int.from_bytes(start[28:32], "big")
        if len(start) < 100 or size < pages * (page if page > 1 else 65536):
            raise torn(path, f"{size} bytes are left of {pages} pages")


def check_kind(path: Path, connection: sqlite3.Connection) -> None:
    """Raise unless the database is a begun trace file of this format."""
    if not connection.execute("PRAGMA schema_version").fetchone()[0]:
        raise JournalError(f"{path} holds no trace yet. Continue it with the `mless probe` that began it.")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise foreign(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise JournalError(
            f"{path} is of trace format {version}, this mless reads format {VERSION}. Probe again, or use the mless "
            "that wrote it."
        )


def check_same(path: Path, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise unless two headers agree in all but their conditions, naming what differs."""
    changes = differences(known | {"conditions": []}, wanted | {"conditions": []})
    if changes:
        told = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" if len(changes) > 4 else "")
        raise JournalError(
            f"{path} holds traces of another kind, nothing was added. Changed: {told}. Undo the change to continue it, "
            "or choose another --output."
        )


def foreign(path: Path) -> JournalError:
    """The error for a file of something else."""
    return JournalError(
        f"{path} is no trace file. Expected one that `mless probe` made; check the path. Nothing was touched."
    )


def torn(path: Path, what: str) -> JournalError:
    """The error for a file that has lost or changed bytes."""
    return JournalError(
        f"{path} is torn or damaged ({what}). Nothing mless does leaves such a file: restore it from a copy, or delete "
        "it and probe again."
    )


@contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Leave no connection open behind an error."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def clear_messages(path: Path) -> Iterator[None]:
    """Turn SQLite's and the operating system's errors into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise JournalError(
            f"{path} cannot be read or written: {error}. Every record before is safe; free some space, wait for the "
            "other process, or choose another path, and run the same command again."
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise torn(path, str(error).split("\n")[0]) from None
    except OSError as error:
        raise JournalError(f"{path} cannot be used: {error.strerror}. Choose a path that can.") from None
