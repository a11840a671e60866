"""Problems from a file or the hub, or generated: arithmetic.

The environment variable `MATH500_PATH` replaces MATH-500: it names a file with the fields of
MATH-500. Without it, the problems come from the hub.
"""

import hashlib
import json
import os
import random
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from harness.constants import AnswerKind, DecimalSign, JsonObject
from harness.data_records import LocatedRecord, find_column, read_data, refuse_lost_backslash
from harness.errors import DataError
from harness.experiment.choices import find_letters, letter_lines, read_choices
from harness.experiment.gold_answers import as_text, read_gold_column
from harness.yaml_settings import Strict, UserPath, explain

MOST_MADE_PROBLEMS = 200
"""The largest number of problems that are made if no `count` is given."""
Operand = Annotated[int, Field(ge=1, le=10**9)]
"""A factor or a summand of a made problem."""
SYMBOL_AND_WORD_BY_OPERATION = {"products": ("x", "times"), "sums": ("+", "plus")}
"""The symbol of an operation, in a problem's id, and its word, in the problem's text."""


class MadeConfig(Strict):
    """Arithmetic problems, such as `What is 7 times 8?`."""

    make: Literal["products", "sums"]
    """The operation: products of two numbers, or their sums."""
    seed: int = Field(default=1, ge=0)
    """The seed of the problems and their order."""
    operands: tuple[Operand, Operand] = (2, 12)
    """The smallest and largest number."""
    count: int | None = Field(default=None, ge=1, le=100_000)
    """The number of problems. By default all, at most 200."""

    @model_validator(mode="after")
    def _check_operands(self) -> Self:
        smallest, largest = self.operands
        if smallest > largest:
            raise ValueError(
                f"operands: expected the smallest number first, got {smallest} and {largest}"
            )
        if self.count is not None and self.count > self._possible_count:
            raise ValueError(
                f"count: {smallest} to {largest} give {self._possible_count} {self.make}, "
                f"got {self.count}"
            )
        return self

    @property
    def _possible_count(self) -> int:
        """The number of different problems."""
        smallest, largest = self.operands
        return (largest - smallest + 1) ** 2

    def make_records(self) -> Iterator[JsonObject]:
        """Yield the fields of every problem, as in `problems.Problem`.

        The level is the number of digits of both operands. Problems with the same operands in
        another order are one cluster, which has the id of the problem with sorted operands.
        """
        generator = random.Random(self.seed)
        pair_indices: dict[int, None] = {}  # a dict, because a set would lose the order
        while len(pair_indices) < (self.count or min(self._possible_count, MOST_MADE_PROBLEMS)):
            pair_indices[generator.randrange(self._possible_count)] = None
        smallest, largest = self.operands
        for pair_index in pair_indices:
            # the pairs of operands are numbered: the first operand varies fastest
            second_offset, first_offset = divmod(pair_index, largest - smallest + 1)
            operand_pair = smallest + first_offset, smallest + second_offset
            yield {
                **self._pose_problem(*operand_pair),
                "level": len("".join(map(str, operand_pair))),
                "cluster": self._pose_problem(*sorted(operand_pair))["id"],
            }

    def _pose_problem(self, first: int, second: int) -> dict[str, str]:
        """The id of a problem, its text and its answer."""
        answer = first * second if self.make == "products" else first + second
        symbol, word = SYMBOL_AND_WORD_BY_OPERATION[self.make]
        return {
            "id": f"{first}{symbol}{second}",
            "problem": f"What is {first} {word} {second}?",
            "answer": str(answer),
        }


MATH500 = "HuggingFaceH4/MATH-500@6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be:test"
"""The hub name of MATH-500 with a pinned revision and the split."""
PATH_VARIABLE = "MATH500_PATH"
"""The environment variable that names a file to read instead of MATH-500 from the hub."""


RequiredText = Annotated[
    str, Field(pattern=r"\S"), BeforeValidator(as_text), AfterValidator(refuse_lost_backslash)
]
"""Text that is not blank. The pattern refuses half a surrogate pair, which no tokenizer takes."""
OptionalText = Annotated[str, Field(pattern=""), BeforeValidator(lambda value: str(value or ""))]
"""Text that may be empty or missing."""


def read_level(value: Any) -> int:
    """A level: a number, or a text such as `Level 5`; 0 for other values."""
    match = re.fullmatch(r"\D*(\d+)", str(value))
    return int(match[1]) if match else 0


