"""The elements of an answer in plain notation: of lists and sets, points, matrices, single values.

An answer is split here and compared in `answer_equality`. A single answer is a list of one element.
"""

import re
from collections.abc import Iterator
from itertools import chain, product, zip_longest

from harness.grading.formula import TooLarge
from harness.grading.formula_values import has_value
from harness.grading.notation import ROW_END, read_brackets, split_outside_brackets
from harness.grading.relations import ELEMENT_SEPARATORS, REALS, SET_OPERATORS, as_relation, is_name
from harness.grading.units_and_words import readable_words, split_unit

MOST_PLUS_MINUS_SIGNS = 4
"""Plus-minus signs in one element of a list, because each doubles the values to compare."""

NUMERAL_WITH_BASE = re.compile(
    # the digits, perhaps in brackets: `1F`, `(1F)`
    r"[({]?([A-F]*\d[0-9A-F]*|[A-F]{2,})[)}]?"
    # the base: `_{16}`, `_{two}`, `_{\text{two}}`, `_16`
    r"_(?:\{\(?(\d+|[a-z]+)\)?\}|\{?\\text\{([a-z-]+)\}\}?|\(?(\d+)\)?)"
)
"""A numeral with its base as subscript, because such digits are not decimal: `1F_{16}`."""
_SET_BUILDER_START = re.compile(r"([A-Za-z])(?:\\in ?\\mathbb\{R\})?[|:](?=.*\1)")
r"""The beginning of `x|x<5` or `x\in \mathbb{R}:x<5`, before a condition on the same letter."""
_SET_CONDITION = re.compile(r"[|:].*(?:[<>=]|\\(?:in|le|ge|ne)(?![A-Za-z]))")
"""Matches the condition `|x<5` in `(x,y)|x<5`, which shows that a set is not a list."""
GEOMETRIC_NAMES = re.compile(
    r"\\(?:angle|triangle|overline|overrightarrow|widehat|square)|[A-Z]{2,}\Z"
)
"""The beginning of a name of a geometric figure, which is not a product: `\\angle A`, `AB`."""
MATRIX = re.compile(
    # a factor and a bracket: `2(`
    r"(?P<factor>-?[^-+&]*?)[(\[]?"
    # the beginning: `\begin{pmatrix}`, `\begin{array}{cc}`
    r"\\begin\{(?P<kind>[pbvBV]?|small)(?P<name>matrix|array)\}(?:\{[lcr|]+\})?"
    # the rows, and the end of the same environment: `1&2\end{pmatrix}`
    r"(?P<rows>.*)\\end\{(?P=kind)(?P=name)\}[)\]]?",
    re.DOTALL,
)
r"""Matches a matrix, which is compared by its entries: `2\begin{pmatrix}1&2\end{pmatrix}`,
`(\begin{array}{cc}1&2\end{array})`."""
_SYMBOLS_WITHOUT_VALUE = (REALS, "\\infty", "-\\infty", "+\\infty", "\\ldots", "\\emptyset")
"""Answers that are readable although no number is their value."""

COLONS = frozenset(":")
"""The signs between the terms of a ratio."""
CONDITION_MARKS = frozenset("|:")
"""The marks before the condition of a set."""


def split_atoms(text: str) -> Iterator[str]:
    """Split an answer into atoms: the single values between commas, brackets, signs of relation."""
    pieces: list[str] = []
    for member in split_members(text):
        for term in as_relation(member).terms:
            for piece in split_outside_brackets(term, SET_OPERATORS).pieces:
                pieces += _split_entries(piece)
    # nothing was split, so the text is an atom
    if pieces == [text]:
        yield text
    else:
        yield from chain.from_iterable(map(split_atoms, pieces))


def _split_entries(text: str) -> list[str]:
    """The entries of a matrix, tuple, interval or set, or the terms of a ratio."""
    matrix_match = MATRIX.fullmatch(text)
    if matrix_match:
        return [*chain.from_iterable(split_matrix(matrix_match))]
    bracket_pair, content = read_brackets(text)
    return split_outside_brackets(content, ELEMENT_SEPARATORS if bracket_pair else COLONS).pieces


def is_readable(atom: str) -> bool:
    """Whether a piece of `split_atoms` is words, a name, a symbol, or a formula with a value."""
    if readable_words(atom) or is_name(atom) or GEOMETRIC_NAMES.match(atom):
        return True
    if NUMERAL_WITH_BASE.fullmatch(atom) or atom in _SYMBOLS_WITHOUT_VALUE:
        return True
    value, _ = split_unit(atom)
    return has_value(value)


