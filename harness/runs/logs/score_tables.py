"""Tables of scores that mless did not make: an item, a condition and a score in each row.

The role of a column says what it holds, such as `item` or `score`. A CSV, JSON or parquet file or a
pandas frame is such a table; `harness_logs` makes one of a log of Inspect or lighteval.
`make_run_fields` makes the fields of a `Run` of it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pandas

from harness.constants import SCORE_COLUMN, JsonObject
from harness.data_records import LocatedRecord, read_data
from harness.errors import (
    TABLE_HINT,
    ComparisonError,
    ConfigError,
    DataError,
    RunError,
    list_first,
    print_message,
)
from harness.experiment.plan import hash_json
from harness.experiment.problems import fold_text
from harness.grading import GRADERS

COLUMN_NAMES_BY_ROLE = {
    "item": "item item_id id doc_id problem_id question_id sample_id example_id task_id uid uuid "
    "unique_id qid",
    "condition": "condition variant arm prompt_name prompt_id",
    "score": "score correct is_correct acc accuracy exact_match passed",
    "sample": "sample sample_index epoch repeat replicate attempt trial",
    "model": "model model_name",
    "cluster": "cluster",
    "completion": "completion response output prediction",
    "gold": "gold target reference gold_answer",
    "question": "question problem",
}
"""The roles of columns, each with the names of columns that have it."""
LARGEST_SCORE = 100
"""The largest absolute value of a score. Differences are tested as shares of it."""
_SCORE_BY_WORD = {
    **dict.fromkeys(("true", "yes", "correct", "c"), 1),
    "p": 0.5,
    **dict.fromkeys(("false", "no", "incorrect", "i", "n"), 0),
}
"""Words for scores. Inspect's letters mean correct, incorrect, partly correct and no answer."""
MOST_COLUMNS_SHOWN = 12
"""The most columns that a message names."""
ABSENT_COLUMNS = "subject level answer completion_tokens finish_reason next_question".split()
"""Columns of samples that no table has."""
_PROMPT_COLUMNS = ["model", "condition", "problem_id"]
"""The columns that name a sample, without its number."""


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """A table of scores.

    Attributes:
        kind: `table`, `Inspect` or `lighteval`.
        located_rows: The location of each row, and its values by role.
        about: Facts for `Run.about`.
        chosen_column_by_role: The columns that the user named, by role.
    """

    kind: str = "table"
    located_rows: Sequence[LocatedRecord]
    about: JsonObject = field(default_factory=dict)
    chosen_column_by_role: Mapping[str, str] = field(default_factory=dict)


def read_table(
    file_or_frame: Path | pandas.DataFrame, columns: str | None, needed_roles: Sequence[str]
) -> ScoreTable:
    """Read a file or frame, and print the columns that were recognised by their names.

    Args:
        file_or_frame: The file or frame.
        columns: `ROLE=COLUMN,...`; without a column no column has this role.
        needed_roles: The roles that must have a column.

    Raises:
        DataError: the file is damaged or has no row.
        ConfigError: no column or several columns fit a role.
    """
    if isinstance(file_or_frame, Path):
        table_name = str(file_or_frame)
        records = list(read_data(file_or_frame))
    else:
        table_name = "the frame"
        frame_rows: Any = file_or_frame.rename(columns=str).to_dict("records")
        records = [(f"row {number}", row) for number, row in enumerate(frame_rows)]
    if not records:
        raise DataError(f"{table_name} has no row.")
    assignments = [pair.partition("=") for pair in filter(None, (columns or "").split(","))]
    chosen_column_by_role = {role: column for role, _, column in assignments}
    column_by_role = _find_columns(
        table_name, list(records[0][1]), chosen_column_by_role, needed_roles
    )
    # a column that the user chose, or that is named as its role, needs no message
    if any(
        role != column for role, column in column_by_role.items() - chosen_column_by_role.items()
    ):
        columns_text = ",".join(f"{role}={column}" for role, column in column_by_role.items())
        print_message(f"{table_name} is read with --columns {columns_text}.")
    located_rows = [
        (location, {role: record.get(column) for role, column in column_by_role.items()})
        for location, record in records
    ]
    return ScoreTable(located_rows=located_rows, chosen_column_by_role=chosen_column_by_role)


