"""The records of a data file, or of a dataset on the hub.

Numbers are read as text, so that `0.50` stays `0.50`.

A file is JSON (an object in each line, or an array), CSV, either of them also compressed by gzip,
parquet or arrow. A folder that `datasets` saved may have splits, as in `folder:test`. A dataset on
the hub is named with its split, as in `owner/name:test`. It may have a revision and a
configuration, as in `owner/name@5e1ec7ed:main:test`.
"""

import csv
import gzip
import json
import logging
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness.constants import JsonObject
from harness.errors import DataError, explain_hub_error, name_similar_files, quote

LocatedRecord = tuple[str, JsonObject]
"""A record and its location, for messages."""
CSV_SUFFIXES = (".csv", ".tsv")
"""Suffixes of tables as text, whose delimiter is read from their first line."""
_HUB_NAME_PATTERN = re.compile(r"([\w.-]+/[\w.-]+)(?:@(\w+))?(?::([\w.-]+))?:([\w.-]+)")
"""OWNER/NAME@REVISION:CONFIGURATION:SPLIT; revision and configuration may be missing."""

_ESCAPE_LETTERS = str.maketrans("\a\b\t\n\v\f\r\x1b\u2028\u2029", "abtnvfreLP")
"""The letters with which JSON and YAML spell control characters."""
# A tab or line break may be meant as such, so it counts only if the letters after it complete a
# command of LaTeX: a tab before `imes` is `\times`.
_LOST_BACKSLASH = re.compile(
    r"([\a\b\v\f\x1b]|\r(?=ight|ho\b|angle|ceil|floor|m\b)|\n(?=eq\b|abla\b|otin\b|eg\b|e \d)"
    r"|\t(?=ext[a-z]*\{|imes\b|heta\b|frac\b|riangle|ilde\b|o \d|au\b(?! \w\w)"
    r"|anh?(?: ?[\\(^]| [A-Za-z]\b))"
    r"|\u2028(?=ambda|eft)|\u2029(?=hi\b|i\b|si\b))([A-Za-z]+)"
)
"""A control character with the rest of the command of LaTeX that it began."""


def refuse_lost_backslash(text: str) -> str:
    r"""Return a text unless a control character shows that JSON or YAML read `\f` in `\frac`.

    Raises:
        ValueError: there is such a character.
    """
    if match := _LOST_BACKSLASH.search(text):
        command = f"\\{match[0].translate(_ESCAPE_LETTERS)}"
        raise ValueError(
            f"a control character stands for the beginning of {command}: expected \\{command}"
        )
    return text


def find_column(record: Mapping[str, Any], *column_names: str) -> str | None:
    """The first of these columns that a record has, regardless of case; None if it has none."""
    for column_name in column_names:
        if column_name in record:
            return column_name
        for column in record:
            if column.lower() == column_name.lower():
                return column
    return None


def read_data(path: Path) -> Iterator[LocatedRecord]:
    """Read the records of a file or dataset one after another.

    Args:
        path: The file, or the name of the dataset.

    Raises:
        DataError: the data are missing or damaged, or a key or column appears twice. The message
            names the line, element or row.
    """
    folder, _, split = str(path).partition(":")
    if Path(folder).is_dir():
        arrow_files = sorted(Path(folder, split).glob("data*.arrow"))
        if not arrow_files:
            raise DataError(
                f"Data folder {path}: expected one that `datasets` saved, or FOLDER:SPLIT."
            )
        yield from _read_tables(path, *map(_read_arrow_file, arrow_files))
        return
    hub_match = _HUB_NAME_PATTERN.fullmatch(str(path))
    if hub_match and not path.exists():
        yield from _read_tables(path, _read_hub_table(*hub_match.groups()))
        return
    suffix = _find_suffix(path)
    try:
        # parquet and arrow are opened too, so that a missing file has the same error message
        with _open_text(path) as stream:
            if suffix in (".parquet", ".arrow"):
                yield from _read_tables(path, _read_arrow_file(path))
            elif suffix in CSV_SUFFIXES:
                yield from _read_csv(path, stream)
            elif suffix in ("", ".json", ".jsonl", ".ndjson", ".txt"):
                yield from _read_json(path, stream.read())
            else:
                raise DataError(
                    f"Data file {path}: expected .jsonl, .json, .csv or .tsv, these also with .gz, "
                    ".parquet or .arrow."
                )
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, UnicodeDecodeError):
            reason = f"{error}. Save it as UTF-8"
        raise DataError(f"Data file {path}: {reason}.{name_similar_files(path)}") from None