def names_unknowns(members: list[str]) -> bool:
    """Whether a list has a value for each of several unknowns, as `x=1,y=2`."""
    relations = [*map(as_relation, members)]
    # without their indices, because `x_1=1,x_2=2` has two roots of a single unknown
    names = {terms[0].partition("_")[0] for terms, _ in relations}
    return len(names) == len(members) > 1 and all(
        operators == ["="] and is_name(terms[0]) for terms, operators in relations
    )


def coordinates(members: list[str]) -> list[str]:
    """The coordinates of a point; a list that is not a point unchanged.

    A point has one of three forms: `x=1,y=2`, `(1,2)`, and `(x,y)=(1,2)`.
    """
    if names_unknowns(members):
        named_values = [as_relation(member).terms for member in members]
        # `y=2,x=1` is the point (1,2), so the values follow the order of their names
        if all(name in ("x", "y", "z") for name, _ in named_values):
            named_values.sort()
        return [value for _, value in named_values]
    # the last term of `(x,y)=(1,2)` has the coordinates, and `(1,2)` is itself its last term
    terms, operators = as_relation(members[0])
    bracket_pair, content = read_brackets(terms[-1])
    if len(members) > 1 or bracket_pair != "()":
        return members
    # `2+3=(1,2)` is not a point with a name before it
    if operators and not is_name(terms[0]):
        return members
    return split_outside_brackets(content, ELEMENT_SEPARATORS).pieces


def split_members(text: str) -> list[str]:
    """The elements of a bare list or of a set in braces, with both values of each plus-minus.

    A single answer is the only element of its list.
    """
    text = without_set_braces(text)
    members = [*filter(None, split_outside_brackets(text, ELEMENT_SEPARATORS).pieces)]
    return [*chain.from_iterable(map(_choose_signs, members or [text]))]


def without_set_braces(text: str) -> str:
    r"""The content of a set in braces; another text unchanged.

    `\{1,2\}` and `x=\{1,2\}` become the list `1,2`, and `\{x|x<5\}` becomes its inequality. The
    empty set keeps its braces, and so does a set by another condition, as `\{(x,y)|x<5\}`.
    """
    terms, operators = as_relation(text)
    is_named = operators in (["="], ["\\in"]) and is_name(terms[0])
    if is_named and read_brackets(terms[1])[0] == "\\{\\}":
        # `x=\{1,2\}` and `x\in\{1,2\}` state the set, so the name is removed
        return without_set_braces(terms[1])
    bracket_pair, content = read_brackets(text)
    if bracket_pair != "\\{\\}":
        return text
    builder_start = _SET_BUILDER_START.match(content)
    if builder_start:
        # `x<5` remains of `\{x|x<5\}`
        return content[builder_start.end() :]
    # without its braces, `\{(x,y)|x<5\}` would be read as a list
    is_list = content != "\\emptyset" and not _SET_CONDITION.search(content)
    return content if is_list else text


def _choose_signs(text: str) -> Iterator[str]:
    r"""Both values of `1\pm2`, `1+2` and `1-2`; a text without such a sign unchanged.

    Several `\pm` are chosen independently. With a `\mp`, either all upper or all lower signs are
    chosen, so there are two texts: `1\pm a\mp b` is `1+a-b` or `1-a+b`.
    """
    pieces = re.split(r"\\(pm|mp) ?", text)
    signs = pieces[1::2]
    # each sign doubles the number of texts, so many signs are refused before any text is made
    if len(signs) > MOST_PLUS_MINUS_SIGNS:
        raise TooLarge(f"more than {MOST_PLUS_MINUS_SIGNS} choices of sign")
    sign_choices = [*product("+-", repeat=len(signs))]
    if "mp" in signs:
        upper_signs = tuple("+" if sign == "pm" else "-" for sign in signs)
        lower_signs = tuple("-" if sign == "pm" else "+" for sign in signs)
        sign_choices = [upper_signs, lower_signs]
    for chosen_signs in sign_choices:
        # piece, sign, piece, ... and the last piece, after which there is no sign
        yield "".join(chain(*zip_longest(pieces[::2], chosen_signs, fillvalue="")))


def split_matrix(matrix_match: re.Match[str]) -> list[list[str]]:
    """The entries of a matrix by rows, each with the factor or sign before the matrix."""
    row_texts, _ = split_outside_brackets(
        matrix_match["rows"].removesuffix(ROW_END), frozenset(ROW_END)
    )
    rows = [split_outside_brackets(row_text, frozenset("&")).pieces for row_text in row_texts]
    factor = matrix_match["factor"]
    if not factor:
        return rows
    # Factor and entry get brackets, because an entry may be a sum: 2 times 1+x is `(2)*(1+x)`. A
    # sign alone is not a factor: `-(1+x)`.
    if factor != "-":
        factor = f"({factor.removesuffix('*')})*"
    return [[f"{factor}({entry})" for entry in row] for row in rows]
