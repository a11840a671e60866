r"""Parses templates, which give examples and questions their form.

An example is `Q: {problem}\n{filler}\nA: {answer}`.
Names in braces are replaced, and a literal brace is doubled. In the other texts of a config only
`{row.COLUMN}` is replaced, so LaTeX needs no doubled braces there.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator

from harness.constants import SEPARATOR

TEMPLATE_NAMES = ("problem", "filler", "choices", "answer")
"""The names of a template, besides those of columns."""
_COLUMN_PATTERN = re.compile(r"\{row\.([^{}]+)\}")
"""The name of a column of the data in a text, such as `{row.hint}`."""
# The first group that matches is the kind of the piece: see `Piece`. A gap is the blanks after a
# filler, or those before a filler that ends the template; a text therefore contains no blank before
# such a filler. A brace that no earlier group matches is an error.
_PIECE_PATTERN = re.compile(
    r"(?P<gap>(?<=\{filler\})\s+|\s+(?=\{filler\}\Z))"
    r"|\{(?P<name>[^{}]+)\}"
    r"|(?P<text>(?:\{\{|\}\}|[^{}\s]|\s(?!\s*\{filler\}\Z))+)"
    r"|(?P<brace>.)"
)


class Piece(NamedTuple):
    """A piece of a template.

    Attributes:
        kind: `name`; `text`, which is literal; or `gap`, the blanks and line breaks that a prompt
            without a filler does not have either.
        text: The name or the literal text.
    """

    kind: str
    text: str


Pieces = tuple[Piece, ...]
"""Consecutive pieces of a template."""
PROBLEM, FILLER, CHOICES, ANSWER = (Piece("name", name) for name in TEMPLATE_NAMES)
"""The pieces of TEMPLATE_NAMES."""


class ParsedTemplate(NamedTuple):
    """The parts of a parsed template.

    Attributes:
        question: The pieces before the answer.
        blank: The blank between question and answer; it belongs to the answer's first token.
        answer: The answer and the pieces after it.
        end: The blanks and line breaks at the end of the template.
    """

    question: Pieces
    blank: str
    answer: Pieces
    end: str

    @property
    def pieces(self) -> Pieces:
        """The pieces of an example: those of its question, then those of its answer."""
        return self.question + self.answer

    @property
    def answer_end(self) -> str:
        """The text that an example has after its answer."""
        return "".join(piece.text for piece in self.answer if piece.kind != "name") + self.end


@cache
def parse_template(template: str, has_filler: bool = True) -> ParsedTemplate:
    """Parse a template.

    Args:
        template: The template.
        has_filler: Whether the prompt has a filler. Otherwise its name and gap are left out.

    Raises:
        ValueError: a name is unknown, a brace is neither doubled nor around a name, the answer
            occurs twice, or the question, which ends before the answer, lacks the problem.
    """
    pieces = [_read_piece(match) for match in _PIECE_PATTERN.finditer(template)]
    if pieces.count(ANSWER) > 1:
        raise ValueError(f"expected {{answer}} once, got {template!r}")
    if not has_filler:
        pieces = [piece for piece in pieces if piece != FILLER and piece.kind != "gap"]
    answer_index = pieces.index(ANSWER) if ANSWER in pieces else len(pieces)
    question, blank = _cut_end(pieces[:answer_index], " ")
    answer, end = _cut_end(pieces[answer_index:], None)
    question_names = {piece.text for piece in question if piece.kind == "name"}
    if not question_names - {"filler", "choices"}:
        raise ValueError(f"the question needs {{problem}} or {{row.COLUMN}}, got {template!r}")
    # The template has nothing after the answer, so it does not say what ends an example.
    if answer == (ANSWER,):
        end = SEPARATOR
    return ParsedTemplate(question, blank, answer, end)


def _read_piece(match: re.Match[str]) -> Piece:
    """The piece of a template that a match of _PIECE_PATTERN has.

    Raises:
        ValueError: a name is unknown, or a brace is neither doubled nor around a name.
    """
    kind = str(match.lastgroup)
    text = match[kind]
    if kind == "brace":
        raise ValueError(f"expected a name in braces or a doubled brace, got {match.string!r}")
    if kind == "text":
        return Piece(kind, text.replace("{{", "{").replace("}}", "}"))
    if kind == "name" and text not in TEMPLATE_NAMES and not _COLUMN_PATTERN.fullmatch(match[0]):
        raise ValueError(
            "expected a name of {problem}, {filler}, {choices}, {answer}, {row.COLUMN}, got "
            f"{match[0]}"
        )
    return Piece(kind, text)


def _cut_end(pieces: Sequence[Piece], characters: str | None) -> tuple[Pieces, str]:
    """Cut these characters off the end of the last piece.

    Args:
        pieces: Consecutive pieces. A name at their end is not cut.
        characters: The characters; None for all blanks and line breaks.

    Returns:
        The pieces without what was cut, and what was cut.
    """
    if not pieces or pieces[-1].kind == "name":
        return tuple(pieces), ""
    *earlier_pieces, (kind, text) = pieces
    remaining_text = text.rstrip(characters)
    return (*earlier_pieces, Piece(kind, remaining_text)), text[len(remaining_text) :]


def _check_template(template: str) -> str:
    """Return a template unless it cannot be parsed."""
    parse_template(template)
    return template


Template = Annotated[str, AfterValidator(_check_template)]
"""The text of a template that was parsed without an error, such as `{filler}{problem}`."""


def fill_columns(text: str, row: Mapping[str, str]) -> str:
    """A text with the columns of a row in place of their names."""
    return _COLUMN_PATTERN.sub(lambda match: row[match[1]], text)


def find_columns(config: Any) -> set[str]:
    """The names of the columns in all texts of a config."""
    return {*_COLUMN_PATTERN.findall(json.dumps(config, ensure_ascii=False))}
