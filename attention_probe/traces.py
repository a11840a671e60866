"""What the probe keeps: one file of attention curves and measures, a record for every problem and condition.

The file is an SQLite database of small numpy blobs: records are added one by one, each whole or not at all, so that a
killed probe is continued where it stopped, and reading holds one record in memory however long the file is. Nothing
here needs torch.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from attention_probe import trace_file
from attention_probe.measure.definitions import ARRAYS, MEASURES, Quantity
from attention_probe.trace import Trace, TraceEntry, TraceHeader
from harness.errors import ConfigError, JournalError

__all__ = ["ARRAYS", "MEASURES", "AttentionTraces", "Quantity", "Trace", "TraceEntry", "TraceHeader"]


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
        with trace_file.clear_messages(path):
            facts, *_ = trace_file.read_texts(path, connection, "header")
            self.header = TraceHeader(**facts | {name: tuple(facts[name]) for name in ("layers", "conditions")})
            self.receipts = tuple(trace_file.read_texts(path, connection, "receipt"))
            self.receipt = self.receipts[0]

    @classmethod
    def create(cls, path: Path, header: TraceHeader, *, receipt: Mapping[str, Any]) -> Self:
        """Begin a file, or continue one with the same header; the conditions of both are joined.

        Raises:
            JournalError: the file is torn or something else, cannot be written, or was begun with another model, other
                layers or another definition.
        """
        facts, about = json.loads(json.dumps([asdict(header), dict(receipt)]))
        with trace_file.clear_messages(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            trace_file.check_bytes(path)
            connection = sqlite3.connect(path, timeout=30, isolation_level=None)
            with trace_file.closed_on_error(connection):
                if not connection.execute("PRAGMA schema_version").fetchone()[0]:
                    connection.executescript(trace_file.SCHEMA)
                    connection.execute("INSERT INTO header VALUES (?)", [trace_file.to_text(facts, "header")])
                    connection.execute("INSERT INTO receipt VALUES (?)", [trace_file.to_text(about, "receipt")])
                    connection.execute("COMMIT")
                trace_file.check_kind(path, connection)
                known, *_ = trace_file.read_texts(path, connection, "header")
                trace_file.check_same(path, known, facts)
                # a commit then is one append to the log and no wait for the disk: a killed process loses nothing, and
                # after a power cut the file is whole up to some record
                with suppress(sqlite3.OperationalError):  # a file system without shared memory has no such log
                    connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                joined = list(dict.fromkeys([*known["conditions"], *facts["conditions"]]))
                if joined != known["conditions"]:
                    connection.execute(
                        "UPDATE header SET value = ?", [trace_file.to_text(known | {"conditions": joined}, "header")]
                    )
                last = trace_file.read_texts(path, connection, "receipt")[-1]
                if about | {"created": None} != last | {"created": None}:  # else nothing is new
                    connection.execute("INSERT INTO receipt VALUES (?)", [trace_file.to_text(about, "receipt")])
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
        with trace_file.clear_messages(path):
            trace_file.check_bytes(path)
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
            with trace_file.closed_on_error(connection):
                trace_file.check_kind(path, connection)
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
        entry = {name: getattr(trace, name) for name in trace_file.NAMES} | {"size": len(trace.tokens)}
        told = {"tokens": trace.tokens, "activations": dict(trace.activations), "self_check": dict(trace.self_check)}
        key = f"{trace.condition} {trace.problem_id}"
        row = (
            *(*entry.values(), *(trace.filler_span or (None, None))),
            trace_file.to_text(entry | {"filler_span": trace.filler_span} | told, f"facts {key}"),
            trace_file.pack(trace.measures, f"measures {key}"),
            trace_file.pack({name: getattr(trace, name) for name in ARRAYS}, f"arrays {key}"),
        )
        with trace_file.clear_messages(self.path):
            self._connection.execute(
                f"INSERT INTO trace ({trace_file.RECORD}) VALUES ({','.join('?' * len(row))})", row
            )

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
        rows = self._rows(trace_file.RECORD, where, (condition, problem_id))
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
                rows = self._rows(trace_file.RECORD, "WHERE number = ?", [number])
                if not rows:
                    raise trace_file.torn(self.path, f"record {number} is listed and cannot be found")
                yield self._trace(rows[0])

    def measure(
        self, name: str, condition: str, problem_ids: Sequence[str] | None = None
    ) -> tuple[list[str], NDArray[np.float64]]:
        """One measure of all heads: the problems, and a [problem, layer, head] array.

        Raises:
            ConfigError: it was not recorded for one of the problems, or a problem is not there.
        """
        rows = self._rows("problem_id, measures", "WHERE condition = ? ORDER BY number", [condition])
        found = {known: trace_file.unpack(self.path, blob, f"measures {condition} {known}") for known, blob in rows}
        wanted = list(found) if problem_ids is None else list(problem_ids)
        if missing := [problem_id for problem_id in wanted if name not in found.get(problem_id, {})]:
            there = ", ".join(sorted(set.intersection(*map(set, found.values())))) if found else ""
            raise ConfigError(
                f"{self.path} has no {name} of {len(missing)} of {len(wanted)} problems under {condition} "
                f"(first: {missing[0]}). Recorded for all there: {there or 'nothing'}. Choose one of these, "
                "or probe again with what records it (--decompose for the parts of the change)."
            )
        shape = (len(wanted), len(self.header.layers), self.header.head_count)
        values = np.array([found[problem_id][name] for problem_id in wanted], dtype=np.float64)
        return wanted, values.reshape(shape)

    def entries(self) -> list[TraceEntry]:
        """What is there, without the arrays, in the order in which it was added."""
        return [_entry(row) for row in self._rows(trace_file.ENTRY, "ORDER BY number")]

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
        # another process still reading is no error: then its closing does it
        with (
            trace_file.clear_messages(self.path),
            closing(self._connection),
            suppress(sqlite3.OperationalError),
        ):
            self._connection.execute("PRAGMA journal_mode = DELETE")

    def _rows(self, columns: str, rest: str, values: Sequence[Any] = ()) -> list[Any]:
        with trace_file.clear_messages(self.path):
            return self._connection.execute(f"SELECT {columns} FROM trace {rest}", values).fetchall()

    def _trace(self, row: Sequence[Any]) -> Trace:
        *entry, facts, measures, arrays = row
        known = _entry(entry)
        key = f"{known.condition} {known.problem_id}"
        told = json.loads(trace_file.unseal(self.path, facts, f"facts {key}"))
        for name in ("tokens", "filler_span"):
            told[name] = None if told[name] is None else tuple(told[name])
        if any(told[name] != getattr(known, name) for name in TraceEntry.__slots__):
            raise trace_file.torn(self.path, f"the record of problem {known.problem_id} is filed as another")
        del told["size"]
        told["measures"] = trace_file.unpack(self.path, measures, f"measures {key}")
        return Trace(**told | trace_file.unpack(self.path, arrays, f"arrays {key}"))


def _entry(row: Sequence[Any]) -> TraceEntry:
    *facts, size, start, stop = row
    known = dict(zip(trace_file.NAMES, facts, strict=True))
    known["control"] = bool(known["control"])
    return TraceEntry(**known, size=size, filler_span=None if start is None else (start, stop))
