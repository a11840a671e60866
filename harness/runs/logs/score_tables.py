"""Tables of scores that mless did not make: an item, a condition and a score in each row.

A CSV, JSON or parquet file or a pandas frame is such a table; `harness_logs` makes one of a log of
Inspect or lighteval. `describe_scores` makes the fields of a `Run` of it.
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

COLUMN_ROLES = {
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
"""Differences of numbers are tested as shares of this number."""
_WORDS = {
    **dict.fromkeys(("true", "yes", "correct", "c"), 1),
    "p": 0.5,
    **dict.fromkeys(("false", "no", "incorrect", "i", "n"), 0),
}
"""Words for scores. Inspect's letters mean correct, incorrect, partly correct and no answer."""
COLUMNS_SHOWN = 12
"""The number of columns that a message names."""
UNKNOWN = "subject level answer completion_tokens finish_reason next_question".split()
"""Columns of samples that no table has."""
_SAMPLE_COLUMNS = ["model", "condition", "problem_id"]
"""The columns that name a sample, without its number."""


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """A table of scores.

    Attributes:
        source: `table`, `Inspect` or `lighteval`.
        rows: The location of each row, and its values by role.
        about: Facts for `Run.about`.
        chosen: The columns that the user named, by role.
    """

    source: str = "table"
    rows: Sequence[LocatedRecord]
    about: JsonObject = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)


def read_table(
    source: Path | pandas.DataFrame, columns: str | None, needed: Sequence[str]
) -> ScoreTable:
    """Read a file or frame.

    Args:
        source: The file or frame.
        columns: `ROLE=COLUMN,...`; without a column no column has this role.
        needed: The roles that must have a column.

    Raises:
        DataError: the file is damaged or has no row.
        ConfigError: no column or several columns fit a role.
    """
    if isinstance(source, Path):
        name, records = str(source), list(read_data(source))
    else:
        name, frame = "the frame", source.rename(columns=str)
        rows: Any = enumerate(frame.to_dict("records"))
        records = [(f"row {number}", row) for number, row in rows]
    if not records:
        raise DataError(f"{name} has no row.")
    pairs = [pair.partition("=") for pair in filter(None, (columns or "").split(","))]
    chosen = {role: column for role, _, column in pairs}
    column_by_role = _find_columns(name, list(records[0][1]), chosen, needed)
    guesses = {role: column_by_role[role] for role in column_by_role if role not in chosen}
    if any(role != column for role, column in guesses.items()):
        text = ",".join(f"{role}={column}" for role, column in column_by_role.items())
        print_message(f"{name} is read with --columns {text}.")
    rows = [
        (location, {role: record.get(column) for role, column in column_by_role.items()})
        for location, record in records
    ]
    return ScoreTable(rows=rows, chosen=chosen)


def _find_columns(
    name: str, available: Sequence[str], chosen: Mapping[str, str], needed: Sequence[str]
) -> dict[str, str]:
    """The column of each role: the chosen one, or the only one whose name fits."""
    names = list_first(available, COLUMNS_SHOWN)
    if not chosen.keys() <= COLUMN_ROLES.keys() or not {*chosen.values()} <= {*available, ""}:
        raise ConfigError(
            f"--columns: expected ROLE=COLUMN with the roles {', '.join(COLUMN_ROLES)}, and the "
            f"columns of {name}, which are {names}."
        )
    column_by_role: dict[str, str] = {}
    unclear = []
    for role, words in COLUMN_ROLES.items():
        fitting = [
            column
            for column in available
            if re.sub(r"\W", "_", column.lower()) in words.split() and column not in chosen.values()
        ]
        if role in chosen:
            fitting = list(filter(None, [chosen[role]]))
        if len(fitting) > 1 or (role in needed and not fitting):
            unclear.append(f"{role}=COLUMN")
        for column in fitting:
            column_by_role[role] = column
    if unclear:
        raise ConfigError(
            f"{name} has the columns {names}, and their names leave open what they are. Type "
            f"--columns {','.join(unclear)}. {TABLE_HINT}"
        )
    return column_by_role


