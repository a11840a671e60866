"""Problems, read from the hub or from a JSONL file, or made: arithmetic, which no model was trained on as it stands.

The environment variable `MATH500_PATH` replaces MATH-500 wherever it is asked for: it names a JSONL file with
MATH-500's fields. Unset, the problems come from the hub.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections.abc import Iterable, Iterator, Sequence
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
Sign = tuple[str, str]
"""How an operation is written, in a problem's id and in its text."""
SIGNS: dict[str, tuple[Sign, ...]] = {
    "products": (("x", "times"),),
    "sums": (("+", "plus"),),
    "differences": (("-", "minus"),),
    "quotients": (("/", "divided by"),),
    "chain": (("+", "+"), ("-", "-"), ("*", "*")),
}
"""The operations of each kind of problem."""


class MadeConfig(Strict):
    """Arithmetic problems, such as `What is 7 times 8?`."""

    make: Literal["products", "sums", "differences", "quotients", "chain"]
    """`products`, `sums`, `differences`, `quotients` or `chain` (`What is 3 + 4 * 2 - 5?`)."""
    seed: int = Field(default=1, ge=0)
    """The seed of what is drawn and in which order. A larger count begins with the same problems."""
    operands: tuple[Operand, Operand] = (2, 12)
    """The least and the greatest number. Differences and quotients are these sums and products, asked backwards."""
    count: int | None = Field(default=None, ge=1, le=100_000)
    """How many problems. By default all, at most 200."""
    depth: int = Field(default=3, ge=1, le=20)
    """The operations of a chain; other problems have one."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.operands
        if low > high:
            raise ValueError(f"operands: expected the least number first, got {low} and {high}")
        if self.count is not None and self.count > self._possible:
            raise ValueError(
                f"count: {low} to {high} give {self._possible} {self.make}, got {self.count}"
            )
        return self

    @property
    def _parts(self) -> list[Sequence[Any]]:
        """What each part of a problem is drawn from: first its operands, then its signs."""
        operations = self.depth if self.make == "chain" else 1
        numbers = range(self.operands[0], self.operands[1] + 1)
        return [*[numbers] * (operations + 1), *[SIGNS[self.make]] * operations]

    @property
    def _possible(self) -> int:
        """How many different problems there are."""
        return math.prod(map(len, self._parts))

    def problems(self) -> Iterator[dict[str, Any]]:
        """The fields of every problem, as `problems.Problem` has them.

        The level is the number of digits of both operands; of a chain, that of its operations. Problems of the same
        operands in another order are one cluster, known by the id of the one with the smaller first; so are the
        differences of one sum, the quotients of one product, and chains of the same operands and signs.
        """
        draw = random.Random(self.seed)
        places: dict[int, None] = {}
        while len(places) < (self.count or min(self._possible, 200)):
            places[draw.randrange(self._possible)] = None
        for place in places:
            drawn = []
            for part in self._parts:
                place, which = divmod(place, len(part))
                drawn.append(part[which])
            middle = len(drawn) // 2 + 1
            numbers, signs = drawn[:middle], drawn[middle:]
            yield {
                **_pose(numbers, signs),
                "level": len(signs) if self.make == "chain" else len("".join(map(str, numbers))),
                "cluster": _pose(sorted(numbers), sorted(signs))["id"],
            }


def _pose(numbers: list[int], signs: list[Sign]) -> dict[str, str]:
    """The id of a problem, its text and its answer."""
    first, *others = numbers
    if signs[0][1] in ("minus", "divided by"):  # asked backwards
        first = first + others[0] if signs[0][0] == "-" else first * others[0]
    terms = [first]
    for (sign, _), number in zip(signs, others, strict=True):
        match sign:
            case "x" | "*":  # binds more tightly than plus and minus
                terms[-1] *= number
            case "/":
                terms[-1] //= number
            case _:
                terms.append(number if sign == "+" else -number)
    name, text = (
        str(first)
        + "".join(
            f"{gap}{sign[way]}{gap}{number}" for sign, number in zip(signs, others, strict=True)
        )
        for way, gap in enumerate(("", " "))
    )
    return {"id": name, "problem": f"What is {text}?", "answer": str(sum(terms))}


MATH500_REPOSITORY = "HuggingFaceH4/MATH-500"
MATH500_REVISION = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
PATH_VARIABLE = "MATH500_PATH"


def _as_text(value: Any) -> Any:
    """A number as text; NaN, which is how a table says that a value is missing, stays and is refused."""
    return (
        str(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
        else value
    )


Needed = Annotated[str, Field(pattern=r"\S"), BeforeValidator(_as_text)]
"""Text that is not blank. A pattern refuses half a surrogate pair: JSON can spell one, no tokenizer takes it."""
Text = Annotated[str, Field(pattern=""), BeforeValidator(lambda value: str(value or ""))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with its answer.

    Attributes:
        id: Unique within the dataset.
        problem: The text that the model is asked.
        answer: The gold answer, as it would stand in a box.
        solution: The worked solution; empty if the dataset has none.
        subject: MATH's subject; empty if the dataset has none.
        level: The difficulty: MATH's from 1 to 5, or that of `MadeConfig`; 0 if the dataset has none.
        cluster: Problems of one cluster stand on one side of every split and count as one; empty: the problem by
            itself.
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
        """The name of its cluster: its own id if it has none."""
        return self.cluster or self.id

    def record(self) -> dict[str, Any]:
        """The fields; without the cluster where the problem has none, as before there were clusters."""
        return {name: value for name, value in asdict(self).items() if name != "cluster" or value}


_PROBLEM = TypeAdapter(Problem)


class DatasetConfig(Strict):
    """A JSONL file, and the names of its fields."""

    path: Path
    """The file."""
    problem: str = "problem"
    """The problem's field. By default `question` too."""
    answer: str = "answer"
    """The gold answer's field: the final answer alone."""
    id: str | None = "unique_id"
    """The id's field; null numbers the lines. By default `id` too, else lines are numbered."""