def _find_columns(
    table_name: str,
    available_columns: Sequence[str],
    chosen_column_by_role: Mapping[str, str],
    needed_roles: Sequence[str],
) -> dict[str, str]:
    """The column of each role: the chosen one, or the only one whose name fits.

    Raises:
        ConfigError: a chosen column or its role does not exist, several names fit a role, or none
            fits a needed role.
    """
    columns_text = list_first(available_columns, MOST_COLUMNS_SHOWN)
    chosen_columns = {*chosen_column_by_role.values()}
    unknown_roles = chosen_column_by_role.keys() - COLUMN_NAMES_BY_ROLE.keys()
    if unknown_roles or chosen_columns - {*available_columns, ""}:
        raise ConfigError(
            f"--columns: expected ROLE=COLUMN with the roles {', '.join(COLUMN_NAMES_BY_ROLE)}, "
            f"and the columns of {table_name}, which are {columns_text}."
        )
    column_by_role = {}
    unclear_roles = []
    for role, names_text in COLUMN_NAMES_BY_ROLE.items():
        if role in chosen_column_by_role:
            # `--columns ROLE=` leaves the role without a column
            fitting_columns = list(filter(None, [chosen_column_by_role[role]]))
        else:
            fitting_columns = [
                column
                for column in available_columns
                if re.sub(r"\W", "_", column.lower()) in names_text.split()
                and column not in chosen_columns
            ]
        if len(fitting_columns) > 1 or (role in needed_roles and not fitting_columns):
            unclear_roles.append(f"{role}=COLUMN")
        if fitting_columns:
            column_by_role[role] = fitting_columns[0]
    if unclear_roles:
        raise ConfigError(
            f"{table_name} has the columns {columns_text}, and their names leave open what they "
            f"are. Type --columns {','.join(unclear_roles)}. {TABLE_HINT}"
        )
    return column_by_role


def make_run_fields(table_name: str, condition: str, table: ScoreTable) -> JsonObject:
    """A table of scores as the fields of a `run_reader.Run`.

    Args:
        table_name: Its file, for messages.
        condition: The condition, if no column has it.
        table: The rows.

    Raises:
        DataError: a score cannot be read.
        ComparisonError: an item occurs twice, or has two texts or gold answers.
    """
    frame = _make_frame(condition, table)
    _refuse_duplicates(table_name, frame)
    item_ids = frame["problem_id"].unique().tolist()
    # ids that count from 0 or from 1 may be the numbers of rows, which name no item
    row_number_sets = [
        {*map(str, range(first_number, first_number + len(item_ids)))} for first_number in (0, 1)
    ]
    texts_by_role = _read_item_texts(table)
    questions = texts_by_role.get("question")
    # without questions and gold answers, only the id says that items of two tables are the same
    matching_roles = texts_by_role.keys() & {"question", "gold"}
    about = {
        "source": table.kind,
        "run": table_name,
        "model": " / ".join(frame["model"].unique()),
        "problems": len(item_ids),
        "is_index": {*item_ids} in row_number_sets and "item" not in table.chosen_column_by_role,
        "prompts_sha256": hash_json(questions) if questions else None,
        "remarks": [] if matching_roles else ["items matched by id alone"],
        **table.about,
    }
    return {
        "name": table_name,
        "about": about,
        "problems": texts_by_role,
        "read": lambda: frame,
        "read_prompts": partial(_refuse_prompts, table_name),
    }


def _refuse_duplicates(table_name: str, frame: pandas.DataFrame) -> None:
    """Raise ComparisonError if two rows are of the same sample of an item."""
    duplicates = frame[frame.duplicated([*_PROMPT_COLUMNS, "sample"])]
    if len(duplicates):
        duplicate = duplicates.iloc[0]
        raise ComparisonError(
            f"{table_name}: item {duplicate['problem_id']} occurs more than once in condition "
            f"{duplicate['condition']}. Keep one scorer or filter; if it is the id of several "
            "items, name another column (--columns item=COLUMN); if the rows are samples, type "
            "--columns sample=COLUMN, or --columns sample= if no column numbers them."
        )