def describe_scores(name: str, condition: str, table: ScoreTable) -> JsonObject:
    """A table of scores as the fields of a `run_reader.Run`.

    Args:
        name: Its file, for messages.
        condition: The condition, if no column has it.
        table: The rows.

    Raises:
        DataError: a score cannot be read.
        ComparisonError: an item occurs twice, or has two texts or gold answers.
    """
    frame = _make_frame(condition, table)
    is_double = frame.duplicated([*_SAMPLE_COLUMNS, "sample"])
    if is_double.any():
        row = frame[is_double].iloc[0]
        raise ComparisonError(
            f"{name}: item {row['problem_id']} occurs more than once in condition "
            f"{row['condition']}. Keep one scorer or filter; if it is the id of several "
            "items, name another column (--columns item=COLUMN); if the rows are samples, type "
            "--columns sample=COLUMN, or --columns sample= if no column numbers them."
        )
    ids = frame["problem_id"].unique().tolist()
    numbers = list(map(str, range(len(ids) + 1)))
    items = _describe_items(table)
    about = {
        "source": table.source,
        "run": name,
        "model": " / ".join(frame["model"].unique()),
        "problems": len(ids),
        "is_index": not table.chosen.get("item")
        and sorted(ids) in (sorted(numbers[1:]), sorted(numbers[:-1])),
        "prompts_sha256": hash_json(items["question"]) if "question" in items else None,
        "remarks": [] if items.keys() - {"cluster"} else ["items matched by id alone"],
        **table.about,
    }
    return {
        "name": name,
        "about": about,
        "problems": items,
        "read": lambda: frame,
        "read_prompts": partial(_refuse_prompts, name),
    }


def _refuse_prompts(name: str) -> NoReturn:
    raise RunError(f"{name} has scores but no prompts: use `mless table`, `compare` or `plot`.")


def _read_text(row: JsonObject, role: str) -> str:
    """A row's text without further blanks; empty if it is missing."""
    value = row.get(role)
    # only NaN differs from itself
    return "" if value is None or value != value else fold_text(str(value))


def _describe_items(table: ScoreTable) -> dict[str, dict[str, str]]:
    """The known texts, gold answers and clusters of items, by their ids."""
    facts: dict[str, dict[str, str]] = {}
    for location, row in table.rows:
        for role in ("question", "gold", "cluster"):
            text = _read_text(row, role)
            if not text:
                continue
            first_text = facts.setdefault(role, {}).setdefault(str(row["item"]), text)
            if text != first_text:
                raise ComparisonError(
                    f"{location}: item {row['item']} has another {role} than before: "
                    f"{first_text!r:.60} and {text!r:.60}. --columns {role}= leaves out its column."
                )
    return facts


def _make_frame(condition: str, table: ScoreTable) -> pandas.DataFrame:
    """One row per sample, with the columns of `samples_frame.make_frame` that tables read."""
    values = pandas.DataFrame([row for _, row in table.rows])
    items = [str(row["item"]) for _, row in table.rows]
    scores = pandas.Series([parse_score(*row) for row in table.rows])
    for location, row in table.rows:
        for role in row.keys() & {"item", "condition"}:
            if not _read_text(row, role):
                raise DataError(f"{location}: the {role} is missing.")
    questions = [_read_text(row, "question") or str(row["item"]) for _, row in table.rows]
    clusters = [_read_text(row, "cluster") for _, row in table.rows]
    facts = {
        "model": values.get("model", table.about.get("model") or "unknown model"),
        "layout": table.source,
        "condition": values.get("condition", condition),
        "problem_id": items,
        "replicate": 0,
        "cluster": [name or question for name, question in zip(clusters, questions, strict=True)],
        "question": questions,
        SCORE_COLUMN: scores,
        "correct": scores == 1,
        "verdict": (scores == 1).map({True: "correct", False: "incorrect"}),
        "completion": "",
    }
    frame = pandas.DataFrame(facts).astype(dict.fromkeys(_SAMPLE_COLUMNS, str))
    frame = frame.reindex(columns=[*frame, *UNKNOWN, *GRADERS])
    # a table of several models without conditions compares the models
    if "condition" not in values and frame["model"].nunique() > 1:
        models = " / ".join(frame["model"].unique())
        frame = frame.assign(condition=frame["model"], model=models)
    index = frame.groupby(_SAMPLE_COLUMNS).cumcount()
    # only the user can know that rows without a number are samples
    sample = values.get("sample", index if "sample" in table.chosen else 0)
    return frame.assign(sample_index=index, sample=sample)


def parse_score(location: str, row: JsonObject) -> float:
    """The score of a row.

    Raises:
        DataError: it is not a score.
    """
    text = str(row["score"]).strip().lower()
    try:
        score = float(_WORDS.get(text, text))
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:
        raise DataError(
            f"{location}: the score is {row['score']!r}: expected true or false, C or I, or a "
            f"number from {-LARGEST_SCORE} to {LARGEST_SCORE}."
        )
    return score
