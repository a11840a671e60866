"""Append-only files that survive anything, and the files of a run: read as they are or compressed, written whole.

A journal's first line is its header: the identity of what is being recorded. Every further line is one finished
record with a `key`. No record is ever rewritten, so a kill at any moment costs at most the line being written.
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
"""Preset of xz for a finished run: an eighth of the size in a second for 10 MB; the highest takes three for a tenth."""
BUFFER_BYTES = 1 << 20
"""Read at once of a journal; lines are long, and the usual few thousand cost half of the time."""
SYNC_SECONDS = 2.0
"""At most this long lies between a record and its being safe from a power cut; a killed process loses none."""

Record = TypeVar("Record", bound=msgspec.Struct)
PACKED = ".xz"
"""Ending of a compressed file; `compress` makes it."""


class Journal:
    """One append-only file. Holds the keys of its records in memory, never the records.

    Attributes:
        path: The file.
        keys: Keys of all records, those just appended included.
        mended: What was dropped at opening, in words; None if the file was whole.

    Raises:
        JournalError: the file cannot be read or written, a whole line is damaged, or the header differs.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.keys: set[str] = set()
        self.mended: str | None = None
        self._synced = time.monotonic()
        self._dirty = False
        with clear_messages(path), ExitStack() as opened:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opened.callback(os.close, self._file)
            self._recover(header)
            opened.pop_all()

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
        """Read what is there, cut a torn tail off, and write the header into an empty file."""
        whole, decoder = 0, msgspec.json.Decoder(Keyed)
        for number, line in _whole_lines(self.path):
            whole += len(line)
            if number == 1:
                if changes := differences(
                    _decode_header(self.path, line), json.loads(json.dumps(header))
                ):
                    raise changed_settings(self.path, changes)
                continue
            key = _decode(decoder, self.path, number, line).key
            if key in self.keys:
                raise JournalError(
                    f"{self.path}, line {number}: the key {key} again. One sample has one line."
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
        line = msgspec.json.encode(record) + b"\n"
        start, written = os.lseek(self._file, 0, os.SEEK_END), 0
        with clear_messages(self.path):
            try:
                while written < len(line):
                    written += os.write(self._file, line[written:])
            finally:
                if written < len(
                    line
                ):  # half a line is worth nothing, and shortening needs no space
                    os.ftruncate(self._file, start)
        self._dirty = True


def read_header(path: Path) -> dict[str, Any]:
    """A journal's first line; empty if not even that is whole.

    Raises:
        JournalError: there is no journal, or its first line is damaged.
    """
    return next((_decode_header(path, line) for _, line in _whole_lines(path)), {})


def replace_header(path: Path, header: Mapping[str, Any]) -> None:
    """Write another first line, and all others as they are."""
    with write_atomic(path) as part, path.open("rb") as old, part.open("wb") as new:
        old.readline()
        new.write(msgspec.json.encode(header) + b"\n")
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())


def read_records(path: Path, form: type[Record]) -> Iterator[Record]:
    """Every record in its form; the header, notes and a torn last line are passed over.

    Args:
        path: A journal.
        form: `records.Sample` or `records.Score`; `records.Keyed` for the keys alone.

    Raises:
        JournalError: there is no journal, or a whole line is damaged or does not fit.
    """
    decoder = msgspec.json.Decoder(form)
    for number, line in _whole_lines(path):
        if number > 1 and not line.startswith(NOTES):
            yield _decode(decoder, path, number, line)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The records that are no samples: who wrote the journal, and how long that took.

    Raises:
        JournalError: there is no journal, or a note is damaged.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    return [
        _decode(decoder, path, number, line)
        for number, line in _whole_lines(path)
        if line.startswith(NOTES)
    ]


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs between two JSON values, one entry a leaf: `gen_kwargs.temperature: 0.0 -> 0.7`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted(old.keys() | new.keys())
            for line in differences(
                old.get(name), new.get(name), f"{where}.{name}" if where else name
            )
        ]
    return [] if old == new else [f"{where}: {_short(old)} -> {_short(new)}"]


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """The settings that are in both and differ, in words; empty if there are none."""
    both = ours.keys() & theirs.keys()
    return "; ".join(
        differences({name: ours[name] for name in both}, {name: theirs[name] for name in both})
    )


