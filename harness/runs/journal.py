"""Append-only journals that survive a kill, and a run's files: plain or compressed, written whole.

A journal's first line is its header: the identity of what is being recorded. Every further line is
one finished record with a `key`. No record is ever rewritten, so a kill at any moment costs at most
the line being written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import msgspec

from harness.errors import JournalError
from harness.runs.records import NOTES, Keyed

COMPRESSION = 3
"""Preset of xz for a finished run: 10 MB shrink to an eighth in one second.

The highest preset takes three seconds for a tenth.
"""
BUFFER_BYTES = 1 << 20
"""Bytes that are read at once. A journal's lines are long: the default of some thousand bytes takes
twice the time.
"""
SYNC_SECONDS = 2.0
"""Longest time until a record is safe from a power cut. A kill of the process loses no record."""

Record = TypeVar("Record", bound=msgspec.Struct)
PACKED = ".xz"
"""Suffix of a compressed file."""
_HEADER_DECODER = msgspec.json.Decoder(dict[str, Any])


class Journal:
    """One append-only file. It holds the keys of its records in memory, never the records.

    Attributes:
        path: The file.
        keys: Keys of all records, including those just appended.
        repair: Message about the torn line that was dropped at opening; None if there was none.

    Raises:
        JournalError: the file cannot be read or written, a complete line is damaged, or the header
            differs.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.keys: set[str] = set()
        self.repair: str | None = None
        self._synced = time.monotonic()
        self._dirty = False
        with clear_messages(path), ExitStack() as stack:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, self._file)
            self._recover(header)
            stack.pop_all()

    def append(self, record: Mapping[str, Any] | Keyed) -> None:
        """Write one record; from here on it survives the death of this process.

        Raises:
            JournalError: the disk is full or the file cannot be written; all earlier records are
                intact.
        """
        self._write_line(record)
        self.keys.add(record.key if isinstance(record, Keyed) else record["key"])

    def sync_if_due(self) -> None:
        """Make all records safe from a power cut, if the last sync was `SYNC_SECONDS` ago."""
        if self._dirty and time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Make all records safe from a power cut."""
        with clear_messages(self.path):
            os.fsync(self._file)
        self._synced, self._dirty = time.monotonic(), False

    def close(self) -> None:
        """Sync and close."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self, header: Mapping[str, Any]) -> None:
        """Read the keys, cut off a torn last line, and write the header into an empty file."""
        size, decoder = 0, msgspec.json.Decoder(Keyed)
        for number, line in _complete_lines(self.path):
            size += len(line)
            if number == 1:
                stored = _decode(_HEADER_DECODER, self.path, number, line)
                if changes := differences(stored, json.loads(json.dumps(header))):
                    raise changed_settings(self.path, changes)
                continue
            key = _decode(decoder, self.path, number, line).key
            if key in self.keys:
                raise JournalError(f"{self.path}, line {number}: the key {key} occurs twice.")
            self.keys.add(key)
        torn = os.fstat(self._file).st_size - size
        if torn > 0:
            os.ftruncate(self._file, size)
            self.repair = f"{self.path.name}: an incomplete last line of {torn} bytes was removed"
        if size == 0:
            self._write_line(header)

    def _write_line(self, record: Mapping[str, Any] | Keyed) -> None:
        line = msgspec.json.encode(record) + b"\n"
        start, position = os.lseek(self._file, 0, os.SEEK_END), 0
        with clear_messages(self.path):
            try:
                while position < len(line):
                    position += os.write(self._file, line[position:])
            finally:
                if position < len(line):
                    # half a line is worth nothing, and shortening needs no space
                    os.ftruncate(self._file, start)
        self._dirty = True


def read_header(path: Path) -> dict[str, Any]:
    """A journal's first line; empty if even that line is torn.

    Raises:
        JournalError: there is no journal, or its first line is damaged.
    """
    for number, line in _complete_lines(path):
        header: dict[str, Any] = _decode(_HEADER_DECODER, path, number, line)
        return header
    return {}


def replace_header(path: Path, header: Mapping[str, Any]) -> None:
    """Write another first line, and all further lines as they are."""
    with _open_atomic(path) as target, path.open("rb") as source:
        source.readline()
        target.write(msgspec.json.encode(header) + b"\n")
        shutil.copyfileobj(source, target)


