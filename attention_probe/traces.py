"""What the probe keeps: one file of attention curves and measures, a record for every problem and condition.

The file is an SQLite database of small numpy blobs: records are added one by one, each whole or not at all, so that a
killed probe is continued where it stopped, and reading holds one record in memory however long the file is. Nothing
here needs torch.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from attention_probe.measures import ARRAYS, MEASURES, Quantity
from attention_probe.trace import Trace, TraceEntry, TraceHeader
from harness.errors import ConfigError, JournalError
from harness.journal import differences

__all__ = ["ARRAYS", "MEASURES", "AttentionTraces", "Quantity", "Trace", "TraceEntry", "TraceHeader"]

_KINDS = dict.fromkeys(("mean_all", "mean_common"), np.float32) | {"roles": np.int8}


APPLICATION_ID, VERSION = 0x6D6C7373, 1
_MAGIC = b"SQLite format 3\0"
_ENTRY = "problem_id, condition, subject, level, outcome, control, prompt_sha256, size, filler_start, filler_stop"
_RECORD = f"{_ENTRY}, facts, measures, arrays"
# the small columns stand first: SQLite then need not walk the pages of the curves to reach the measures
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE header (value TEXT NOT NULL);
CREATE TABLE receipt (value TEXT NOT NULL);
CREATE TABLE trace (number INTEGER PRIMARY KEY, {_ENTRY}, facts BLOB NOT NULL, measures BLOB NOT NULL,
                    arrays BLOB NOT NULL, UNIQUE (condition, problem_id));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""


class AttentionTraces:
    """One file of traces. Open it with `create` (to add) or `open` (to read); use it as a context manager.

    Attributes:
        path: The file. While it is being written, SQLite keeps `-wal` and `-shm` files beside it; after `close` (or
            the next opening, after a kill) all is in the one file again.
        header: What all its records share.
        receipt: Versions, settings and hashes of the session that began it; `receipts` has those of all sessions.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        with _clear_messages(path):
            facts = json.loads(connection.execute("SELECT value FROM header").fetchone()[0])
            self.header = TraceHeader(
                **facts | {name: tuple(facts[name]) for name in ("layers", "conditions")},
            )
            self.receipts: tuple[dict[str, Any], ...] = tuple(
                json.loads(value) for (value,) in connection.execute("SELECT value FROM receipt ORDER BY rowid")
            )
        self.receipt = self.receipts[0]

    @classmethod
    def create(cls, path: Path, header: TraceHeader, *, receipt: Mapping[str, Any]) -> Self:
        """Begin a file, or continue one with the same header; the conditions of both are joined.

        Raises:
            JournalError: the file is torn or something else, cannot be written, or was begun with another model, other
                layers or another definition.
        """
        with _clear_messages(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _check_magic(path)
            connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            with _closed_on_error(connection):
                if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                    value = json.dumps(asdict(header)).replace("'", "''")
                    connection.executescript(f"{_SCHEMA} INSERT INTO header VALUES ('{value}'); COMMIT;")
                _check_kind(path, connection)
                known = json.loads(connection.execute("SELECT value FROM header").fetchone()[0])
                _check_same(path, known, json.loads(json.dumps(asdict(header))))
                # a commit then is one append to the log and no wait for the disk: a killed process loses nothing, and
                # after a power cut the file is whole up to some record
                with suppress(sqlite3.OperationalError):  # a file system without shared memory has no such log
                    connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                joined = list(dict.fromkeys([*known["conditions"], *header.conditions]))
                if joined != known["conditions"]:
                    connection.execute("UPDATE header SET value = ?", [json.dumps(known | {"conditions": joined})])
                last = connection.execute("SELECT value FROM receipt ORDER BY rowid DESC").fetchone()
                if last is None or json.loads(last[0]) != json.loads(json.dumps(receipt)):
                    connection.execute("INSERT INTO receipt VALUES (?)", [json.dumps(receipt)])
                return cls(path, connection)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file to read it; a probe may be adding to it meanwhile.

        Raises:
            JournalError: there is none, or it is torn or something else.
        """
        if not path.is_file():
            raise JournalError(
                f"{path} does not exist. Expected a trace file as `mless probe` makes it; check the path."
            )
        with _clear_messages(path):
            _check_magic(path)
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
            with _closed_on_error(connection):
                _check_kind(path, connection)
                return cls(path, connection)

    def append(self, trace: Trace) -> None:
        """Add one record, whole or not at all; it survives the death of this process from here on.

        Raises:
            JournalError: the record is there already, has other layers or heads than the header says, or the file
                cannot be written.
        """
        expected = (len(self.header.layers), self.header.head_count)
        if trace.mean_all.shape[:2] != expected or trace.condition not in self.header.conditions:
            raise JournalError(
                f"{self.path} takes {expected[0]} layers of {expected[1]} heads under "
                f"{', '.join(self.header.conditions)}; got {trace.mean_all.shape[:2]} under {trace.condition}. Write "
                "these traces to another file."
            )
        if self.has(trace.problem_id, trace.condition):
            raise JournalError(
                f"{self.path} already holds problem {trace.problem_id} under {trace.condition}. Ask `has` before."
            )
        facts = {"tokens": trace.tokens, "activations": {**trace.activations}, "self_check": {**trace.self_check}}
        row = (
            *(trace.problem_id, trace.condition, trace.subject, trace.level, trace.outcome, int(trace.control)),
            *(trace.prompt_sha256, len(trace.tokens), *(trace.filler_span or (None, None))),
            _seal(json.dumps(facts).encode()),
            _pack(trace.measures),
            _pack({name: getattr(trace, name) for name in ARRAYS}),
        )
        with _clear_messages(self.path):
            self._connection.execute(f"INSERT INTO trace ({_RECORD}) VALUES ({','.join('?' * len(row))})", row)

    def has(self, problem_id: str, condition: str) -> bool:
        """Whether the record is there."""
        return bool(self._rows("1", "WHERE condition = ? AND problem_id = ?", (condition, problem_id)))

    def get(self, problem_id: str, condition: str) -> Trace:
        """One record.

        Raises:
            ConfigError: there is no such record.
            JournalError: it is damaged.
        """
        where = "WHERE condition = ? AND problem_id = ?"
        rows = self._rows(_RECORD, where, (condition, problem_id))
        if not rows:
            raise ConfigError(
                f"{self.path} holds no trace of problem {problem_id} under {condition}. It has {len(self.problem_ids)} "
                f"problems under {', '.join(self.conditions)}; probe that one too, or ask for another."
            )
        return self._trace(rows[0])

    def select(self, condition: str | None = None, problem_ids: Collection[str] | None = None) -> Iterator[Trace]:
        """The records of one condition and of these problems, in the order in which they were added."""
        wanted = None if problem_ids is None else set(problem_ids)
        where, values = ("WHERE condition = ?", [condition]) if condition is not None else ("", [])
        for number, problem_id in self._rows("number, problem_id", f"{where} ORDER BY number", values):
            if wanted is None or problem_id in wanted:
                row = self._rows(_RECORD, "WHERE number = ?", [number])[0]
                yield self._trace(row)

    def measure(
        self, name: str, condition: str, problem_ids: Sequence[str] | None = None
    ) -> tuple[list[str], NDArray[np.float64]]:
        """One measure of all heads: the problems, and a [problem, layer, head] array.

        Raises:
            ConfigError: it was not recorded for one of the problems, or a problem is not there.
        """
        rows = self._rows("problem_id, measures", "WHERE condition = ? ORDER BY number", [condition])
        found = {problem_id: _unpack(self.path, measures) for problem_id, measures in rows}
        wanted = list(found) if problem_ids is None else list(problem_ids)
        if missing := [problem_id for problem_id in wanted if name not in found.get(problem_id, {})]:
            known = sorted(set.intersection(*(set(measures) for measures in found.values()))) if found else []
            raise ConfigError(
                f"{self.path} has no {name} of {len(missing)} of {len(wanted)} problems under {condition} "
                f"(first: {missing[0]}). Recorded for all there: {', '.join(known) or 'nothing'}. Choose one of these, "
                "or probe again with what records it (--decompose for the parts of the change)."
            )
        shape = (len(wanted), len(self.header.layers), self.header.head_count)
        values = np.array([found[problem_id][name] for problem_id in wanted], dtype=np.float64)
        return wanted, values.reshape(shape)

    def entries(self) -> list[TraceEntry]:
        """What is there, without the arrays, in the order in which it was added."""
        return [_entry(row) for row in self._rows(_ENTRY, "ORDER BY number")]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions of which there is a record, in the header's order."""
        found = {condition for (condition,) in self._rows("DISTINCT condition", "")}
        return tuple(condition for condition in self.header.conditions if condition in found)

    @property
    def problem_ids(self) -> tuple[str, ...]:
        """Problems of which there is a record, in the order in which they were added."""
        return tuple(name for (name,) in self._rows("problem_id", "GROUP BY problem_id ORDER BY min(number)"))

    def __len__(self) -> int:
        return int(self._rows("count(*)", "")[0][0])

    def __iter__(self) -> Iterator[Trace]:
        return self.select()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Put everything into the one file and close it."""
        with _clear_messages(self.path):
            # another process still reading is no error: then its closing does it
            with suppress(sqlite3.OperationalError):
                self._connection.execute("PRAGMA journal_mode = DELETE")
            self._connection.close()

    def _rows(self, columns: str, rest: str, values: Sequence[Any] = ()) -> list[Any]:
        with _clear_messages(self.path):
            return self._connection.execute(f"SELECT {columns} FROM trace {rest}", values).fetchall()

    def _trace(self, row: Sequence[Any]) -> Trace:
        *entry, facts, measures, arrays = row
        known = _entry(entry)
        told: dict[str, Any] = json.loads(_unseal(self.path, facts))
        told |= {name: getattr(known, name) for name in known.__slots__ if name != "size"}
        told |= _unpack(self.path, arrays) | {"measures": _unpack(self.path, measures)}
        return Trace(**told | {"tokens": tuple(told["tokens"])})


def _entry(row: Sequence[Any]) -> TraceEntry:
    *facts, start, stop = row
    names = [name for name in TraceEntry.__slots__ if name != "filler_span"]
    known = dict(zip(names, facts, strict=True))
    known["control"] = bool(known["control"])
    return TraceEntry(**known, filler_span=None if start is None else (start, stop))


def _pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    kinds = {name: _KINDS.get(name, np.int32 if name in ARRAYS else np.float32) for name in arrays}
    whole = {name: np.ascontiguousarray(values, dtype=kinds[name]) for name, values in arrays.items()}
    return _seal(safetensors.numpy.save(whole))


def _unpack(path: Path, blob: bytes) -> dict[str, NDArray[Any]]:
    return safetensors.numpy.load(_unseal(path, blob))


def _seal(content: bytes) -> bytes:
    """SQLite notices torn pages, not changed bytes within a blob: these carry a checksum of their own."""
    return zlib.crc32(content).to_bytes(4, "big") + content


def _unseal(path: Path, blob: bytes) -> bytes:
    if zlib.crc32(blob[4:]).to_bytes(4, "big") != blob[:4]:
        raise _torn(path, "the checksum of a record differs")
    return blob[4:]


def _check_magic(path: Path) -> None:
    """An empty file is one that a kill left before its first page."""
    if path.exists():
        with path.open("rb") as stream:
            start = stream.read(len(_MAGIC))
        if start not in (b"", _MAGIC):
            raise _foreign(path)


def _check_kind(path: Path, connection: sqlite3.Connection) -> None:
    if not connection.execute("PRAGMA schema_version").fetchone()[0]:
        raise JournalError(f"{path} holds no trace yet. Continue it with the `mless probe` that began it.")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise _foreign(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise JournalError(
            f"{path} is of trace format {version}, this mless reads format {VERSION}. Probe again, or use the mless "
            "that wrote it."
        )


def _check_same(path: Path, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    changes = differences(known | {"conditions": []}, wanted | {"conditions": []})
    if changes:
        told = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" if len(changes) > 4 else "")
        raise JournalError(
            f"{path} holds traces of another kind, nothing was added. Changed: {told}. Undo the change to continue it, "
            "or choose another --output."
        )


def _foreign(path: Path) -> JournalError:
    return JournalError(
        f"{path} is no trace file. Expected one that `mless probe` made; check the path. Nothing was touched."
    )


def _torn(path: Path, what: str) -> JournalError:
    return JournalError(
        f"{path} is torn or damaged ({what}). Nothing mless does leaves such a file: restore it from a copy, or delete "
        "it and probe again."
    )


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def _clear_messages(path: Path) -> Iterator[None]:
    """Turn SQLite's and the operating system's errors into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise JournalError(
            f"{path} cannot be read or written: {error}. Every record before is safe; free some space, wait for the "
            "other process, or choose another path, and run the same command again."
        ) from None
    except (sqlite3.DatabaseError, json.JSONDecodeError, TypeError, KeyError) as error:
        raise _torn(path, str(error)) from None
    except OSError as error:
        raise JournalError(f"{path} cannot be used: {error.strerror}. Choose a path that can.") from None