def fold_text(text: str) -> str:
    """A text with one blank for all blanks and line breaks, and one form for each letter."""
    # `split` does not count blanks without a width as blanks
    visible_text = re.sub("[\u200b\u2060\ufeff]", "", text)
    return " ".join(unicodedata.normalize("NFC", visible_text).split())


def add_facts(
    facts_and_location_by_question: dict[str, tuple[str, str]],
    question: str,
    facts: Iterable[str],
    location: str,
) -> None:
    """Add the facts of a problem, and refuse it if an earlier copy of it has other facts.

    Golds are compared as texts: only the grader knows that 0.5 is 1/2, and it takes seconds to
    load.

    Args:
        facts_and_location_by_question: For each question so far, in the form of `fold_text`, the
            facts of its first problem as one text, and the location of that problem. Both are added
            here if the question is new. The caller begins with an empty mapping, and passes
            the same one for all problems of a file.
        question: What the baseline's prompt shows of the problem.
        facts: The accepted answers in any order, and a name of the cluster if the file has one.
        location: The location of the problem, for messages.

    Raises:
        DataError: the copy differs.
    """
    facts_text = ", ".join(sorted({*map(fold_text, facts)}))
    first_facts_text, first_location = facts_and_location_by_question.setdefault(
        fold_text(question), (facts_text, location)
    )
    if facts_text != first_facts_text:
        raise DataError(
            f"{location}: the question is that of {first_location}, with another gold answer or "
            f"cluster: {facts_text} instead of {first_facts_text}."
        )


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem with its answer.

    Attributes:
        id: Unique within the dataset.
        problem: The text of the problem.
        answer: The gold answer, as in a box.
        alternatives: Further answers that are accepted.
        choices: The texts of the choices, if there are any; the answer is then a letter.
        solution: The worked solution; empty if the dataset has none.
        subject: MATH's subject; empty if the dataset has none.
        level: The difficulty: from 1 to 5 in MATH, or that of `MadeConfig`; 0 if the dataset has
            none.
        row: The columns of the data that a config names. The problem's hash leaves them out.
        cluster: The problems of a cluster are never split, and count as one. Empty: copies of the
            problem are its cluster.
        shown_text: What the baseline shows of the problem: its text, columns and choices. Empty if
            it shows only the text.
        decimal: The decimal sign of gold answers if it is a comma. Completions may have either.
    """

    id: RequiredText
    problem: RequiredText
    answer: RequiredText
    solution: OptionalText = ""
    subject: OptionalText = ""
    level: Annotated[int, BeforeValidator(read_level)] = 0
    cluster: Annotated[
        str, BeforeValidator(lambda value: "" if value is None else as_text(value))
    ] = ""
    alternatives: tuple[RequiredText, ...] = ()
    choices: Annotated[
        tuple[RequiredText, ...], BeforeValidator(lambda choices: [*choices.values()])
    ] = ()
    decimal: Literal["", ","] = ""
    row: Mapping[str, Annotated[str, BeforeValidator(as_text)]] = field(
        default_factory=dict, hash=False
    )
    shown_text: str = ""

    @property
    def cluster_key(self) -> str:
        """The name of its cluster: its text if it has none, so that copies are one cluster."""
        return self.cluster or self.question

    @property
    def question(self) -> str:
        """What the baseline shows of the problem. Problems with the same question are copies."""
        return self.shown_text or fold_text(self.problem)

    def record(self) -> JsonObject:
        """The problem's own fields, without an empty cluster, alternatives, choices, sign."""
        fields = asdict(self)
        del fields["row"], fields["shown_text"]
        return {
            name: value
            for name, value in fields.items()
            if value or name not in ("cluster", "alternatives", "choices", "decimal")
        }


_PROBLEM_ADAPTER = TypeAdapter(Problem)
ALIAS_BY_COLUMN = {"problem": "question", "unique_id": "id"}
"""Other names of columns, which are read if there is no column of the usual name."""


class DatasetConfig(Strict):
    """A data file, or a dataset on the hub, and its columns."""

    path: UserPath
    """A file (JSONL, JSON, CSV, these with `.gz`, parquet, arrow), a folder that `datasets` saved
    or `FOLDER:SPLIT`, or on the hub `OWNER/NAME:SPLIT` or
    `OWNER/NAME@REVISION:CONFIGURATION:SPLIT`."""
    problem: str = "problem"
    """The problem's column, regardless of case. By default also `question`."""
    answer: str = "answer"
    """The column of the final answer. All answers of a list are accepted."""
    id: str | None = "unique_id"
    """The id's column. By default also `id`, else problems are numbered; null numbers them."""
    answer_is: AnswerKind | None = None
    """What answers of data with choices are; `index0` and `index1` are numbers that count from 0 or
    1. By default what fits all problems, if this is clear."""
    decimal: DecimalSign | None = None
    """The decimal sign of the answers. By default the point, if this is clear."""
    url: str | None = None
    """Where to get the file, for the message if it is missing or has other columns."""