def _tag(given: Any) -> str:
    """Which form of a `dataset` is meant, so that only its own keys are spoken of."""
    if not isinstance(given, dict | Strict):
        return "[name]"
    return "MadeConfig" if "make" in dict(given) else "DatasetConfig"


AnyDataset = Annotated[
    Annotated[Literal["math500"], Tag("[name]")]
    | Annotated[DatasetConfig, Tag("DatasetConfig")]
    | Annotated[MadeConfig, Tag("MadeConfig")],
    Discriminator(_tag),
]
"""What a config's `dataset` may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Problems and where they come from: `source` is a file, a hub name with its revision, or how they are made."""

    name: str
    source: str
    problems: tuple[Problem, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 over every field of every problem, in order."""
        lines = (json.dumps(p.record(), sort_keys=True) for p in self.problems)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_dataset(dataset: AnyDataset) -> Dataset:
    """The problems that a config's `dataset` names. `MATH500_PATH` may name others in place of MATH-500.

    Raises:
        DataError: they cannot be had, or a file is not as described. The message names file, line and field.
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
    chosen = os.environ.get(PATH_VARIABLE, "").strip()
    return load_jsonl(Path(chosen)) if chosen else _from_hub()


def load_jsonl(path: Path) -> Dataset:
    """Load problems from a JSONL file with MATH-500's fields; as `open_dataset`."""
    return _read_jsonl(DatasetConfig(path=path))


def _read_jsonl(fields: DatasetConfig) -> Dataset:
    path = fields.path.expanduser()
    try:
        text = path.read_text(
            encoding="utf-8-sig"
        )  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Data file {path}: {getattr(error, 'strerror', error)}.") from error
    records = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                records.append((where, dict(json.loads(line))))
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{where}: expected a JSON object, got {line[:40]!r} ({error})."
                ) from None
    return Dataset(name=path.stem, source=str(path), problems=_problems(records, fields, str(path)))


def _from_hub() -> Dataset:
    import datasets
    import huggingface_hub

    huggingface_hub.utils.logging.set_verbosity_error()  # else each of its five tries says that there is no network
    try:
        rows = datasets.load_dataset(MATH500_REPOSITORY, split="test", revision=MATH500_REVISION)
    except Exception as error:
        raise DataError(
            f"{explain_hub_error(MATH500_REPOSITORY, error)} Or set {PATH_VARIABLE}=FILE.jsonl."
        ) from error
    source = f"{MATH500_REPOSITORY}@{MATH500_REVISION}"
    records = [(f"{source}, row {number}", dict(row)) for number, row in enumerate(rows)]
    return Dataset(
        name="math500",
        source=source,
        problems=_problems(records, DatasetConfig(path=Path()), source),
    )


def _problems(
    records: Iterable[tuple[str, dict[str, Any]]], fields: DatasetConfig, source: str
) -> tuple[Problem, ...]:
    """The problems of records, each with its place."""
    problems: dict[str, Problem] = {}
    names = {"id": fields.id, "problem": fields.problem, "answer": fields.answer}
    names |= {key: key for key in ("solution", "subject", "level", "cluster")}
    for where, record in records:
        kept: dict[str, Any] = {key: record[name] for key, name in names.items() if name in record}
        if fields.problem == "problem" and "question" in record:
            kept.setdefault("problem", record["question"])
        if fields.id in (None, "unique_id"):
            kept.setdefault("id", record.get("id", len(problems)) if fields.id else len(problems))
        try:
            problem = _PROBLEM.validate_python(kept)
        except ValidationError as error:
            raise DataError(explain(error, f"{where} ({', '.join(record)})")) from None
        if problem.id in problems:
            raise DataError(f"{where}: the id {problem.id!r} stands in an earlier line too.")
        problems[problem.id] = problem
    if not problems:
        raise DataError(f"{source}: no problems in it. Expected one JSON object per line.")
    alone = not any(problem.cluster for problem in problems.values())
    return tuple(
        one if alone or one.cluster else replace(one, cluster=f"problem {one.id}")
        for one in problems.values()
    )
