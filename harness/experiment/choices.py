"""Choices: the columns that have them, and the choice that a gold answer names."""

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from string import ascii_uppercase as LETTERS
from typing import Any, get_args

from harness.constants import AnswerKind, JsonObject
from harness.data_records import LocatedRecord
from harness.errors import DataError

# The group `word` is a word such as `option`, and `name` the letter or number of a single choice. A
# column of all choices has no name, and a column of a mere letter has no word.
_CHOICE_COLUMN = re.compile(
    r"(?:(?P<word>(?:answer_)?(?:choice|option)s?|op(?=[a-e]\Z))|(?=\W*[a-j]\W*\Z))[\W_]*"
    r"(?P<name>[a-j]|\d\d?)?\W*",
    re.I,
)
"""Matches columns of all choices or of a single one: options, option_a, choice 1, opa and A."""
_LABEL_ORDERS = (LETTERS, "0123456789", "12345678910")
"""All labels of choices in their order, joined: those of a record are the beginning of one."""


def read_choices(
    location: str, record: JsonObject, used_columns: Collection[str | None], answer: Any
) -> dict[str, str]:
    """The texts of a record's choices, by their letters or the numbers of the data; empty for most.

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
    raw_choices = _find_raw_choices(record, used_columns, answer)
    if raw_choices == {}:
        return {}
    if isinstance(raw_choices, str):
        # a list or a mapping that was saved as text; any other text is refused below
        with suppress(ValueError, SyntaxError):
            raw_choices = ast.literal_eval(raw_choices.strip())
    labelled_texts = _label_choices(raw_choices)
    joined_labels = "".join(label for label, _ in labelled_texts).upper()
    labels_are_in_order = any(order.startswith(joined_labels) for order in _LABEL_ORDERS)
    choices = dict(labelled_texts)
    texts_are_different = len({*choices.values()}) == len(choices)
    if len(choices) < 2 or not (labels_are_in_order and texts_are_different):
        raise DataError(
            f"{location}: expected 2 to {len(LETTERS)} different choices, as a list or by letters "
            f"from A, got {raw_choices!r:.99}."
        )
    return choices


def _find_raw_choices(record: JsonObject, used_columns: Collection[str | None], answer: Any) -> Any:
    """The cell with all choices, else a mapping of the cells of single choices by name.

    The mapping is empty if the record has no choices.
    """
    is_letter = re.fullmatch(r"\W*[A-Ja-j]\W*", str(answer))
    allows_mere_letters = is_letter or {"A", "B", "C"} <= record.keys()
    cell_by_name = {}
    for column, cell in record.items():
        match = _CHOICE_COLUMN.fullmatch(column)
        if not match or column in used_columns or cell in (None, "", [], {}):
            continue
        if match["word"] or allows_mere_letters:
            cell_by_name[match["name"]] = cell
    # a column such as `options` names no single choice, so its name is None
    return cell_by_name.get(None, cell_by_name)


def _label_choices(raw_choices: Any) -> list[tuple[str, str]]:
    """The label and the text of each choice, from a mapping or a list.

    The list is empty if the choices have another form. `read_choices` refuses fewer than two
    choices, and so an empty list too.
    """
    if isinstance(raw_choices, dict):
        # ARC has two lists with the keys `label` and `text`; other data have a text for each label
        labels = raw_choices.get("label", [*raw_choices])
        texts = raw_choices.get("text", [*raw_choices.values()])
    elif isinstance(raw_choices, list):
        # A list has no labels, so it gets letters. Choices after Z get `?`, which is in no order of
        # labels, so that they are refused.
        choice_count = len(raw_choices)
        labels = [*LETTERS.ljust(choice_count, "?")[:choice_count]]
        texts = raw_choices
    else:
        return []
    # a text without a label, or a label without a text, would lose a choice
    if not (isinstance(labels, list) and isinstance(texts, list) and len(labels) == len(texts)):
        return []
    if any(isinstance(text, list | dict) for text in texts):
        return []
    # empty texts fill up a row of the data
    return [
        (str(label), str(text).strip())
        for label, text in zip(labels, texts, strict=True)
        if text not in (None, "")
    ]


def find_letters(
    located_fields: Sequence[LocatedRecord],
    golds_by_problem: Sequence[Sequence[str]],
    answer_is: AnswerKind | None,
) -> list[list[str]]:
    """The letter of the choice that each gold answer names.

    Without `answer_is`, the kind of the answers is the one that fits most of them, and each must
    have a letter in it. An answer is unclear if two kinds fit all answers and give this one
    different letters, or if it is an index and also occurs in a choice.

    Args:
        located_fields: The location of each problem, and its fields.
        golds_by_problem: The answers of each problem. Several are joined: all may be required.
        answer_is: What the answers are. None: this is concluded from all of them.

    Raises:
        DataError: an answer is not one of the choices, or can be read in two ways.
    """
    located_answers = [
        (location, fields["choices"], ", ".join(golds).strip())
        for (location, fields), golds in zip(located_fields, golds_by_problem, strict=True)
    ]
    kinds = [answer_is] if answer_is else get_args(AnswerKind)
    # for each kind, the letter of every problem, which is empty if the answer names no choice
    letters_by_kind = {
        kind: [_find_letter(kind, choices, gold) for _, choices, gold in located_answers]
        for kind in kinds
    }
    # most answers have a letter in this kind, and the first error below names one that has none
    best_kind = max(letters_by_kind, key=lambda kind: sum(map(bool, letters_by_kind[kind])))
    is_guessed_index = not answer_is and best_kind.startswith("index")
    # the letters of the kinds that fit all answers: the lists without an empty letter
    fitting_letter_lists = [*filter(all, letters_by_kind.values())]
    for index, (location, choices, gold) in enumerate(located_answers):
        answer_text = f"{location}: the answer {gold!r}"
        choices_text = "; ".join(letter_lines(choices.values()))
        if not letters_by_kind[best_kind][index]:
            raise DataError(
                f"{answer_text} read as {best_kind} is not one of the {len(choices)} choices: "
                f"{choices_text}."
            )
        possible_letters = {letters[index] for letters in fitting_letter_lists}
        # the answer 2 may be the second choice, or the choice with the text `2 apples`
        may_be_text = is_guessed_index and re.search(
            rf"(?<!\w){re.escape(gold)}(?!\w)", choices_text
        )
        if may_be_text or len(possible_letters) > 1:
            raise DataError(
                f"{answer_text} is unclear: say --answer-is index0, index1, letter or text. "
                f"The choices are: {choices_text}."
            )
    return [[letter] for letter in letters_by_kind[best_kind]]


def _find_letter(kind: AnswerKind, choices: dict[str, str], gold: str) -> str:
    """The letter of the choice that an answer of a kind names; empty if it names none.

    An answer of the kind `text` is the text of the choice.
    """
    sought_name = gold
    choice_names = [*choices.values()]
    if kind == "letter":
        sought_name = re.sub(r"\W", "", gold).upper()
        choice_names = [label.upper() for label in choices]
    elif kind != "text":
        # `index0` and `index1` end with the number of the first choice
        choice_names = [str(index + int(kind[-1])) for index in range(len(choices))]
    return LETTERS[choice_names.index(sought_name)] if sought_name in choice_names else ""


def letter_lines(choices: Iterable[str]) -> list[str]:
    """A line for each choice, with its letter: `A. 5`."""
    return [f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False)]