def _name_schema(value: Any) -> str:
    """The schema of a `dataset`, so that an error message names only the keys of this form."""
    if not isinstance(value, dict | Strict):
        return str(value)
    return "MadeConfig" if "make" in dict(value) else "DatasetConfig"


AnyDataset = Annotated[
    Annotated[Literal["math500"], Tag("math500")]
    | Annotated[DatasetConfig, Tag("DatasetConfig")]
    | Annotated[MadeConfig, Tag("MadeConfig")],
    Discriminator(
        _name_schema,
        custom_error_type="dataset",
        custom_error_message="expected math500, {path: FILE}, {make: products} or {make: sums}",
    ),
]
"""A config's `dataset`."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Problems and their source.

    Attributes:
        name: The name in those of tasks, such as `math500` or the name of the file.
        source: A file, a name on the hub with its revision, or the settings of made problems.
        problems: The problems in order.
    """

    name: str
    source: str
    problems: tuple[Problem, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 over every field of every problem, in order."""
        records = [json.dumps(problem.record(), sort_keys=True) for problem in self.problems]
        return hashlib.sha256("\n".join(records).encode()).hexdigest()


def open_dataset(
    dataset: AnyDataset, row_columns: Collection[str] = (), question_columns: Collection[str] = ()
) -> Dataset:
    """Open the problems of a config's `dataset`. `MATH500_PATH` may replace MATH-500.

    Args:
        dataset: The source of the problems.
        row_columns: The further columns to keep in their rows.
        question_columns: Those that the baseline shows, so that copies have them in common.

    Raises:
        DataError: the problems cannot be loaded, or a file has another form. The message names the
            file, the line and the field.
    """
    if isinstance(dataset, MadeConfig):
        return _make_dataset(dataset, row_columns)
    if isinstance(dataset, DatasetConfig):
        return _read_dataset(dataset, row_columns, question_columns)
    if math500_file := os.environ.get(PATH_VARIABLE, "").strip():
        return _read_dataset(DatasetConfig(path=Path(math500_file)), row_columns, question_columns)
    try:
        math500 = _read_dataset(DatasetConfig(path=Path(MATH500)), row_columns, question_columns)
    except DataError as error:
        raise DataError(
            f"{error} Or set {PATH_VARIABLE}=FILE.jsonl, with the keys problem, answer and "
            "unique_id."
        ) from error
    return replace(math500, name="math500")


def _make_dataset(settings: MadeConfig, row_columns: Collection[str]) -> Dataset:
    """Make arithmetic problems into a dataset."""
    column_by_field = {name: name for name in ("id", "problem", "answer")}
    problems = []
    for record in settings.make_records():
        fields = _read_fields(f"problem {record['id']}", record, column_by_field, row_columns)
        # validated, because columns of numbers become texts
        problems.append(_PROBLEM_ADAPTER.validate_python(fields))
    smallest, largest = settings.operands
    return Dataset(
        name=settings.make,
        source=f"made of {smallest} to {largest}, seed {settings.seed}",
        problems=tuple(problems),
    )


def _read_dataset(
    settings: DatasetConfig, row_columns: Collection[str], question_columns: Collection[str]
) -> Dataset:
    """Read the problems of a file, a folder or a dataset on the hub."""
    column_by_field = {"problem": settings.problem, "answer": settings.answer}
    if settings.id is not None:
        column_by_field["id"] = settings.id
    source = settings.path.expanduser()
    try:
        located_fields = [
            (location, _read_fields(location, record, column_by_field, row_columns))
            for location, record in read_data(source)
        ]
    except DataError as error:
        if not settings.url:
            raise
        columns_text = ", ".join(sorted({settings.problem, settings.answer, *row_columns}))
        raise DataError(
            f"{error} Get it from {settings.url}, with the columns {columns_text}."
        ) from None
    if not located_fields:
        raise DataError(f"{settings.path} has no problems.")
    located_answers = [(location, fields["answer"]) for location, fields in located_fields]
    golds_by_problem = read_gold_column(located_answers, source, settings.decimal)
    # a gold answer that names a choice becomes the letter of this choice
    if settings.answer_is or any(fields["choices"] for _, fields in located_fields):
        golds_by_problem = find_letters(located_fields, golds_by_problem, settings.answer_is)
    problems = _make_problems(located_fields, golds_by_problem, settings, question_columns)
    # `stem` removes one suffix only, so `.gz` and the split of a dataset on the hub go first
    file_name = re.split("[@:]", settings.path.name)[0].removesuffix(".gz")
    return Dataset(name=Path(file_name).stem, source=str(source), problems=problems)


def _read_fields(
    location: str,
    record: JsonObject,
    column_by_field: Mapping[str, str],
    row_columns: Collection[str],
) -> JsonObject:
    """The fields of a problem by the names of `Problem`, except alternatives.

    Problem, answer and the columns of the row must exist, and other columns may be missing. A
    column is found regardless of case, else by its alias. Choices are read from columns that have
    no other use.

    Args:
        location: The location of the record, for messages.
        record: The record.
        column_by_field: The columns of problem, answer and id, as the config names them.
        row_columns: The columns that the field `row` contains.

    Raises:
        DataError: problem, answer or a column of the row is missing, or choices are faulty.
    """
    requested_column_by_field = {name: name for name in ("solution", "subject", "level", "cluster")}
    requested_column_by_field |= column_by_field
    # A column of the row has the prefix `row.` as long as all columns are searched, because it may
    # have the name of a field.
    requested_column_by_field |= {f"row.{column}": column for column in row_columns}
    fields = {}
    used_columns = []
    for field_name, requested_column in requested_column_by_field.items():
        column = find_column(
            record, requested_column, ALIAS_BY_COLUMN.get(requested_column, requested_column)
        )
        if column is not None:
            fields[field_name] = record[column]
            used_columns.append(column)
        elif field_name in ("problem", "answer") or field_name.startswith("row."):
            message = f"{location} has no column {requested_column!r}, but {', '.join(record)}."
            if field_name in column_by_field:
                message += f" Name the column: --set dataset.{field_name}=COLUMN."
            raise DataError(message)
    fields["row"] = {column: fields.pop(f"row.{column}") for column in row_columns}
    fields["choices"] = read_choices(location, record, used_columns, fields["answer"])
    return fields


def _make_problems(
    located_fields: Sequence[LocatedRecord],
    golds_by_problem: Sequence[Sequence[str]],
    settings: DatasetConfig,
    question_columns: Collection[str],
) -> tuple[Problem, ...]:
    """Make problems from their located fields and their gold answers.

    The first gold answer is the answer, and further ones are alternatives. A problem without an id
    has its number from 0, unless the config names the id's column. Copies of a problem must have
    the same answers and the same cluster.

    Raises:
        DataError: a field does not fit, an id occurs twice, or copies of a problem differ.
    """
    problem_by_id: dict[str, Problem] = {}
    facts_and_location_by_question: dict[str, tuple[str, str]] = {}
    for (location, fields), (answer, *alternatives) in zip(
        located_fields, golds_by_problem, strict=True
    ):
        all_fields = {**fields, "answer": answer, "alternatives": alternatives}
        if settings.decimal == ",":
            all_fields["decimal"] = ","
        # null and the default `unique_id`: the config names no column of its own
        if settings.id in (None, "unique_id"):
            all_fields.setdefault("id", len(problem_by_id))
        try:
            problem = _make_problem(all_fields, question_columns)
        except ValidationError as error:
            raise DataError(explain(error, location)) from None
        if problem.id in problem_by_id:
            raise DataError(f"{location}: the id {problem.id!r} occurs in an earlier line.")
        facts = [problem.answer, *problem.alternatives]
        if problem.cluster:
            facts.append(f"cluster {problem.cluster}")
        add_facts(facts_and_location_by_question, problem.question, facts, location)
        problem_by_id[problem.id] = problem
    return tuple(problem_by_id.values())


def _make_problem(fields: JsonObject, question_columns: Collection[str]) -> Problem:
    """Validate the fields of a problem, and add the text that the baseline shows of it.

    Raises:
        ValidationError: a field does not fit.
    """
    problem = _PROBLEM_ADAPTER.validate_python(fields)
    # what the baseline shows besides the problem: columns and choices
    further_texts = [problem.row[column] for column in sorted(question_columns)]
    further_texts += letter_lines(problem.choices)
    if not further_texts:
        return problem
    return replace(problem, shown_text=fold_text(" ".join([problem.problem, *further_texts])))
