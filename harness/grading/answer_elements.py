"""The elements of an answer in plain notation: of lists and sets, points, matrices, single values.

An answer is split here and compared in `answer_equality`. A single answer is a list of one element.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, product, zip_longest

from harness.grading.formula import TooLarge
from harness.grading.formula_values import has_value
from harness.grading.notation import ROW_END, brackets, split_outside_brackets
from harness.grading.relations import COMMAS, REALS, SET_OPERATORS, as_relation, is_name
from harness.grading.units_and_words import readable_words, without_unit

MOST_PLUS_MINUS_SIGNS = 4
"""Plus-minus signs in one element of a list, because each doubles the values to compare."""

NUMERAL_WITH_BASE = re.compile(
    r"[({]?([A-F]*\d[0-9A-F]*|[A-F]{2,})[)}]?"
    r"_(?:\{\(?(\d+|[a-z]+)\)?\}|\{?\\text\{([a-z-]+)\}\}?|\(?(\d+)\)?)"
)
"""A numeral with its base as subscript, `1F_{16}`: a number, or a word such as `two`."""
# the beginning of `x|x<5`, `x\in \mathbb{R}:x<5`
_SET_BUILDER = re.compile(r"([A-Za-z])(?:\\in ?\\mathbb\{R\})?[|:](?=.*\1)")
# `|x<5` in `(x,y)|x<5`
_CONDITION = re.compile(r"[|:].*(?:[<>=]|\\(?:in|le|ge|ne)(?![A-Za-z]))")
GEOMETRIC_NAMES = re.compile(
    r"\\(?:angle|triangle|overline|overrightarrow|widehat|square)|[A-Z]{2,}\Z"
)
"""The beginning of a name of a geometric figure: `\\angle A`, `AB`. It is not a product."""
# `2\begin{pmatrix}1&2\end{pmatrix}`, `(\begin{array}{cc}1&2\end{array})`
MATRIX = re.compile(
    r"(?P<factor>-?[^-+&]*?)(?P<bracket>[(\[]?)"
    r"\\begin\{(?P<kind>[pbvBV]?|small)(?P<name>matrix|array)\}(?:\{[lcr|]+\})?"
    r"(?P<rows>.*)\\end\{(?P=kind)(?P=name)\}[)\]]?",
    re.DOTALL,
)
_SYMBOLS = (REALS, "\\infty", "-\\infty", "+\\infty", "\\ldots", "\\emptyset")

COLONS = frozenset(":")
CONDITIONS = frozenset("|:")
"""The marks before the condition of a set."""
_ROWS, _CELLS = frozenset(ROW_END), frozenset("&")


def split_atoms(text: str) -> Iterator[str]:
    """Split an answer at its commas, brackets and signs of relation, down to single values."""
    pieces: list[str] = []
    for member in split_members(text):
        for term in as_relation(member).terms:
            for piece in split_outside_brackets(term, SET_OPERATORS).pieces:
                pieces += _split_entries(piece)
    if pieces == [text]:
        yield text
    else:
        yield from chain.from_iterable(map(split_atoms, pieces))


def _split_entries(text: str) -> list[str]:
    matrix = MATRIX.fullmatch(text)
    if matrix:
        return [*chain.from_iterable(split_matrix(matrix))]
    kind, inner = brackets(text)
    return split_outside_brackets(inner, COMMAS if kind else COLONS).pieces


def is_readable(atom: str) -> bool:
    """Whether a piece of `split_atoms` is words, a name, a symbol, or a formula with a value."""
    is_text = readable_words(atom) or is_name(atom) or GEOMETRIC_NAMES.match(atom)
    if is_text or NUMERAL_WITH_BASE.fullmatch(atom) or atom in _SYMBOLS:
        return True
    return has_value(without_unit(atom)[0])


def names_unknowns(members: list[str]) -> bool:
    """Whether a list has the values of several unknowns, as `x=1,y=2`.

    `x_1=1,x_2=2` has two roots of a single unknown.
    """
    relations = [as_relation(member) for member in members]
    names = {terms[0].partition("_")[0] for terms, operators in relations if operators == ["="]}
    has_names = len(names) == len(members) > 1
    return has_names and all(is_name(terms[0]) for terms, _ in relations)


def coordinates(members: list[str]) -> list[str]:
    """The values of several unknowns, or the entries of a point; another list unchanged.

    A point may have the names of its coordinates before it, as in `(x,y)=(1,2)`.
    """
    if names_unknowns(members):
        relations = [as_relation(member).terms for member in members]
        # equations may stand in any order, but coordinates are compared in that of their names
        if all(name in ("x", "y", "z") for name, _ in relations):
            relations.sort()
        return [value for _, value in relations]
    terms, operators = as_relation(members[0])
    kind, inner = brackets(terms[-1])
    is_point = len(members) == 1 and kind == "()" and (not operators or is_name(terms[0]))
    return split_outside_brackets(inner, COMMAS).pieces if is_point else members


def split_members(text: str) -> list[str]:
    """The elements of a bare list or of a set in braces, with both values of each plus-minus.

    A single answer is the only element of its list.
    """
    text = without_set_braces(text)
    members = [member for member in split_outside_brackets(text, COMMAS).pieces if member]
    if not members:
        members = [text]
    return [*chain.from_iterable(map(_both_signs, members))]


def without_set_braces(text: str) -> str:
    """The list in the braces of a set; another text, or a set by a condition, unchanged."""
    terms, operators = as_relation(text)
    if operators in (["="], ["\\in"]) and is_name(terms[0]):
        # `x=\{1,2\}` and `x\in\{1,2\}` state the set, so the name is removed
        if brackets(terms[1])[0] == "\\{\\}":
            text = terms[1]
    kind, inner = brackets(text)
    if kind == "\\{\\}":
        # `\{x|x<5\}` is the same set as its inequality; with another condition the braces stay
        builder = _SET_BUILDER.match(inner)
        if builder:
            text = inner[builder.end() :]
        elif inner != "\\emptyset" and not _CONDITION.search(inner):
            text = inner
    return text


def _both_signs(text: str) -> Iterator[str]:
    pieces = re.split(r"\\(pm|mp) ?", text)
    signs = pieces[1::2]
    # refused before the product is made, because its size doubles with each sign
    if len(signs) > MOST_PLUS_MINUS_SIGNS:
        raise TooLarge(f"more than {MOST_PLUS_MINUS_SIGNS} choices of sign")
    sign_choices: Iterable[Iterable[str]] = product("+-", repeat=len(signs))
    if "mp" in signs:  # the upper signs belong together, and so do the lower signs
        upper_signs = [{"pm": "+", "mp": "-"}[sign] for sign in signs]
        lower_signs = [{"pm": "-", "mp": "+"}[sign] for sign in signs]
        sign_choices = upper_signs, lower_signs
    for chosen_signs in sign_choices:
        yield "".join(chain(*zip_longest(pieces[::2], chosen_signs, fillvalue="")))


def split_matrix(matrix: re.Match[str]) -> list[list[str]]:
    """The entries of a matrix by rows, each with the factor or sign before the matrix."""
    lines, _ = split_outside_brackets(matrix["rows"].removesuffix(ROW_END), _ROWS)
    rows = [split_outside_brackets(line, _CELLS).pieces for line in lines]
    factor = matrix["factor"]
    if not factor:
        return rows
    # brackets, because an entry may be a sum: `2\begin{pmatrix}1+x\\2\end{pmatrix}` has (2)*(1+x)
    if factor != "-":
        factor = f"({factor.removesuffix('*')})*"
    return [[f"{factor}({entry})" for entry in row] for row in rows]
