"""Problems, read from the hub, from a JSONL file, or from the bundled set.

The environment variable `MATH500_PATH` replaces MATH-500 wherever it is asked for. Unset, the problems come from the
hub; `demo` is the bundled set; any other value is a JSONL file with MATH-500's fields.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import resources
from harness.errors import DataError
from harness.yaml_settings import Strict

MATH500_REPOSITORY = "HuggingFaceH4/MATH-500"
MATH500_REVISION = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
PATH_VARIABLE = "MATH500_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with its answer.

    Attributes:
        id: Unique within the dataset.
        problem: The text that the model is asked.
        answer: The gold answer, as it would stand in a box.
        solution: The worked solution; empty if the dataset has none.
        subject: MATH's subject; empty if the dataset has none.
        level: MATH's difficulty, from 1 to 5; 0 if the dataset has none.
    """

    id: str
    problem: str
    answer: str
    solution: str = ""
    subject: str = ""
    level: int = 0


class Fields(Strict):
    """The keys under which a JSONL record holds the problem's fields."""

    problem: str = "problem"
    """The field with the problem."""
    answer: str = "answer"
    """The field with the gold answer: the final answer alone."""
    id: str | None = "unique_id"
    """The field with the problem's id; null numbers the lines."""


USUAL_FIELDS = Fields()
"""MATH-500's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Problems and where they come from: `source` is a file, `bundled`, or a hub name with its revision."""

    name: str
    source: str
    problems: tuple[Problem, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 over every field of every problem, in order."""
        lines = (json.dumps(asdict(p), sort_keys=True) for p in self.problems)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def load_math500() -> Dataset:
    """Load MATH-500, or the problems that `MATH500_PATH` names instead.

    Raises:
        DataError: the file is missing or broken, or the hub cannot be reached.
    """
    chosen = os.environ.get(PATH_VARIABLE, "").strip()
    if not chosen:
        return _from_hub()
    return load_demo() if chosen == "demo" else load_jsonl(Path(chosen))


def load_demo() -> Dataset:
    """Load the 500 bundled problems."""
    loaded = load_jsonl(resources.demo_folder() / "problems.jsonl")
    return Dataset(name="demo", source="bundled", problems=loaded.problems)


def load_jsonl(path: Path, fields: Fields = USUAL_FIELDS) -> Dataset:
    """Load problems from a JSONL file.

    Raises:
        DataError: the file is missing, is not JSONL, or lacks a field. The message names file, line and field.
    """
    path = path.expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise DataError(f"Data file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from error
    records = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            records.append((where, json.loads(line)))
        except json.JSONDecodeError as error:
            got = f"got {line.strip()[:40]!r} ({error.msg}, column {error.colno})"
            raise DataError(f"{where}: expected a JSON object on each line (JSONL), {got}.") from error
    return Dataset(name=path.stem, source=str(path), problems=_problems(records, fields, str(path)))


def _from_hub() -> Dataset:
    import datasets
    import huggingface_hub

    from harness.experiment.tokenizer import explain_hub_error

    huggingface_hub.utils.logging.set_verbosity_error()  # else each of its five tries says that there is no network
    try:
        rows = datasets.load_dataset(MATH500_REPOSITORY, split="test", revision=MATH500_REVISION)
    except Exception as error:
        raise DataError(
            f"{explain_hub_error(MATH500_REPOSITORY, error)} Without the hub set {PATH_VARIABLE}=FILE.jsonl, or "
            f"{PATH_VARIABLE}=demo for the bundled problems."
        ) from error
    source = f"{MATH500_REPOSITORY}@{MATH500_REVISION}"
    records = [(f"{source}, row {number}", dict(row)) for number, row in enumerate(rows)]
    return Dataset(name="math500", source=source, problems=_problems(records, USUAL_FIELDS, source))


def _problems(records: Iterable[tuple[str, object]], fields: Fields, source: str) -> tuple[Problem, ...]:
    problems: list[Problem] = []
    first_seen: dict[str, str] = {}
    for where, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, got {type(record).__name__}.")
        identity = str(len(problems)) if fields.id is None else _text(record, fields.id, where)
        if identity in first_seen:
            raise DataError(
                f"{where}, field {fields.id!r}: the id {identity!r} was already used at {first_seen[identity]}. "
                "Ids must be unique."
            )
        first_seen[identity] = where
        level = record.get("level", 0)
        problems.append(
            Problem(
                id=identity,
                problem=_text(record, fields.problem, where),
                answer=_text(record, fields.answer, where),
                solution=_encodable(str(record.get("solution") or ""), "solution", where),
                subject=_encodable(str(record.get("subject") or ""), "subject", where),
                level=level if isinstance(level, int) else 0,
            )
        )
    if not problems:
        raise DataError(f"{source}: no problems in it. Expected one JSON object per line.")
    return tuple(problems)


def _text(record: dict[str, object], field: str, where: str) -> str:
    """A field that every problem needs, as text."""
    value = record.get(field)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        got = repr(value)[:60] if field in record else f"only the fields {', '.join(record)}"
        raise DataError(f"{where}, field {field!r}: expected text, got {got}.")
    return _encodable(value, field, where)


def _encodable(value: str, field: str, where: str) -> str:
    """The text, unless it has half a surrogate pair: JSON can spell one, but no tokenizer or UTF-8 file takes it."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}, field {field!r}: {error.reason}: {value[error.start]!r}.") from None
    return value