def read_records(path: Path, form: type[Record]) -> Iterator[Record]:
    """Every record in its form, without the header, notes and a torn last line.

    Args:
        path: A journal.
        form: `records.Sample` or `records.Score`; `records.Keyed` for the keys alone.

    Raises:
        JournalError: there is no journal, or a complete line is damaged or does not fit the form.
    """
    decoder = msgspec.json.Decoder(form)
    for number, line in _complete_lines(path):
        if number > 1 and not line.startswith(NOTES):
            yield _decode(decoder, path, number, line)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The records that are no samples: who wrote the journal, and how long that took.

    Raises:
        JournalError: there is no journal, or a note is damaged.
    """
    return [
        _decode(_HEADER_DECODER, path, number, line)
        for number, line in _complete_lines(path)
        if line.startswith(NOTES)
    ]


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """The leaves in which two JSON values differ, such as `gen_kwargs.temperature: 0.0 -> 0.7`."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for name in sorted(old.keys() | new.keys()):
            subkey = f"{key}.{name}" if key else name
            lines += differences(old.get(name), new.get(name), subkey)
        return lines
    return [] if old == new else [f"{key}: {_short_json(old)} -> {_short_json(new)}"]


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The settings that are in both mappings and differ; empty if there are none."""
    shared = old.keys() & new.keys()
    return "; ".join(
        differences({name: old[name] for name in shared}, {name: new[name] for name in shared})
    )


def changed_settings(path: Path, changes: list[str]) -> JournalError:
    """The error for a journal that was begun with other settings.

    It names the settings that the user changed. What follows from them (hashes, generation
    arguments) is named only if nothing else changed.
    """
    keys = ("config.", "limit", "contrasts", "primary")
    named = [change for change in changes if change.startswith(keys)] or changes
    text = "; ".join(named[:4])
    if len(named) > 4:
        text += f"; and {len(named) - 4} more"
    return JournalError(
        f"{path.parent} was begun with other settings. Changed: {text}. Undo the change to "
        "continue that run, or choose another --output."
    )


def _short_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every complete line with its number.

    Only the last line may be torn, and then it has no line break: a kill tears no other line.
    """
    with open_stored(path) as stream:
        for number, line in enumerate(stream, start=1):
            if line.endswith(b"\n"):
                yield number, line


def _decode(decoder: msgspec.json.Decoder[Any], path: Path, number: int, line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        remedy = " Delete it, and run `mless regrade`." if path.name.startswith("scores") else ""
        raise JournalError(
            f"{path}, line {number}: damaged: {error}. Restore the file from a copy.{remedy}"
        ) from None


def _packed_path(path: Path) -> Path:
    """The file's name when it is compressed."""
    return path.with_name(path.name + PACKED)


def is_stored(path: Path) -> bool:
    """Whether the file exists, plain or compressed."""
    return path.is_file() or _packed_path(path).is_file()


def find_stored(folder: Path, pattern: str) -> list[Path]:
    """The files that match a glob pattern, plain or compressed, by their uncompressed names."""
    matches = [*folder.glob(pattern), *folder.glob(pattern + PACKED)]
    return sorted({path.with_name(path.name.removesuffix(PACKED)) for path in matches})


@contextmanager
def open_stored(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, plain or compressed (`NAME.jsonl.xz`); either name may be given.

    Raises:
        JournalError: there is neither file, or the file cannot be read.
    """
    packed = _packed_path(path)
    if not path.is_file() and packed.is_file():
        path = packed
    try:
        is_packed = path.match(f"*.jsonl{PACKED}")
        with lzma.open(path) if is_packed else path.open("rb", buffering=BUFFER_BYTES) as stream:
            yield stream
    except (lzma.LZMAError, EOFError) as error:
        raise JournalError(f"{path} is damaged ({error}). Restore it from a copy.") from None
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror or error}.") from None


def hash_stored(path: Path) -> str:
    """SHA-256 of a file's uncompressed bytes.

    Raises:
        JournalError: as `open_stored`.
    """
    with open_stored(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def compress(folder: Path, names: Iterable[str]) -> None:
    """Compress files of a folder.

    A kill leaves a file in one of the two forms, or complete in both.
    """
    for name in names:
        file = folder / name
        packed = _packed_path(file)
        # if both exist, `expand` checks that they are the same
        if file.is_file() and not packed.exists():
            with _open_atomic(packed) as stream, file.open("rb") as source:
                with lzma.open(stream, "wb", preset=COMPRESSION) as target:
                    shutil.copyfileobj(source, target)
            file.unlink()


def expand(folder: Path) -> None:
    """Undo `compress`, for a process that will write to the files.

    Raises:
        JournalError: a compressed file is damaged, or lies beside a different file of its name.
    """
    for packed in sorted(folder.glob(f"*.jsonl{PACKED}")):
        file = packed.with_suffix("")
        if not file.exists():
            with _open_atomic(file) as target, open_stored(packed) as source, clear_messages(file):
                shutil.copyfileobj(source, target)
        # a kill while compressing leaves two files with the same content
        elif hash_stored(packed) != hash_stored(file):
            raise JournalError(
                f"{file} and {packed.name} differ, but only one is of this run. "
                "Delete the other file."
            )
        packed.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either absent or complete, also after a power cut."""
    with _open_atomic(path) as stream:
        stream.write(text.encode())


@contextmanager
def _open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """`write_atomic` with an open file, whose content is on the disk before it becomes `path`."""
    with write_atomic(path) as partial, partial.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file becomes `path` if the block succeeds, else it is removed.

    A missing folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def clear_messages(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into an error that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            problem = (
                f"grow: {error.strerror}. Everything before is stored: free some space (or raise "
                "the quota or the file-size limit), then repeat the command."
            )
        else:
            problem = f"be written: {error.strerror}. Make it writable, or choose another --output."
        raise JournalError(f"{path} cannot {problem}") from None
