"""What the probe keeps: a folder with one safetensors file of curves and measures for every problem and condition.

`header.json` says what all records share, which sessions made them, and the axes and units of every array. A record's
file is there whole or not at all, so that a killed probe is continued where it stopped. Its name, such as
`00000003-89abcdef.safetensors`, holds its place in the order of adding and the CRC-32 of its bytes, so that a damaged
record is noticed. Reading holds one record in memory however many there are. Nothing here needs torch.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from attention_probe.measure.definitions import ARRAYS, MEASURES
from attention_probe.trace_record import FACTS, Trace, TraceEntry, TraceHeader
from harness.constants import TRACES_FORMAT
from harness.errors import ConfigError, JournalError
from harness.runs.journal import differences

if TYPE_CHECKING:
    from filelock import FileLock

__all__ = ["AttentionTraces", "Trace", "TraceEntry", "TraceHeader"]

HEADER = "header.json"

_RECORD = re.compile(r"(\d{8})-([0-9a-f]{8})\.safetensors")


class AttentionTraces:
    """A folder of traces. Open it with `create` (to add) or `open` (to read); use it as a context manager.

    Attributes:
        path: The folder.
        header: What all its records share.
        receipts: Versions, settings and hashes of every session that added to it.
        receipt: Those of the session that began it.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        begun = _read_header(path)
        if begun is None:
            raise JournalError(f"{path} holds no trace yet. Continue it with the `mless probe` that began it.")
        self.path = path
        self.header, self.receipts = begun
        self.receipt = self.receipts[0]
        self._lock = lock
        self._entries: dict[tuple[str, str], TraceEntry] = {}
        """By problem and condition, in the order of adding."""
        self._files: dict[tuple[str, str], Path] = {}
        """The records' files."""
        with _clear_messages(path):
            for name in sorted(filter(_RECORD.fullmatch, os.listdir(path))):
                self._add(path / name, _read_facts(path / name))

    @classmethod
    def create(cls, path: Path, header: TraceHeader, *, receipt: Mapping[str, Any]) -> Self:
        """Begin a folder, or continue one with the same header; the conditions of both are joined.

        Raises:
            JournalError: the folder is damaged or something else, another process adds to it, it cannot be written, or
                it was begun with another model, other layers or another definition.
        """
        # a run folder's lock and its way to write a file; reading needs neither, and they take a while to import
        from harness.runs.folder import lock
        from harness.runs.stored_files import write_whole

        _read_header(path)  # what is not ours is refused before a lock is put into it
        with _clear_messages(path):
            path.mkdir(parents=True, exist_ok=True)
        held = lock(path)
        try:
            known, sessions = _read_header(path) or (header, ())
            _check_same(path, known, header)
            joined = replace(known, conditions=tuple(dict.fromkeys([*known.conditions, *header.conditions])))
            session = json.loads(json.dumps(dict(receipt)))
            if not sessions or session | {"created": None} != sessions[-1] | {"created": None}:  # else nothing is new
                sessions = (*sessions, session)
            about = {
                "mless_traces": TRACES_FORMAT,
                "header": asdict(joined),
                "receipts": sessions,
                "arrays": _AXES_AND_UNITS,
            }
            with _clear_messages(path):
                write_whole(path / HEADER, json.dumps(about, indent=1))
                for left_over in path.glob("*.part"):  # of a killed session
                    left_over.unlink()
            return cls(path, held)
        except BaseException:
            held.release()
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder to read what is in it now; a probe may be adding to it meanwhile.

        Raises:
            JournalError: there is none, or it is damaged or something else.
        """
        if not path.exists():
            raise JournalError(
                f"{path} does not exist. Expected a folder of traces as `mless probe` makes it; check the path."
            )
        return cls(path)

    def append(self, trace: Trace) -> None:
        """Add one record, whole or not at all; it survives the death of this process from here on.

        Raises:
            JournalError: the record is there already, has other layers or heads than the header says, or the folder
                cannot be written.
        """
        from harness.runs.stored_files import write_atomic

        expected = self._shape
        if trace.mean_all.shape[:2] != expected or trace.condition not in self.header.conditions:
            raise JournalError(
                f"{self.path} takes {expected[0]} layers of {expected[1]} heads under "
                f"{', '.join(self.header.conditions)}; got {trace.mean_all.shape[:2]} under {trace.condition}. Write "
                "these traces to another folder."
            )
        if self.has(trace.problem_id, trace.condition):
            raise JournalError(
                f"{self.path} already holds problem {trace.problem_id} under {trace.condition}. Ask `has` before."
            )
        content = safetensors.numpy.save(
            {name: np.ascontiguousarray(values) for name, values in trace.arrays.items()},
            metadata={"facts": json.dumps(trace.facts)},
        )
        last = next(reversed(self._files.values()), None)
        number = 1 if last is None else 1 + int(last.name.partition("-")[0])
        file = self.path / f"{number:08d}-{zlib.crc32(content):08x}.safetensors"
        with _clear_messages(self.path), write_atomic(file) as part:
            part.write_bytes(content)
        self._add(file, trace.facts)

    def has(self, problem_id: str, condition: str) -> bool:
        """Whether the record is there."""
        return (problem_id, condition) in self._files

    def get(self, problem_id: str, condition: str) -> Trace:
        """One record.

        Raises:
            ConfigError: there is no such record.
            JournalError: it is damaged, or has other layers or heads than the header says.
        """
        if not self.has(problem_id, condition):
            raise ConfigError(
                f"{self.path} holds no trace of problem {problem_id} under {condition}. It has {len(self.problem_ids)} "
                f"problems under {', '.join(self.conditions)}; probe that one too, or ask for another."
            )
        file = self._files[problem_id, condition]
        trace = _read_record(file)
        if trace.mean_all.shape[:2] != self._shape:
            raise JournalError(
                f"{file} has other layers or heads than {HEADER} beside it: expected {self._shape} of them, got "
                f"{trace.mean_all.shape[:2]}. Restore the folder from a copy, or probe again into another one."
            )
        return trace

    def select(self, condition: str | None = None, problem_ids: Collection[str] | None = None) -> Iterator[Trace]:
        """The records of one condition and of these problems, in the order in which they were added."""
        wanted = None if problem_ids is None else set(problem_ids)
        for entry in self.entries():
            if condition in (None, entry.condition) and (wanted is None or entry.problem_id in wanted):
                yield self.get(entry.problem_id, entry.condition)

    def measure(
        self, name: str, condition: str, problem_ids: Sequence[str] | None = None
    ) -> tuple[list[str], NDArray[np.float64]]:
        """One measure of all heads: the problems, and a [problem, layer, head] array.

        Raises:
            ConfigError: it was not recorded for one of the problems, or a problem is not there.
        """
        problems, (values,) = self.measures([name], condition, problem_ids)
        return problems, values

    def measures(
        self, names: Sequence[str], condition: str, problem_ids: Sequence[str] | None = None
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Several measures, for which every record is read but once: [measure, problem, layer, head].

        Raises:
            ConfigError: one was not recorded for one of the problems, or a problem is not there.
        """
        found = {trace.problem_id: trace.measures for trace in self.select(condition, problem_ids)}
        wanted = list(found) if problem_ids is None else list(problem_ids)
        for name in names:
            if missing := [problem_id for problem_id in wanted if name not in found.get(problem_id, {})]:
                there = ", ".join(sorted(set.intersection(*map(set, found.values())))) if found else ""
                raise ConfigError(
                    f"{self.path} has no {name} of {len(missing)} of {len(wanted)} problems under {condition} "
                    f"(first: {missing[0]}). Recorded for all there: {there or 'nothing'}. Choose one of these, "
                    "or probe again with what records it (--decompose for the parts of the change)."
                )
        values = np.array([[found[key][name] for key in wanted] for name in names], dtype=np.float64)
        return wanted, values.reshape(len(names), len(wanted), len(self.header.layers), self.header.head_count)

    def entries(self) -> list[TraceEntry]:
        """What is there, without the arrays, in the order in which it was added."""
        return list(self._entries.values())

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions of which there is a record, in the header's order."""
        found = {entry.condition for entry in self.entries()}
        return tuple(condition for condition in self.header.conditions if condition in found)

    @property
    def problem_ids(self) -> tuple[str, ...]:
        """Problems of which there is a record, in the order in which they were added."""
        return tuple(dict.fromkeys(entry.problem_id for entry in self.entries()))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Trace]:
        return self.select()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others add to the folder."""
        if self._lock is not None:
            self._lock.release()

    @property
    def _shape(self) -> tuple[int, int]:
        """Layers and heads of every record."""
        return len(self.header.layers), self.header.head_count

    def _add(self, file: Path, facts: Mapping[str, Any]) -> None:
        entry = TraceEntry(**{one.name: facts[one.name] for one in fields(TraceEntry)})
        self._entries[entry.problem_id, entry.condition] = entry
        self._files[entry.problem_id, entry.condition] = file


_AXES_AND_UNITS = {name: {"axes": axes} | quantity._asdict() for name, (axes, quantity) in ARRAYS.items()} | {
    name: {"axes": ("layer", "head")} | quantity._asdict() for name, quantity in MEASURES.items()
}


def _read_facts(file: Path) -> dict[str, Any]:
    """A record without its arrays.

    Raises:
        JournalError: it is damaged.
    """
    try:
        with safe_open(file, framework="numpy") as opened:
            told = json.loads(opened.metadata()["facts"])
        return {name: tuple(told[name]) if isinstance(told[name], list) else told[name] for name in FACTS}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None


def _read_record(file: Path) -> Trace:
    """A record, its bytes checked against the file's name.

    Raises:
        JournalError: it is damaged.
    """
    with _clear_messages(file):
        content = file.read_bytes()
        if (match := _RECORD.fullmatch(file.name)) is None or int(match[2], 16) != zlib.crc32(content):
            raise _damaged(file, "its bytes are not those that were written")
        facts = _read_facts(file)
    arrays = safetensors.numpy.load(content)
    measures = {name: arrays.pop(name) for name in sorted(arrays.keys() - ARRAYS.keys())}
    return Trace(**facts | arrays | {"measures": measures})


def _read_header(path: Path) -> tuple[TraceHeader, tuple[dict[str, Any], ...]] | None:
    """What all records share, and the receipts of the sessions; None where nothing was begun.

    Raises:
        JournalError: the path is of something else, of another format, damaged, or cannot be read.
    """
    file = path / HEADER
    with _clear_messages(path):
        if not path.exists() or (path.is_dir() and all(re.fullmatch(r"\.lock|.*\.part", n) for n in os.listdir(path))):
            return None
        content = file.read_bytes() if file.is_file() else b""
        if b'"mless_traces"' not in content:
            raise JournalError(
                f"{path} is no folder of traces: {HEADER} is missing or damaged. Expected a folder that `mless probe` "
                "made; check the path. Nothing was touched."
            )
        try:
            about = json.loads(content)
            if about["mless_traces"] != TRACES_FORMAT:
                raise JournalError(
                    f"{path} is of trace format {about['mless_traces']}, this mless reads format {TRACES_FORMAT}. "
                    "Probe again, or use the mless that wrote it."
                )
            facts = about["header"]
            header = TraceHeader(**facts | {name: tuple(facts[name]) for name in ("layers", "conditions")})
            return header, tuple(about["receipts"])
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(file, f"{type(error).__name__}: {error}") from None


def _check_same(path: Path, known: TraceHeader, wanted: TraceHeader) -> None:
    """Raise unless two headers agree in all but their conditions, naming what differs."""
    old, new = (json.loads(json.dumps(asdict(replace(header, conditions=())))) for header in (known, wanted))
    if changes := differences(old, new):
        told = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" if len(changes) > 4 else "")
        raise JournalError(
            f"{path} holds traces of another kind, nothing was added. Changed: {told}. Undo the change to continue it, "
            "or choose another --output."
        )


def _damaged(file: Path, what: str) -> JournalError:
    remove = "the folder" if file.name == HEADER else "it"  # records are nothing without it
    return JournalError(
        f"{file} is torn or damaged ({what.splitlines()[0]}). Restore it from a copy, or delete {remove} and run the "
        "same `mless probe` again."
    )


@contextmanager
def _clear_messages(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into ours."""
    try:
        yield
    except OSError as error:
        remedy = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "Mend that"
        raise JournalError(
            f"{path} cannot be read or written: {error.strerror or error}. Every record before is safe. {remedy}, or "
            "choose another path, and run the same command again."
        ) from None