def _refuse_prompts(table_name: str) -> NoReturn:
    """Stand in for the reader of prompts, which a table does not have."""
    raise RunError(
        f"{table_name} has scores but no prompts: use `mless table`, `compare` or `plot`."
    )


def _read_text(row: JsonObject, role: str) -> str:
    """The text of a row's cell, with single blanks; empty if the cell is missing."""
    value = row.get(role)
    # only NaN differs from itself
    return "" if value is None or value != value else fold_text(str(value))


def _read_item_texts(table: ScoreTable) -> dict[str, dict[str, str]]:
    """The known questions, gold answers and clusters of items: by role, and then by the item's id.

    Raises:
        ComparisonError: an item has two texts of a role.
    """
    texts_by_role: dict[str, dict[str, str]] = {}
    for location, row in table.located_rows:
        for role in ("question", "gold", "cluster"):
            text = _read_text(row, role)
            if not text:
                continue
            first_text = texts_by_role.setdefault(role, {}).setdefault(str(row["item"]), text)
            if text != first_text:
                raise ComparisonError(
                    f"{location}: item {row['item']} has another {role} than before: "
                    f"{first_text!r:.60} and {text!r:.60}. --columns {role}= leaves out its column."
                )
    return texts_by_role


def _refuse_rows_without_names(table: ScoreTable) -> None:
    """Raise DataError if a row has no item, or no condition although a column has conditions."""
    for location, row in table.located_rows:
        for role in row.keys() & {"item", "condition"}:
            if not _read_text(row, role):
                raise DataError(f"{location}: the {role} is missing.")


def _make_frame(condition: str, table: ScoreTable) -> pandas.DataFrame:
    """One row per sample, with the columns of `samples_frame.make_frame` that tables read.

    `condition` is the condition of all rows, if no column has conditions.
    """
    rows = [row for _, row in table.located_rows]
    role_columns = pandas.DataFrame(rows)
    scores = pandas.Series([parse_score(location, row) for location, row in table.located_rows])
    _refuse_rows_without_names(table)
    questions = [_read_text(row, "question") or str(row["item"]) for row in rows]
    frame = pandas.DataFrame(
        {
            "model": role_columns.get("model", table.about.get("model") or "unknown model"),
            "layout": table.kind,
            "condition": role_columns.get("condition", condition),
            "problem_id": [str(row["item"]) for row in rows],
            "replicate": 0,
            "cluster": [
                _read_text(row, "cluster") or question
                for row, question in zip(rows, questions, strict=True)
            ],
            "question": questions,
            SCORE_COLUMN: scores,
            "correct": scores == 1,
            "verdict": (scores == 1).map({True: "correct", False: "incorrect"}),
            "completion": "",
        }
    ).astype(dict.fromkeys(_PROMPT_COLUMNS, str))
    frame = frame.reindex(columns=[*frame, *ABSENT_COLUMNS, *GRADERS])
    # in a table of several models without conditions, the models become the conditions
    if "condition" not in role_columns and frame["model"].nunique() > 1:
        frame = frame.assign(condition=frame["model"], model=" / ".join(frame["model"].unique()))
    # Tables count the samples of a problem by `sample_index`. `sample` shows doubled rows: those
    # of one problem with the same number. If no column numbers samples, all have the number 0, so
    # a second row counts as doubled. With `--columns sample=` the user says that it does not.
    sample_index = frame.groupby(_PROMPT_COLUMNS).cumcount()
    sample_number = role_columns.get(
        "sample", sample_index if "sample" in table.chosen_column_by_role else 0
    )
    return frame.assign(sample_index=sample_index, sample=sample_number)


def parse_score(location: str, row: JsonObject) -> float:
    """The score of a row.

    Raises:
        DataError: it is not a score.
    """
    text = str(row["score"]).strip().lower()
    try:
        score = float(_SCORE_BY_WORD.get(text, text))
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:  # `not <=` also refuses NaN
        raise DataError(
            f"{location}: the score is {row['score']!r}: expected true or false, C or I, or a "
            f"number from {-LARGEST_SCORE} to {LARGEST_SCORE}."
        )
    return score