def changed_settings(path: Path, changes: list[str]) -> JournalError:
    """The error for a journal that was begun with other settings.

    It names what the user changed; what follows from that (hashes, generation arguments) only if there is nothing else.
    """
    users = ("config.", "limit", "contrasts", "primary")
    named = [change for change in changes if change.startswith(users)] or changes
    told = "; ".join(named[:4]) + (f"; and {len(named) - 4} more" if len(named) > 4 else "")
    return JournalError(
        f"{path.parent} was begun with other settings. Changed: {told}. Undo the change to continue that run, or "
        "choose another --output."
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every whole line with its number.

    Only the last line may be torn, and then it has no line break: a kill tears nothing else.
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


def _decode_header(path: Path, line: bytes) -> dict[str, Any]:
    header: dict[str, Any] = _decode(msgspec.json.Decoder(dict[str, Any]), path, 1, line)
    return header


def is_stored(path: Path) -> bool:
    """Whether the file is there, as it is or compressed."""
    return path.is_file() or path.with_name(path.name + PACKED).is_file()


def find_stored(folder: Path, pattern: str) -> list[Path]:
    """The files that a glob pattern names, as they are or compressed; by the names that they have uncompressed."""
    found = [*folder.glob(pattern), *folder.glob(pattern + PACKED)]
    return sorted({path.with_name(path.name.removesuffix(PACKED)) for path in found})


@contextmanager
def open_stored(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, as it is or from its compressed form beside it (`NAME.xz`), which may also be named.

    Raises:
        JournalError: there is neither, or the file cannot be read.
    """
    packed = path.with_name(path.name + PACKED)
    if not path.is_file() and packed.is_file():
        path = packed
    try:
        unpack = path.match(f"*.jsonl{PACKED}")
        with lzma.open(path) if unpack else path.open("rb", buffering=BUFFER_BYTES) as stream:
            yield stream
    except (lzma.LZMAError, EOFError) as error:
        raise JournalError(f"{path} is damaged ({error}). Restore it from a copy.") from None
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror or error}.") from None


def hash_stored(path: Path) -> str:
    """SHA-256 of a file; of one that is kept compressed, as it is uncompressed.

    Raises:
        JournalError: as `open_stored`.
    """
    with open_stored(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def compress(folder: Path, names: Iterable[str]) -> None:
    """Compress files of a folder to about an eighth of their size.

    A kill leaves a file in one form, or whole in both.
    """
    for file in (folder / name for name in names):
        packed = file.with_name(file.name + PACKED)
        if (
            file.is_file() and not packed.exists()
        ):  # of two, `expand` says whether they are the same
            with write_atomic(packed) as part, file.open("rb") as source:
                with lzma.open(part, "wb", preset=COMPRESSION) as target:
                    shutil.copyfileobj(source, target)
                with part.open("rb") as written:
                    os.fsync(written.fileno())
            file.unlink()


def expand(folder: Path) -> None:
    """Undo `compress`, for a process that will write to the files.

    Raises:
        JournalError: a compressed file is damaged, or lies beside another file of its name.
    """
    for packed in sorted(folder.glob(f"*.jsonl{PACKED}")):
        file = packed.with_suffix("")
        if not file.exists():
            with write_atomic(file) as part, part.open("wb") as target:
                with open_stored(packed) as source, clear_messages(file):
                    shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        elif hash_stored(packed) != hash_stored(
            file
        ):  # a kill while compressing leaves two that are the same
            raise JournalError(
                f"{file} and {packed.name} differ, and only one can be the run's. Delete the other one."
            )
        packed.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either absent or whole."""
    with write_atomic(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file becomes `path` if the block ends well, and is removed otherwise.

    A missing folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def clear_messages(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into one that names the path."""
    try:
        yield
    except OSError as error:
        told = f"be written: {error.strerror}. Make it writable, or choose another --output."
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            told = (
                f"grow: {error.strerror}. Everything before is safe: free some space (or raise the quota or file-size "
                "limit), and the same command continues."
            )
        raise JournalError(f"{path} cannot {told}") from None
