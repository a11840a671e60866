"""The files of a run: plain or compressed, written whole or not at all, with clear messages.

A run writes plain files. Those of a finished run may be compressed by `xz`; readers do not need to
know which. A plain file has precedence over a compressed one of its name.
"""

import errno
import hashlib
import lzma
import os
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from harness.errors import JournalError

BUFFER_BYTES = 1 << 20
"""Bytes that are read at once. A journal's lines are long: the default of some thousand bytes takes
twice the time.
"""

PACKED_SUFFIX = ".xz"
"""Suffix of a compressed file."""


def _packed_path(path: Path) -> Path:
    """The file's name when it is compressed."""
    return Path(f"{path}{PACKED_SUFFIX}")


def is_stored(path: Path) -> bool:
    """Whether the file exists, plain or compressed."""
    return path.is_file() or _packed_path(path).is_file()


@contextmanager
def open_stored(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, plain or compressed (`NAME.jsonl.xz`); either name may be given.

    Raises:
        JournalError: there is neither file, or the file cannot be read.
    """
    packed_path = _packed_path(path)
    if not path.is_file() and packed_path.is_file():
        path = packed_path
    try:
        # mless compresses *.jsonl files only: any other .xz file, such as a model's, is read as is
        is_packed = path.match(f"*.jsonl{PACKED_SUFFIX}")
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


def unpack_files(folder: Path, excluded_names: Container[str] = ()) -> None:
    """Unpack compressed files, so that a process can write to them.

    Files whose names are in `excluded_names` stay compressed.

    Raises:
        JournalError: a compressed file is damaged.
    """
    for packed_path in sorted(folder.glob(f"*.jsonl{PACKED_SUFFIX}")):
        path = packed_path.with_suffix("")
        if path.exists() or path.name in excluded_names:
            continue
        with (
            open_atomic(path) as plain_file,
            open_stored(packed_path) as packed_file,
            explain_write_errors(path),
        ):
            shutil.copyfileobj(packed_file, plain_file)
        packed_path.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either absent or complete, also after a power cut."""
    with open_atomic(path) as stream:
        stream.write(text.encode())


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write to. When the block ends it becomes `path`, or is removed after an error.

    Its content is on the disk before it becomes `path`. A missing folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # a device such as /dev/null would be replaced by the new file
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is not a regular file", path)
    partial_path = path.with_name(f"{path.name}.part")
    try:
        with partial_path.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # Within a folder a rename is atomic: readers see the old file or the complete new one.
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into an error that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise JournalError(
                f"{path} cannot grow: {error.strerror}. Everything before is stored: free some "
                "space (or raise the quota or the file-size limit), then repeat the command."
            ) from None
        raise JournalError(
            f"{path} cannot be written: {error.strerror}. Make it writable, or choose another "
            "--output."
        ) from None
