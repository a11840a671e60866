"""Choices: the columns that have them, and the choice that a gold answer names."""

import ast
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from string import ascii_uppercase as LETTERS
from typing import Any, get_args

from harness.constants import AnswerKind, JsonObject
from harness.data_records import LocatedRecord
from harness.errors import DataError

_CHOICE_COLUMN = re.compile(
    r"(?:(?P<word>(?:answer_)?(?:choice|option)s?|op(?=[a-e]\Z))|(?=\W*[a-j]\W*\Z))[\W_]*"
    r"(?P<name>[a-j]|\d\d?)?\W*",
    re.I,
)
"""A column of all choices or of one, such as options, option_a, choice 1, opa and A."""
_LABEL_ORDERS = (LETTERS, "0123456789", "12345678910")
"""The labels of choices in their order, joined."""


def read_choices(
    location: str, record: JsonObject, used_columns: Collection[str | None], answer: Any
) -> dict[str, str]:
    """The texts of a record's choices by their letters, or by numbers of the data; mostly none.

    They are a column with a list, with a mapping, with the lists `label` and `text` (as in ARC), or
    with one of these as text; else columns of single choices. Columns of mere letters may be other
    data, unless there are three of them or the answer is a letter.

    Args:
        location: The location of the record, for messages.
        record: The record.
        used_columns: Its columns that have another use.
        answer: Its answer.

    Raises:
        DataError: choices are missing, equal, or in another form.
    """
    has_letters = {"A", "B", "C"} <= record.keys() or re.fullmatch(r"\W*[A-Ja-j]\W*", str(answer))
    cells = {}
    for column, cell in record.items():
        match = _CHOICE_COLUMN.fullmatch(column)
        if match and cell not in (None, "", [], {}) and column not in used_columns:
            if match["word"] or has_letters:
                cells[match["name"]] = cell
    if not cells:
        return {}
    # a column that holds all choices is not named after one choice
    value: Any = cells.get(None, cells)
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value.strip())
    # one label more than there are letters: too many choices are refused below
    labels, texts = [*LETTERS, "?"], value
    if isinstance(value, dict):
        labels, texts = value.get("label", [*value]), value.get("text", [*value.values()])
    choices = {}
    # labels of the data must be as many as the texts, or a choice would be lost
    if isinstance(texts, list) and (texts is value or len(labels) == len(texts)):
        for label, text in zip(labels, texts, strict=False):
            if text not in (None, ""):
                choices[str(label)] = str(text).strip()
    is_complete = any(order.startswith("".join(choices).upper()) for order in _LABEL_ORDERS)
    if not is_complete or len({*choices.values()}) < max(2, len(choices)):
        raise DataError(
            f"{location}: expected 2 to {len(LETTERS)} different choices, as a list or by letters "
            f"from A, got {value!r:.99}."
        )
    return choices


def find_letters(
    rows: Sequence[LocatedRecord], golds: Sequence[Sequence[str]], answer_is: AnswerKind | None
) -> list[list[str]]:
    """The letter of the choice that each gold answer names.

    Args:
        rows: The location of each problem, and its fields.
        golds: The answers of each problem: one, as several may all be required.
        answer_is: What the answers are. None: this is concluded from all of them.

    Raises:
        DataError: an answer is not one of the choices, or can be read in two ways.
    """
    cells = [
        (location, fields["choices"], ", ".join(answers).strip())
        for (location, fields), answers in zip(rows, golds, strict=True)
    ]
    readings = {}
    for kind in [answer_is] if answer_is else get_args(AnswerKind):
        readings[kind] = [_find_letter(kind, choices, gold) for _, choices, gold in cells]
    best_kind = max(readings, key=lambda kind: sum(map(bool, readings[kind])))
    is_index = not answer_is and best_kind.startswith("index")
    complete_readings = filter(all, readings.values())
    for (location, choices, gold), *letters in zip(
        cells, readings[best_kind], *complete_readings, strict=True
    ):
        lines = "; ".join(letter_lines([*choices.values()]))
        is_in_text = is_index and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", lines)
        if is_in_text or "" in letters or len({*letters}) > 1:
            if "" in letters:
                fault = f"read as {best_kind} is not one of the {len(choices)} choices"
            else:
                fault = (
                    "is unclear: say --answer-is index0, index1, letter or text. The choices are"
                )
            raise DataError(f"{location}: the answer {gold!r} {fault}: {lines}.")
    return [[letter] for letter in readings[best_kind]]


def _find_letter(kind: AnswerKind, choices: dict[str, str], gold: str) -> str:
    """The letter of the choice that an answer of a kind names; empty if it names none."""
    names = [*choices.values()]
    if kind == "letter":
        gold = re.sub(r"\W", "", gold).upper()
        names = [label.upper() for label in choices]
    elif kind != "text":
        names = [str(index + int(kind[-1])) for index in range(len(choices))]
    return LETTERS[names.index(gold)] if gold in names else ""


def letter_lines(choices: Sequence[str]) -> list[str]:
    """The choices after their letters."""
    return [f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False)]
