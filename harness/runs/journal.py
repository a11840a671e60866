"""Append-only journals that survive a kill.

A journal's first line is its header: the identity of what is being recorded. Every further line is
one finished record with a `key`. No record is ever rewritten, so a kill at any moment costs at most
the line being written.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, Self

import msgspec

from harness.constants import JsonObject
from harness.errors import JournalError, print_message
from harness.runs.records import NOTE_LINE_PREFIXES, KeyedRecord, Record
from harness.runs.stored_files import explain_write_errors, open_atomic, open_stored

SYNC_SECONDS = 2.0
"""Longest time until a record is safe from a power cut. A kill of the process loses no record."""

_USER_CHANGE_PATTERN = re.compile(
    r"config\.|limit|contrasts|primary"
    r"|problem .*, doc\.(problem|answer|alternatives|choices|cluster):"
)
"""Matches the changes that a user made, and not those that follow from them, such as hashes."""
_OBJECT_DECODER = msgspec.json.Decoder(JsonObject)


class Journal:
    """One append-only file. It holds the keys of its records in memory, never the records.

    Args:
        path: The file.
        header: The first line, in the form in which JSON is read: with lists, not tuples.

    Attributes:
        path: The file.
        keys: Keys of all records, including those just appended.

    Raises:
        JournalError: the file cannot be read or written, a complete line is damaged, or the header
            differs.
    """

    def __init__(self, path: Path, header: JsonObject) -> None:
        self.path = path
        self.keys: set[str] = set()
        self._last_sync_time = time.monotonic()
        with explain_write_errors(path), ExitStack() as stack:
            # os.open has no buffer in this process, so what was written survives its kill
            self._file_descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, self._file_descriptor)
            self._recover(header)
            stack.pop_all()

    def append(self, record: JsonObject | KeyedRecord) -> None:
        """Write one record; from here on it survives the death of this process.

        Raises:
            JournalError: the disk is full or the file cannot be written; all earlier records are
                intact.
        """
        self._write_line(record)
        self.keys.add(record.key if isinstance(record, KeyedRecord) else record["key"])

    def sync_if_due(self) -> None:
        """Make all records safe from a power cut, if the last sync was `SYNC_SECONDS` ago."""
        if time.monotonic() - self._last_sync_time >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Make all records safe from a power cut."""
        with explain_write_errors(self.path):
            os.fsync(self._file_descriptor)
        self._last_sync_time = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            os.close(self._file_descriptor)

    def _recover(self, header: JsonObject) -> None:
        """Read the keys, cut off a torn last line, and write the header into an empty file.

        Raises:
            JournalError: the file has another header.
        """
        stored_journal = StoredJournal(self.path, KeyedRecord)
        self.keys.update(record.key for record in stored_journal.records)
        self.keys.update(note["key"] for note in stored_journal.notes)
        intact_size = os.fstat(self._file_descriptor).st_size - stored_journal.torn_bytes
        if intact_size and (changes := list_differences(stored_journal.header, header)):
            raise changed_settings_error(self.path, changes)
        if stored_journal.torn_bytes:
            # so that the next record does not continue the torn line
            os.ftruncate(self._file_descriptor, intact_size)
            print_message(
                f"{self.path.name}: an incomplete last line of {stored_journal.torn_bytes} bytes "
                "was removed"
            )
        if intact_size == 0:
            self._write_line(header)

    def _write_line(self, record: JsonObject | KeyedRecord) -> None:
        """Write a whole line at the end of the file, or none of it."""
        line = msgspec.json.encode(record) + b"\n"
        line_offset = os.lseek(self._file_descriptor, 0, os.SEEK_END)
        written_size = 0
        with explain_write_errors(self.path):
            try:
                while written_size < len(line):
                    written_size += os.write(self._file_descriptor, line[written_size:])
            finally:
                if written_size < len(line):
                    # a full disk takes a part of the line, and the part has to go; shortening a
                    # file works on a full disk too
                    os.ftruncate(self._file_descriptor, line_offset)


