"""Append-only files that survive anything: one JSON line per record, durable within seconds, torn tails mended.

A journal's first line is its header: the identity of what is being recorded. Every further line is one finished
record with a `key`. Nothing is ever rewritten, so a kill at any moment costs at most the line being written.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from harness.errors import JournalError
from harness.runs.records import Keyed, encode, fit
from harness.runs.stored_files import is_stored, open_stored

Record = TypeVar("Record", bound=msgspec.Struct)
SYNC_SECONDS = 2.0
"""At most this long lies between a record and its being safe from a power cut; a killed process loses none."""


class Journal:
    """One append-only file. Holds the keys of its records in memory, never the records.

    Attributes:
        path: The file.
        keys: Keys of all records, those just appended included.
        mended: What was dropped at opening, in words; None if the file was whole.

    Raises:
        JournalError: the file cannot be read or written, a line in the middle is damaged, or the header differs.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.keys: set[str] = set()
        self.mended: str | None = None
        self._synced = time.monotonic()
        self._dirty = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable(path, error) from None
        try:
            self._recover(header)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: Mapping[str, Any] | Keyed) -> None:
        """Write one record; it survives the death of this process from here on.

        Raises:
            JournalError: the disk is full or the file cannot be written; what was there before is intact.
        """
        self._write_line(record)
        self.keys.add(record.key if isinstance(record, Keyed) else record["key"])

    def sync_if_due(self) -> None:
        """Make what was appended safe from a power cut, if the last time is long enough ago."""
        if self._dirty and time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Make what was appended safe from a power cut."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self._synced, self._dirty = time.monotonic(), False

    def close(self) -> None:
        """Sync and close."""
        if self._file >= 0:
            try:
                self.sync()
            finally:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _recover(self, header: Mapping[str, Any]) -> None:
        """Read what is there, cut a torn tail off, and write the header into an empty file."""
        whole, decoder = 0, msgspec.json.Decoder(Keyed)
        for number, line in _whole_lines(self.path):
            whole += len(line)
            if number == 1:
                if changes := differences(_parse(self.path, number, line), json.loads(json.dumps(header))):
                    raise changed_settings(self.path, changes)
                continue
            key = _decode(decoder, self.path, number, line).key
            if key in self.keys:
                raise JournalError(
                    f"{self.path}, line {number}: the same key again ({key}), and one sample has one line. Delete "
                    f"that line (sed -i {number}d {self.path})."
                )
            self.keys.add(key)
        size = os.fstat(self._file).st_size
        if size > whole:
            os.ftruncate(self._file, whole)
            self.mended = f"{self.path.name}: a torn last line of {size - whole} bytes was dropped"
        os.lseek(self._file, 0, os.SEEK_END)
        if whole == 0:
            self._write_line(header)

    def _write_line(self, record: Mapping[str, Any] | Keyed) -> None:
        line = encode(record) + b"\n"
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            os.ftruncate(self._file, start)  # half a line is worth nothing, and shortening needs no space
            raise _unwritable(self.path, error) from None
        self._dirty = True


