"""Problems from the hub or a JSONL file, or generated: arithmetic that no training data contains.

The environment variable `MATH500_PATH` replaces MATH-500: it names a JSONL file with the fields of
MATH-500. Without it, the problems come from the hub.
"""

import hashlib
import json
import math
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from harness.errors import DataError, explain_hub_error
from harness.yaml_settings import Strict, explain

Operand = Annotated[int, Field(ge=1, le=10**9)]
SIGNS = {
    "products": ("x", "times"),
    "sums": ("+", "plus"),
    "differences": ("-", "minus"),
    "quotients": ("/", "divided by"),
}
"""The operation of each kind of problem, in a problem's id and in its text."""


class MadeConfig(Strict):
    """Arithmetic problems, such as `What is 7 times 8?`."""

    make: Literal["products", "sums", "differences", "quotients"]
    """`products`, `sums`, `differences` or `quotients`."""
    seed: int = Field(default=1, ge=0)
    """The seed of the problems and their order."""
    operands: tuple[Operand, Operand] = (2, 12)
    """The smallest and largest number. Differences and quotients are sums and products, asked
    backwards."""
    count: int | None = Field(default=None, ge=1, le=100_000)
    """The number of problems. By default all, at most 200."""

    @model_validator(mode="after")
    def _check_operands(self) -> Self:
        low, high = self.operands
        if low > high:
            raise ValueError(f"operands: expected the smallest number first, got {low} and {high}")
        if self.count is not None and self.count > self._possible:
            raise ValueError(
                f"count: {low} to {high} give {self._possible} {self.make}, got {self.count}"
            )
        return self

    @property
    def _possible(self) -> int:
        """The number of different problems."""
        low, high = self.operands
        return (high - low + 1) ** 2

    def problems(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of every problem, as in `problems.Problem`.

        The level is the number of digits of both operands. Problems with the same operands in
        another order are one cluster, which has the id of the problem with sorted operands. So are
        the differences of one sum, and the quotients of one product.
        """
        generator = random.Random(self.seed)
        indices: dict[int, None] = {}  # a set would lose the order
        while len(indices) < (self.count or min(self._possible, 200)):
            indices[generator.randrange(self._possible)] = None
        low, high = self.operands
        for index in indices:
            second, first = divmod(index, high - low + 1)
            operands = low + first, low + second
            yield {
                **self._pose_problem(*operands),
                "level": len("".join(map(str, operands))),
                "cluster": self._pose_problem(*sorted(operands))["id"],
            }

    def _pose_problem(self, first: int, second: int) -> dict[str, str]:
        """The id of a problem, its text and its answer."""
        match self.make:
            case "products":
                answer = first * second
            case "sums":
                answer = first + second
            case "differences":  # a sum, asked backwards
                first, answer = first + second, first
            case "quotients":
                first, answer = first * second, first
        symbol, word = SIGNS[self.make]
        return {
            "id": f"{first}{symbol}{second}",
            "problem": f"What is {first} {word} {second}?",
            "answer": str(answer),
        }


MATH500_REPOSITORY = "HuggingFaceH4/MATH-500"
MATH500_REVISION = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
PATH_VARIABLE = "MATH500_PATH"


def _as_text(value: Any) -> Any:
    """A number as text. NaN, which tables have for missing values, and infinity stay, refused."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number and math.isfinite(value) else value


Needed = Annotated[str, Field(pattern=r"\S"), BeforeValidator(_as_text)]
"""Text that is not blank. The pattern refuses half a surrogate pair, which no tokenizer takes."""
Text = Annotated[str, Field(pattern=""), BeforeValidator(lambda value: str(value or ""))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with its answer.

    Attributes:
        id: Unique within the dataset.
        problem: The text of the problem.
        answer: The gold answer, as in a box.
        solution: The worked solution; empty if the dataset has none.
        subject: MATH's subject; empty if the dataset has none.
        level: The difficulty: from 1 to 5 in MATH, or that of `MadeConfig`; 0 if the dataset has
            none.
        cluster: The problems of a cluster are never split, and count as one. Empty: the problem is
            its own cluster.
    """

    id: Needed
    problem: Needed
    answer: Needed
    solution: Text = ""
    subject: Text = ""
    level: Annotated[int, BeforeValidator(lambda value: value if isinstance(value, int) else 0)] = 0
    cluster: Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))] = ""

    @property
    def counts_with(self) -> str:
        """The name of its cluster: the problem's id if it has none."""
        return self.cluster or self.id

    def record(self) -> dict[str, Any]:
        """The fields, without an empty cluster."""
        return {name: value for name, value in asdict(self).items() if name != "cluster" or value}


_PROBLEM = TypeAdapter(Problem)


class DatasetConfig(Strict):
    """A JSONL file and its fields."""

    path: Path
    """The file."""
    problem: str = "problem"
    """The problem's field. By default also `question`."""
    answer: str = "answer"
    """The field of the final answer."""
    id: str | None = "unique_id"
    """The id's field. By default also `id`, else lines are numbered; null numbers them."""


def _tag(value: Any) -> str:
    """The form of a `dataset`, so that an error message names only the keys of this form."""
    if not isinstance(value, dict | Strict):
        return str(value)
    return "MadeConfig" if "make" in dict(value) else "DatasetConfig"


AnyDataset = Annotated[
    Annotated[Literal["math500"], Tag("math500")]
    | Annotated[DatasetConfig, Tag("DatasetConfig")]
    | Annotated[MadeConfig, Tag("MadeConfig")],
    Discriminator(
        _tag,
        custom_error_type="dataset",
        custom_error_message="expected math500, {path: FILE}, or {make: sums} or another operation",
    ),
]
"""A config's `dataset`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Problems and their source: a file, a hub name with its revision, or generator settings."""

    name: str
    source: str
    problems: tuple[Problem, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 over every field of every problem, in order."""
        lines = [json.dumps(problem.record(), sort_keys=True) for problem in self.problems]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_dataset(dataset: AnyDataset) -> Dataset:
    """Open the problems of a config's `dataset`. `MATH500_PATH` may replace MATH-500.

    Raises:
        DataError: the problems cannot be loaded, or a file has another form. The message names the
            file, the line and the field.
    """
    if isinstance(dataset, DatasetConfig):
        return _read_jsonl(dataset)
    if isinstance(dataset, MadeConfig):
        problems = tuple(Problem(**fields) for fields in dataset.problems())
        low, high = dataset.operands
        return Dataset(
            name=dataset.make,
            source=f"made of {low} to {high}, seed {dataset.seed}",
            problems=problems,
        )
    path = os.environ.get(PATH_VARIABLE, "").strip()
    return load_jsonl(Path(path)) if path else _load_from_hub()


def load_jsonl(path: Path) -> Dataset:
    """Load problems from a JSONL file with MATH-500's fields; see `open_dataset`."""
    return _read_jsonl(DatasetConfig(path=path))


def _read_jsonl(fields: DatasetConfig) -> Dataset:
    path = fields.path.expanduser()
    try:
        # some editors begin a file with a byte order mark
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Data file {path}: {getattr(error, 'strerror', error)}.") from error
    records = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            # as pairs, because a dict keeps only the last value of a key that stands twice
            pairs = json.loads(line, object_pairs_hook=tuple)
            if not isinstance(pairs, tuple):
                raise ValueError("it is another value")
            record = dict(pairs)
            if len(record) < len(pairs):
                raise ValueError(f"a key stands twice: {', '.join(key for key, _ in pairs)}")
            records.append((location, record))
        except ValueError as error:
            raise DataError(
                f"{location}: expected a JSON object on each line, got {line[:40]!r} ({error})."
            ) from None
    problems = _read_problems(records, fields, str(path))
    return Dataset(name=path.stem, source=str(path), problems=problems)


def _load_from_hub() -> Dataset:
    import datasets
    import huggingface_hub

    # otherwise each of its five attempts prints that there is no network
    huggingface_hub.utils.logging.set_verbosity_error()
    try:
        rows = datasets.load_dataset(MATH500_REPOSITORY, split="test", revision=MATH500_REVISION)
    except Exception as error:
        raise DataError(
            f"{explain_hub_error(MATH500_REPOSITORY, error)} Or set "
            f"{PATH_VARIABLE}=FILE.jsonl, with the keys problem, answer and unique_id."
        ) from error
    source = f"{MATH500_REPOSITORY}@{MATH500_REVISION}"
    records = [(f"{source}, row {number}", dict(row)) for number, row in enumerate(rows)]
    problems = _read_problems(records, DatasetConfig(path=Path()), source)
    return Dataset(name="math500", source=source, problems=problems)


def _read_problems(
    records: Iterable[tuple[str, dict[str, Any]]], fields: DatasetConfig, source: str
) -> tuple[Problem, ...]:
    """Read problems from records, each with its location in the source."""
    problems: dict[str, Problem] = {}
    names = {"id": fields.id, "problem": fields.problem, "answer": fields.answer}
    names |= {key: key for key in ("solution", "subject", "level", "cluster")}
    for location, record in records:
        values: dict[str, Any] = {
            key: record[name] for key, name in names.items() if name in record
        }
        if fields.problem == "problem" and "question" in record:
            values.setdefault("problem", record["question"])
        number = len(problems)
        # an id of another name is named by the config, so it must be there
        if fields.id in (None, "unique_id"):
            values.setdefault("id", record.get("id", number) if fields.id else number)
        try:
            problem = _PROBLEM.validate_python(values)
        except ValidationError as error:
            raise DataError(explain(error, f"{location} ({', '.join(record)})")) from None
        if problem.id in problems:
            raise DataError(f"{location}: the id {problem.id!r} occurs in an earlier line.")
        problems[problem.id] = problem
    if not problems:
        raise DataError(f"{source} has no problems: expected one JSON object per line.")
    if any(problem.cluster for problem in problems.values()):
        # a problem's id may be the name of another problem's cluster
        for name, problem in problems.items():
            if not problem.cluster:
                problems[name] = replace(problem, cluster=f"problem {name}")
    return tuple(problems.values())