class StoredJournal(Generic[Record]):
    """A journal, or a file of scores, that is opened once and read as far as is necessary.

    All readers share one iterator over the lines: the header is read at once, `has_records` reads
    the next line, and `records` all others.

    Args:
        path: The file, plain or compressed.
        record_type: The type of its records, `records.Sample` or `records.Score`;
            `records.KeyedRecord` for the keys alone.

    Attributes:
        header: The first line; empty if even that line is torn.
        notes: The records that are not samples, as far as the file has been read: who wrote the
            journal, and how long that took.
        torn_bytes: Bytes of a torn last line, when the records have been read.

    Raises:
        JournalError: there is no journal, or its first line is damaged.
    """

    def __init__(self, path: Path, record_type: type[Record]) -> None:
        self._path = path
        self._record_type = record_type
        self._start_reading()

    def _start_reading(self) -> None:
        """Begin at the first line, and read the header."""
        self._digest = hashlib.sha256()
        self.torn_bytes = 0
        self.notes: list[JsonObject] = []
        self._numbered_lines = self._read_lines()
        self.header: JsonObject = {}
        # a file without a line, of a process that was killed at once, has no header
        for line_number, line in islice(self._numbered_lines, 1):
            self.header = self._decode(_OBJECT_DECODER, line_number, line)

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        """Every complete line with its number, without the notes."""
        with open_stored(self._path) as stream:
            for line_number, line in enumerate(stream, start=1):
                self._digest.update(line)
                # a kill tears only the last line, which then has no line break
                if not line.endswith(b"\n"):
                    self.torn_bytes = len(line)
                elif line.startswith(NOTE_LINE_PREFIXES):
                    self.notes.append(self._decode(_OBJECT_DECODER, line_number, line))
                else:
                    yield line_number, line

    @cached_property
    def has_records(self) -> bool:
        """Whether there is a record that is not a note; to be asked before `records` are read."""
        first_lines = list(islice(self._numbered_lines, 1))
        # the line is put back, so that `records` reads it too
        self._numbered_lines = chain(first_lines, self._numbered_lines)
        return bool(first_lines)

    @cached_property
    def records(self) -> list[Record]:
        """Every record, without the header, notes and a torn last line.

        Raises:
            JournalError: a complete line is damaged, does not fit the type, or repeats a key.
        """
        decoder = msgspec.json.Decoder(self._record_type)
        record_by_key: dict[str, Any] = {}
        try:
            for line_number, line in self._numbered_lines:
                record = self._decode(decoder, line_number, line)
                if record.key in record_by_key:
                    raise JournalError(
                        f"{self._path}, line {line_number}: the key {record.key} occurs twice."
                    )
                record_by_key[record.key] = record
        except BaseException:
            # a second attempt must not continue behind the damaged line
            self._start_reading()
            raise
        return list(record_by_key.values())

    def _decode(self, decoder: msgspec.json.Decoder[Any], line_number: int, line: bytes) -> Any:
        """The record in a line; the error for a damaged one names the line and what helps."""
        try:
            return decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            remedy = ""
            if self._path.name.startswith("scores"):
                remedy = " Delete it, and run `mless regrade`."
            raise JournalError(
                f"{self._path}, line {line_number}: damaged: {error}. Restore the file from a copy."
                f"{remedy}"
            ) from None

    @property
    def sha256(self) -> str:
        """Hash of the uncompressed file."""
        # `_read_lines` adds each line to the hash, so all lines are read first
        _ = self.records
        return self._digest.hexdigest()


def replace_header(path: Path, header: JsonObject) -> None:
    """Write another first line, and all further lines as they are."""
    with open_atomic(path) as new_file, path.open("rb") as old_file:
        old_file.readline()
        new_file.write(msgspec.json.encode(header) + b"\n")
        shutil.copyfileobj(old_file, new_file)


def list_differences(old_value: Any, new_value: Any, key: str = "") -> list[str]:
    """The leaves in which two JSON values differ, such as `gen_kwargs.temperature: 0.0 -> 0.7`.

    `key` is the key of the two values themselves; it is empty at the top.
    """
    if isinstance(old_value, dict) and isinstance(new_value, dict):
        differences = []
        for name in sorted(old_value.keys() | new_value.keys()):
            subkey = f"{key}.{name}" if key else name
            differences += list_differences(old_value.get(name), new_value.get(name), subkey)
        return differences
    if old_value == new_value:
        return []
    return [f"{key}: {_short_json(old_value)} -> {_short_json(new_value)}"]


def list_shared_differences(old_settings: JsonObject, new_settings: JsonObject) -> list[str]:
    """The settings that are in both mappings and differ."""
    differences = []
    for name in sorted(old_settings.keys() & new_settings.keys()):
        differences += list_differences(old_settings[name], new_settings[name], name)
    return differences


def changed_settings_error(path: Path, changes: list[str]) -> JournalError:
    """The error for a journal that was begun with other settings.

    It names the settings that the user changed. What follows from them (hashes, generation
    arguments) is named only if nothing else changed.
    """
    named_changes = [change for change in changes if _USER_CHANGE_PATTERN.match(change)] or changes
    changes_text = "; ".join(named_changes[:4])
    if len(named_changes) > 4:
        changes_text += f"; and {len(named_changes) - 4} more"
    return JournalError(
        f"{path.parent} was begun with other settings. Changed: {changes_text}. Undo the change to "
        "continue that run, or choose another --output."
    )


def _short_json(value: Any) -> str:
    """A value as JSON of at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