def read_header(path: Path) -> dict[str, Any]:
    """A journal's first line; empty if not even that is whole.

    Raises:
        JournalError: there is no journal, or its first line is damaged.
    """
    return next((_parse(path, number, line) for number, line in _whole_lines(path)), {})


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The header, then every record, as JSON has them. A torn last line is passed over.

    Raises:
        JournalError: there is no journal, or a line in the middle is damaged.
    """
    for number, line in _whole_lines(path):
        record = _parse(path, number, line)
        if number > 1:
            _refuse_keyless(path, number, record)
        yield record


def read_records(
    path: Path, form: type[Record], remedy: str, notes: list[dict[str, Any]] | None = None
) -> Iterator[Record]:
    """Every record in its form; the header, notes and a torn last line are passed over.

    Args:
        path: A journal.
        form: `records.Sample` or `records.Score`.
        remedy: What to do about a record that does not fit; a sentence.
        notes: Takes the notes, for who wants them from the same reading.

    Raises:
        JournalError: there is no journal, or a line in the middle is damaged.
        RunError: a record does not fit.
    """
    decoder = msgspec.json.Decoder(form)
    for number, line in _whole_lines(path):
        if number == 1:
            continue
        try:
            yield decoder.decode(line)
        except _MISFITS:
            record = _parse(path, number, line)
            _refuse_keyless(path, number, record)
            if Keyed(record["key"]).is_note:
                if notes is not None:
                    notes.append(record)
            else:
                yield fit(form, record, f"{path}, line {number}", remedy)


def read_notes(path: Path) -> Iterator[dict[str, Any]]:
    """The records that are no samples: who wrote the journal, and how long that took.

    Raises:
        JournalError: there is no journal, or a line in the middle is damaged.
    """
    decoder = msgspec.json.Decoder(Keyed)
    for number, line in _whole_lines(path):
        if number > 1 and _decode(decoder, path, number, line).is_note:
            yield _parse(path, number, line)


def has_samples(path: Path) -> bool:
    """Whether a journal holds any sample.

    Raises:
        JournalError: there is no journal, or a line before the first sample is damaged.
    """
    decoder, lines = msgspec.json.Decoder(Keyed), _whole_lines(path)
    return any(number > 1 and not _decode(decoder, path, number, line).is_note for number, line in lines)


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs between two JSON values, one entry a leaf: `sampling.temperature: 0.0 -> 0.7`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted(old.keys() | new.keys())
            for line in differences(old.get(name), new.get(name), f"{where}.{name}" if where else name)
        ]
    return [] if old == new else [f"{where}: {_short(old)} -> {_short(new)}"]


def changed_settings(path: Path, changes: list[str]) -> JournalError:
    """The error for a journal that was begun with other settings.

    It names what the user changed; what follows from that (hashes, generation arguments) only if there is nothing else.
    """
    users = ("config.", "limit", "contrasts", "primary")
    named = [change for change in changes if change.startswith(users)] or changes
    told = "; ".join(named[:4]) + (f"; and {len(named) - 4} more" if len(named) > 4 else "")
    return JournalError(
        f"{path.parent} was begun with other settings. Changed: {told}. Undo the change to continue that run, add "
        "--fork to start a new one beside it, or choose another --output."
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


_MISFITS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a line that does not fit, or that holds half a surrogate pair."""


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every whole line with its number.

    Only the last line may be damaged: a kill tears nothing else. It counts as torn if it has no line break.
    """
    if not is_stored(path):
        raise JournalError(f"{path} does not exist. Expected a run folder as `mless run` makes it; check the path.")
    try:
        with open_stored(path) as stream:
            for number, line in enumerate(stream, start=1):
                if line.endswith(b"\n"):
                    yield number, line
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror or error}. Mend that, or restore it.") from None


def _decode(decoder: msgspec.json.Decoder[Keyed], path: Path, number: int, line: bytes) -> Keyed:
    """A record's key."""
    try:
        return decoder.decode(line)
    except _MISFITS:
        record = _parse(path, number, line)
        _refuse_keyless(path, number, record)
        return Keyed(record["key"])


def _refuse_keyless(path: Path, number: int, record: Mapping[str, Any]) -> None:
    if not isinstance(record.get("key"), str):
        raise JournalError(
            f"{path}, line {number}: a record without a key. Delete that line (sed -i {number}d {path})."
        )


def parse(line: bytes) -> Any:
    """A line as JSON has it; text may hold half a surrogate pair.

    Raises:
        ValueError: the line is damaged.
        RecursionError: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(line)
    except _MISFITS:
        return json.loads(line.decode("utf-8", "surrogatepass"))


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = parse(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        remedy = f", or delete that line (sed -i {number}d {path}), and its sample is generated again"
        if number == 1:  # it says which run this is
            remedy = ""
        elif path.name.startswith("scores"):
            remedy = ", or delete it and run `mless regrade`"
        raise JournalError(
            f"{path}, line {number}: damaged, expected one JSON object. Nothing mless does leaves such a line: restore "
            f"the file from a copy{remedy}."
        )
    return record


def _unwritable(path: Path, error: OSError) -> JournalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return JournalError(
            f"{path} cannot grow: {error.strerror}. Everything before is safe. Free some space (or raise the quota or "
            "file-size limit) and run the same command again to continue."
        )
    return JournalError(f"{path} cannot be written: {error.strerror}. Choose a writable --output.")


def other_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """The settings that two runs both record and in which they differ, in words; empty if there are none."""
    both = ours.keys() & theirs.keys()
    return "; ".join(differences({k: ours[k] for k in both}, {k: theirs[k] for k in both}))