def _find_suffix(path: Path) -> str:
    """The suffix in lower case, such as `.csv` for `a.CSV.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _open_text(path: Path) -> Any:
    """Open a file for reading, unpacked if its name ends with `.gz`."""
    open_unpacked: Any = gzip.open if path.suffix == ".gz" else open
    # some editors begin a file with a byte order mark, which does not belong to the first field
    return open_unpacked(path, "rt", encoding="utf-8-sig", newline="")


def find_delimiter(path: Path) -> str:
    """The character between the columns of a CSV file; empty for another file."""
    if _find_suffix(path) not in CSV_SUFFIXES:
        return ""
    with _open_text(path) as stream:
        # The sign that the first line has most often. Spreadsheets write semicolons where the comma
        # is the decimal sign.
        return max(",;\t", key=stream.readline().count)


def _read_hub_table(
    repository: str, revision: str | None, configuration: str | None, split: str
) -> Any:
    """A split of a dataset of the hub as a table of pyarrow."""
    import datasets
    import huggingface_hub

    # otherwise each of the library's five attempts prints that there is no network
    huggingface_hub.utils.logging.set_verbosity_error()
    # otherwise `datasets` also prints the error that it raises
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_dataset(repository, configuration, revision=revision, split=split)
    except Exception as error:
        raise DataError(explain_hub_error(repository, error)) from error
    return dataset.with_format("arrow")[:]


def _read_arrow_file(path: Path) -> Any:
    """A table of parquet or arrow."""
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        if _find_suffix(path) == ".parquet":
            return parquet.read_table(path)
        content = path.read_bytes()
        # Arrow has two formats. `datasets` writes streams; other programs write files, which begin
        # with `ARROW1`.
        open_table = ipc.open_file if content.startswith(b"ARROW1") else ipc.open_stream
        return open_table(content).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be loaded: {quote(error)}") from None


def _read_tables(path: Path, *tables: Any) -> Iterator[LocatedRecord]:
    """The rows of tables of pyarrow; `path` is for messages."""
    import pyarrow

    def choose_type(column_type: Any) -> Any:
        """The type in which a column is read: its own, but text for numbers of 32 bits.

        Python's numbers have 64 bits, in which a 0.1 of 32 bits is 0.10000000149011612. The
        elements of lists are read in the same way.
        """
        if isinstance(
            column_type, pyarrow.ListType | pyarrow.LargeListType | pyarrow.FixedSizeListType
        ):
            return pyarrow.list_(choose_type(column_type.value_type))
        return pyarrow.string() if column_type == pyarrow.float32() else column_type

    table = pyarrow.concat_tables(tables)
    fields = [(column.name, choose_type(column.type)) for column in table.schema]
    for index, row in enumerate(table.cast(pyarrow.schema(fields)).to_pylist()):
        yield f"{path}, row {index}", row


def _read_csv(path: Path, stream: IO[str]) -> Iterator[LocatedRecord]:
    """The rows of a CSV file; `path` is for messages."""
    csv.field_size_limit(sys.maxsize)
    # strict: otherwise a quote that is never closed would swallow the rest of the file
    reader = csv.DictReader(stream, delimiter=find_delimiter(path), strict=True)
    try:
        columns = reader.fieldnames or ()
        if len(set(columns)) < len(columns):
            raise DataError(f"{path}: a column appears twice: {', '.join(columns)}.")
        for row in reader:
            location = f"{path}, line {reader.line_num}"
            # csv stores surplus cells under the key None, and gives missing cells the value None
            if None in row or None in row.values():
                raise DataError(f"{location}: expected {len(columns)} cells, as in the first line.")
            yield location, row
    except csv.Error as error:
        raise DataError(f"{path}, after line {reader.line_num}: {error}.") from None


def _read_json(path: Path, text: str) -> Iterator[LocatedRecord]:
    """The objects of an array, or of the lines that are not blank; `path` is for messages.

    Only a file that is named `.json` may be an array.

    Raises:
        DataError: the text is one object over several lines, such as an indented log; or an element
            or a line is not an object.
    """
    # the error of `json.loads` is ignored, because several lines of JSON are not one document
    with suppress(ValueError):
        document = json.loads(text)
        if isinstance(document, dict) and "\n" in text.strip():
            raise DataError(
                f"{path} is one JSON object with the keys {', '.join(document)}: expected an "
                "object for each row, with an item, a condition and a score where results are "
                "compared."
            )
    if ".json" in path.suffixes and text.lstrip().startswith("["):
        for element_number, element in enumerate(_parse_json(text, str(path)), 1):
            location = f"{path}, element {element_number}"
            if not isinstance(element, dict):
                raise DataError(f"{location}: expected a JSON object, got {element!r:.40}.")
            yield location, element
        return
    for line_number, line in enumerate(text.rstrip().split("\n"), 1):
        if not line.strip():
            continue
        location = f"{path}, line {line_number}"
        record = _parse_json(line, location)
        if not isinstance(record, dict):
            raise DataError(f"{location}: expected a JSON object on each line, got {line!r:.40}.")
        yield location, record


def _parse_json(text: str, location: str) -> Any:
    """A value of JSON, with numbers as text.

    Raises:
        DataError: the text is not JSON, or a key appears twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_as_object, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{location}: expected a JSON object, got {text[:40]!r} ({error})."
        ) from None


def _as_object(keys_and_values: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The object of JSON with these keys and values, of which none replaces an earlier one.

    Raises:
        ValueError: a key appears twice.
    """
    record = dict(keys_and_values)
    if len(record) < len(keys_and_values):
        keys = [key for key, _ in keys_and_values]
        raise ValueError(f"the key {max(keys, key=keys.count)!r} appears twice")
    return record
