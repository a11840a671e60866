"""The gold answers of a column: lists, worked solutions, missing values, decimal commas.

Other programs write a text such as `NaN` where an answer is missing, and a list in brackets. A text
such as `None` is missing only among numbers, because elsewhere it may be an answer.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from harness.boxes import read_boxes
from harness.constants import DecimalSign
from harness.data_records import find_delimiter, refuse_lost_backslash
from harness.decimal_commas import DECIMAL_COMMA_NUMBER, with_decimal_points
from harness.errors import DataError, list_first
from harness.yaml_settings import explain

MOST_LISTED_GOLDS = 5
"""The number of gold answers that a message names."""
FEWEST_COMMA_ANSWERS = 2
"""From this number on, answers such as `2,5` need a stated decimal sign. A single one may be a list
in any data, as `-2,1` in MATH-500."""

# the last alternatives are errors of spreadsheets, such as #N/A, #NV and #DIV/0!
_MISSING_ANSWER = re.compile(
    r"\s*(?:|[-+]?(?:nan|NaN|NAN)|<NA>|NaT|\[\s*\]|#(?:N/?[AV]|[A-ZÄÖÜ/0]+[!?]))\s*"
)
_MISSING_AMONG_NUMBERS = re.compile(
    rf"{_MISSING_ANSWER.pattern}|\s*(?:None|[Nn]ull|NULL|N/?A|n/?a|[-\u2013\u2014?.]+)\s*"
)
"""Matches also words and signs that are missing answers only among numbers: `None`, `n/a`, `-`."""
_NUMBER_OR_FORMULA = re.compile(r"\s*[-+$€£(\[{|]*[\d.]|.*[\\^=+*<>]")
"""Matches the beginning of answers such as `-5`, `$3`, `(1, 2)` and `x = 1`."""
# Texts without a comma between them are excluded: numpy writes them so, and Python would join them.
_LISTED_ANSWERS = re.compile(r"""\[(?!.*["']\s*["'])\s*(?:["'].*|-?[\d.]+\s*)\]""", re.DOTALL)
"""A list of texts or of one number, such as `["1", "2"]` and `[5]`."""
_UNREADABLE_LIST = re.compile(r"""[\[({]\s*["']|\[\s*-?[\d.]+(?:\s+-?[\d.]+)+\s*\]""")
"""Matches other lists, which were not read: `["1" "2"]` and `[1 2]` of numpy, `('1', '2')`."""


def as_text(value: Any) -> Any:
    """A number as text. NaN and infinity stay numbers, which are refused later."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and math.isfinite(value) else value


_GOLD_ADAPTER: TypeAdapter[str] = TypeAdapter(
    Annotated[
        str, Field(pattern=""), BeforeValidator(as_text), AfterValidator(refuse_lost_backslash)
    ]
)
"""A gold answer. The pattern refuses half a surrogate pair, which no tokenizer takes."""


def read_golds(cell: Any) -> list[str]:
    """The accepted answers of a field. A worked solution is the answer that it states.

    Raises:
        ValidationError: an answer is neither text nor a number.
    """
    if isinstance(cell, str) and _LISTED_ANSWERS.fullmatch(cell.strip()):
        with suppress(ValueError, SyntaxError):
            cell = ast.literal_eval(cell.strip())
    # an empty list is one missing answer
    answers = cell if isinstance(cell, list) and cell else [cell]
    return [_GOLD_ADAPTER.validate_python(_read_gold(answer)) for answer in answers]


def _read_gold(answer: Any) -> Any:
    """The conclusion of a worked solution; empty if the answer is missing; else the answer itself.

    The conclusion of GSM8K is what follows `####`, and that of MATH is the content of the last box.
    """
    # null, an empty list, or NaN, which alone differs from itself
    if answer is None or answer == [] or answer != answer:
        return ""
    if not isinstance(answer, str):
        return answer
    conclusion = re.sub(r"(?s).*####\s*", "", answer)
    return [conclusion, *read_boxes(conclusion)][-1]


def read_gold_column(
    located_cells: Iterable[tuple[str, Any]], path: Path, decimal: DecimalSign | None
) -> list[list[str]]:
    """The accepted answers of every cell of a column, as they are written.

    Args:
        located_cells: The location of each cell, and its value.
        path: Their file. Spreadsheets put semicolons between fields where the comma is the decimal
            sign.
        decimal: The decimal sign, if it is known.

    Raises:
        DataError: an answer is missing, is neither text nor number, or has an unclear decimal sign.
    """
    golds_by_cell = []
    located_golds = []
    for location, cell in located_cells:
        try:
            golds = read_golds(cell)
        except ValidationError as error:
            raise DataError(explain(error, f"{location}: gold answer")) from None
        golds_by_cell.append(golds)
        located_golds += [(location, gold) for gold in golds]
    stated_golds = [gold for _, gold in located_golds if not _MISSING_AMONG_NUMBERS.fullmatch(gold)]
    mathematical_golds = [*filter(_NUMBER_OR_FORMULA.match, stated_golds)]
    # where most answers are words, a word such as `None` is an answer
    are_mostly_words = 2 * len(mathematical_golds) < len(stated_golds)
    missing_pattern = _MISSING_ANSWER if are_mostly_words else _MISSING_AMONG_NUMBERS
    _refuse_faulty(located_golds, missing_pattern.fullmatch, "are missing")
    _refuse_faulty(
        located_golds, _UNREADABLE_LIST.match, 'cannot be read as a list such as ["1", "2"]'
    )
    if decimal is None:
        fault = "may have a decimal comma; say --decimal , or --decimal ."
        # such a file was written with decimal commas, so a single number with a comma is unclear
        if find_delimiter(path) == ";":
            _refuse_faulty(located_golds, lambda gold: with_decimal_points(gold) != gold, fault)
        _refuse_faulty(located_golds, DECIMAL_COMMA_NUMBER.fullmatch, fault, FEWEST_COMMA_ANSWERS)
    return golds_by_cell


def _refuse_faulty(
    located_golds: Sequence[tuple[str, str]],
    is_faulty: Callable[[str], object],
    fault: str,
    fewest_faulty_golds: int = 1,
) -> None:
    """Raise DataError if the number of different faulty answers reaches `fewest_faulty_golds`.

    The message is the number of faulty answers, the text of the fault, and some of the answers.
    """
    faulty_golds = [(location, gold) for location, gold in located_golds if is_faulty(gold)]
    # different answers, because a log repeats the answer of a problem for each of its completions
    if len({gold for _, gold in faulty_golds}) >= fewest_faulty_golds:
        quotations = [f"{location}: {gold!r:.60}" for location, gold in faulty_golds]
        raise DataError(
            f"{len(faulty_golds)} of {len(located_golds)} gold answers {fault}: "
            f"{list_first(quotations, MOST_LISTED_GOLDS)}."
        )
