"""Files of a run: read as they are or packed, and written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from harness.constants import COMPRESSION
from harness.errors import JournalError, RunError

BUFFER = 1 << 20
"""Bytes that are read at once; lines are long, and the usual few thousand cost half of the time."""
PACKED = ".xz"
"""Ending of a file in packed form; `compress` makes it."""


def is_stored(path: Path) -> bool:
    """Whether the file is there, as it is or packed."""
    return path.is_file() or path.with_name(path.name + PACKED).is_file()


def find_stored(folder: Path, pattern: str) -> list[Path]:
    """The files that a glob pattern names, as they are or packed; by the names that they have unpacked."""
    found = [*folder.glob(pattern), *folder.glob(pattern + PACKED)]
    return sorted({path.with_name(path.name.removesuffix(PACKED)) for path in found})


@contextmanager
def open_stored(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, as it is or from its packed form beside it (`NAME.xz`).

    Raises:
        OSError: there is neither.
        JournalError: the packed form is damaged.
    """
    packed = path.with_name(path.name + PACKED)
    if path.is_file() or not packed.is_file():
        with path.open("rb", buffering=BUFFER) as stream:
            yield stream
        return
    with _open_packed(packed) as unpacked:
        yield unpacked


@contextmanager
def _open_packed(packed: Path) -> Iterator[IO[bytes]]:
    try:
        with lzma.open(packed) as unpacked:
            yield unpacked
    except (lzma.LZMAError, EOFError) as error:
        raise JournalError(f"{packed} is damaged ({error}). Restore it from a copy.") from None


def hash_stored(path: Path, remedy: str = "Restore it from a copy.") -> str:
    """SHA-256 of a file; of one that is kept packed, as it is unpacked.

    Args:
        path: The file.
        remedy: What to do if there is none.

    Raises:
        RunError: it is missing, or cannot be read.
    """
    try:
        with open_stored(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}. {remedy}") from None


def compress(folder: Path, names: Iterable[str]) -> None:
    """Keep files of a folder in packed form, about an eighth of their size.

    A kill leaves a file in one form, or whole in both.
    """
    for file in (folder / name for name in names):
        packed = file.with_name(file.name + PACKED)
        if file.is_file() and not packed.exists():  # of two, `expand` says whether they are the same
            with write_atomic(packed) as part, file.open("rb") as source:
                with lzma.open(part, "wb", preset=COMPRESSION) as target:
                    shutil.copyfileobj(source, target)
                _sync(part)
            file.unlink()


def expand(folder: Path) -> None:
    """Undo `compress`, for a process that will write to the files.

    Raises:
        JournalError: a packed file is damaged, or lies beside another file of its name.
    """
    for packed in sorted(folder.glob(f"*.jsonl{PACKED}")):
        file = packed.with_suffix("")
        if not file.exists():
            with write_atomic(file) as part, open_stored(file) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
        elif not _is_same(packed, file):  # a kill while compressing leaves two that are the same
            raise JournalError(f"{file} and {packed.name} differ, and only one can be the run's. Delete the other one.")
        packed.unlink()


def _is_same(packed: Path, file: Path) -> bool:
    with _open_packed(packed) as one, file.open("rb") as other:
        hashes = [hashlib.file_digest(stream, "sha256").digest() for stream in (one, other)]  # type: ignore[arg-type]
    return hashes[0] == hashes[1]


def _sync(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either absent or whole."""
    with write_atomic(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def make_place(path: Path) -> None:
    """Make the folder that a file shall stand in, if it is missing.

    Raises:
        OSError: the path is a folder, or its folder is a file or cannot be made.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from None


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file becomes `path` if the block ends well, and is removed otherwise.

    A missing folder is made.
    """
    make_place(path)
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class clear_messages:
    """Turn the operating system's errors into ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise JournalError(
                f"{self._path} cannot be written: {error.strerror}. Make it writable, or choose another --output."
            ) from None
