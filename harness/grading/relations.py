"""Equations, inequalities and sets of numbers in plain notation: what a relation says of its left side.

`x=5` says that a value is 5, `x<5` and `x\\ne 5` say in which intervals it lies. Here one becomes the other, as text.
Whether two texts are the same is for `harness.grading.same_answer` to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from harness.grading.notation import brackets, parts
from harness.grading.units_and_words import AND, OR
from harness.grading.values import approximate, constant_ratio

Relation = tuple[list[str], list[str]]
"""The terms of a relation and the operators between them."""

OPERATORS = frozenset(
    "= < > \\le \\ge \\ne \\in \\notin \\approx \\equiv \\sim \\simeq \\cong \\to \\Rightarrow "
    "\\mapsto \\iff \\subset \\subseteq \\propto \\perp \\parallel \\Leftrightarrow".split()
)
FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "=": "=", "\\ne": "\\ne"}
_REALS = ("\\mathbb{R}", "(-\\infty,+\\infty)")
_EVERYTHING = "(-\\infty,\\infty)"
_MINUS_POINTS = re.compile(r"(.+?)(?:\\setminus ?|-)\\\{(.+)\\\}")

_MINUS_INTERVAL = re.compile(r"(.+?)(?:\\setminus ?|-)([(\[])([^()\[\]]+),([^()\[\]]+)([)\]])")
_ABSOLUTE = re.compile(r"\|([A-Za-z])\|")
_ENDS = {"<": "()", "\\le": "[]", ">": "()", "\\ge": "[]"}

_LETTER = r"(?:[A-Za-z]|\\[A-Za-z]+ ?)(?:_(?:\d+|\w|\{[^{}]*\}))?'*"
_POINTS = (
    r"(?:\\(?:angle|triangle) ?)?[A-Z]{1,4}|\\over(?:line|rightarrow)\{[A-Z]+\}|\\text\{[^{}]*\}"
)
_NAME = rf"(?:{_LETTER}|{_POINTS})"
_PLACE = rf"(?:{_NAME}|-?\d+)"
_CALL = rf"(?:[fghpqFGHPQ]'*\([^()]*\)|{_LETTER}\({_PLACE}(?:,{_PLACE})*\))"
_INVERSE = r"(?:[A-Z]\^\{-1\}|[fgh]\^\{-1\}(?:\([^()]*\))?)"
_FUNCTION = rf"\\(?:sin|cos|tan|cot|sec|csc) ?(?:{_NAME}|\({_NAME}\))"
_QUANTITY = rf"(?:{_CALL}|{_INVERSE}|{_NAME}|\|{_NAME}\||{_FUNCTION})"
_VARIABLE = re.compile(rf"{_CALL}|{_LETTER}")
_NAMED = re.compile(
    rf"{_QUANTITY}|\[[A-Z]{{3,6}}\]|\((?:{_NAME},)+{_NAME}\)|{_NAME}(?::{_NAME})+|\\frac\{{[A-Z]{{2}}\}}\{{[A-Z]{{2}}\}}"
)
_SUM = rf"{_QUANTITY}(?:[-+*/]?{_QUANTITY})*"
_COMBINED = re.compile(rf"{_SUM}|\\frac\{{{_SUM}\}}\{{{_SUM}\}}")
_NO_NAMES = re.compile(
    r"\\(?:pi|infty|not|nless|ngtr|nexists|exists|forall|neg|lnot|sqrt|frac|binom|sum|prod|int|lim"
    r"|ln|lg|log|exp|sinh|cosh|tanh|arc[a-z]+)(?![A-Za-z])"
    r"|\\text\{[^{}]*\b(?:not|no|never|less|more|least|most|about|approximately|nearly|almost|wrong|incorrect)\b"
)


def as_relation(text: str) -> Relation:
    """The terms and operators of a text; no operators if it is no relation."""
    return parts(text, OPERATORS)


def is_name(text: str) -> bool:
    r"""Whether a left side only names what it is: `x`, `f(x)`, `|z|`, `\sin A`, `A^{-1}`, `AB`, `(x,y)`, words."""
    return bool(_NAMED.fullmatch(text)) and not _NO_NAMES.search(text.removeprefix("\\frac"))


def _is_combination(text: str) -> bool:
    """Whether a left side is a sum, product or quotient of different unknowns without coefficients.

    That is what a question may ask for, but also an equation.
    """
    letters = re.findall(_LETTER, text.removeprefix("\\frac"))
    unsolved = _NO_NAMES.search(text.removeprefix("\\frac")) or len(set(letters)) < len(letters)
    return bool(_COMBINED.fullmatch(text)) and not unsolved


def flipped(relation: Relation) -> Relation:
    """The relation read from right to left."""
    terms, operators = relation
    return terms[::-1], [FLIPPED.get(operator, "") for operator in reversed(operators)]


def defined_value(
    relation: Relation, same: Callable[[str, str], bool], *, combined: bool
) -> str | None:
    """What `x=5`, `5=x`, `f(x)=2x`, `x=2+3=5` or `2+3=5` says the value is; None if it says something else.

    Args:
        relation: Its terms and operators.
        same: Compares two texts: all that a chain sets equal must be the same.
        combined: Whether `x+y=5` says that a value is 5 too. As a gold answer it is a line.
    """
    terms, operators = relation
    if set(operators) != {"="}:
        return None
    named = [is_name(term) or (combined and _is_combination(term)) for term in terms]
    if len(terms) == 2 and named == [False, True]:
        terms, named = terms[::-1], [True, False]
    values = terms[1:] if named[0] else terms
    return values[-1] if all(same(value, values[-1]) for value in values[:-1]) else None


def exact_and_rounded(relation: Relation) -> tuple[str, str, str] | None:
    r"""Of a value with its rounding, `x=\frac13\approx0.33`: all before the `\approx`, the value alone, the decimal.

    None for other relations.
    """
    terms, operators = relation
    if operators[-1:] != ["\\approx"]:
        return None
    before = terms[0] + "".join(map("".join, zip(operators[:-1], terms[1:-1], strict=True)))
    return before, terms[-2], terms[-1]


def same_comparison(answer: Relation, target: Relation) -> bool:
    """Whether two equations, or two inequalities, are one: a multiple of the other, or rearranged.

    Raises:
        Unreadable: a side is no formula.
    """
    if (
        len(answer[1]) != 1
        or len(target[1]) != 1
        or not {answer[1][0], target[1][0]} <= FLIPPED.keys()
    ):
        return False
    ratio = constant_ratio(*(f"({terms[0]})-({terms[1]})" for terms, _ in (answer, target)))
    operator = answer[1][0]
    return ratio != 0 and target[1][0] == (operator if ratio > 0 else FLIPPED[operator])


def as_range(relation: Relation) -> tuple[str, list[str]] | None:
    r"""The letter of `x<5`, `1<=x<2`, `-x>-1`, `x\ne 2` or `x\in[1,2]`, and its intervals; None for other relations."""
    terms, operators = relation
    if len(terms) == 2 and _ABSOLUTE.fullmatch(terms[1]):
        terms, operators = flipped(relation)
    inner = _ABSOLUTE.fullmatch(terms[0])
    if inner and len(terms) == 2 and operators[0] in _ENDS and (approximate(terms[1]) or 0) > 0:
        opening, closing = tuple(_ENDS[operators[0]])
        edge = terms[1]
        if operators[0] in ("<", "\\le"):
            return inner[1], [f"{opening}-({edge}),{edge}{closing}"]
        return inner[1], [f"(-\\infty,-({edge}){closing}", f"{opening}{edge},\\infty)"]
    if len(terms) == 2 and terms[0].startswith("-") and _VARIABLE.fullmatch(terms[0][1:]):
        terms, operators = [terms[0][1:], f"-({terms[1]})"], [FLIPPED.get(operators[0], "")]
    if operators == ["\\in"] and _VARIABLE.fullmatch(terms[0]):
        found = intervals(terms[1])
        return (terms[0], found) if all(map(_is_interval, found)) else None
    if operators == ["\\ne"] and _VARIABLE.fullmatch(terms[0]):
        return terms[0], _without_points(_EVERYTHING, [terms[1]])
    if operators and operators[0] in (">", "\\ge"):
        terms, operators = flipped((terms, operators))
    if not operators or not set(operators) <= {"<", "\\le"}:
        return None
    if len(terms) == 2:
        place = next((place for place in (0, 1) if _VARIABLE.fullmatch(terms[place])), None)
        if place is None:
            return None
        terms = ["-\\infty", *terms] if place == 0 else [*terms, "\\infty"]
        operators = ["<", *operators] if place == 0 else [*operators, "<"]
    if len(terms) != 3 or not _VARIABLE.fullmatch(terms[1]):
        return None
    opening, closing = "(" if operators[0] == "<" else "[", ")" if operators[1] == "<" else "]"
    return terms[1], [f"{opening}{terms[0]},{terms[2]}{closing}"]


def as_sets(members: Sequence[str], joined: str) -> Iterator[list[str]]:
    r"""The sets, as intervals, that inequalities in one letter may mean: their union, or what they have in common.

    `or` means the first, `and` the second, a comma either. `x\ne 1,2` is two inequalities. A single text without a
    relation is the set that it writes.

    Args:
        members: The inequalities.
        joined: The text that holds them.
    """
    first, operators = as_relation(members[0])
    if operators == ["\\ne"]:
        members = [
            member if as_relation(member)[1] else f"{first[0]}\\ne {member}" for member in members
        ]
    relations = [as_relation(member) for member in members]
    ranges = [found for one in relations if (found := as_range(one) or _as_point(one)) is not None]
    if len(ranges) == len(members) and len({letter for letter, _ in ranges}) == 1:
        if AND not in joined and operators != ["\\ne"]:
            yield [interval for _, found in ranges for interval in found]
        if OR not in joined and (common := _common([found for _, found in ranges])):
            yield common
    elif len(members) == 1:
        yield intervals(members[0])


def intervals(text: str) -> list[str]:
    r"""The sets that a text joins by `\cup`, a set without some points as the intervals that are left."""
    found = []
    for piece in parts(_EVERYTHING if text in _REALS else text, frozenset(["\\cup"]))[0]:
        cut, less = _MINUS_INTERVAL.fullmatch(piece), _MINUS_POINTS.fullmatch(piece)
        if cut and cut[1] in _REALS:
            left, right = ")]"[cut[2] == "("], "(["[cut[5] == ")"]
            found += [f"(-\\infty,{cut[3]}{left}", f"{right}{cut[4]},\\infty)"]
            continue
        whole = _EVERYTHING if less and less[1] in _REALS else less[1] if less else ""
        found += (
            _without_points(whole, parts(less[2], frozenset(",;"))[0])
            if less and _is_interval(whole)
            else [piece]
        )
    return found


def _as_point(relation: Relation) -> tuple[str, list[str]] | None:
    terms, operators = relation
    return (
        (terms[0], [f"\\{{{terms[1]}\\}}"])
        if operators == ["="] and _VARIABLE.fullmatch(terms[0])
        else None
    )


def _is_interval(text: str) -> bool:
    kind, inner = brackets(text)
    return kind in ("()", "(]", "[)", "[]") and len(parts(inner, frozenset(","))[0]) == 2


def _without_points(interval: str, points: list[str]) -> list[str]:
    """The intervals that are left of one without some points; points whose value is not known are taken as inside."""
    opening, closing = interval[0], interval[-1]
    start, end = parts(interval[1:-1], frozenset(","))[0]
    places = {place: point for point in points if (place := approximate(point)) is not None}
    if len(places) == len(set(points)):
        lowest, highest = (
            approximate(edge) if edge.lstrip("+-") != "\\infty" else None for edge in (start, end)
        )
        opening, closing = (
            "(" if lowest in places else opening,
            ")" if highest in places else closing,
        )
        inside = [
            p
            for p in sorted(places)
            if (lowest is None or p > lowest) and (highest is None or p < highest)
        ]
        points = [places[place] for place in inside]
    edges = [
        opening + start,
        *(edge for point in points for edge in (f"{point})", f"({point}")),
        end + closing,
    ]
    return [f"{before},{after}" for before, after in zip(edges[::2], edges[1::2], strict=True)]


def _common(sets: list[list[str]]) -> list[str] | None:
    """What sets of one letter have in common, if at most one bounds it on each side, and the rest leave out points."""
    lower, upper, points = [], [], []
    for found in sets:
        if not all(map(_is_interval, found)):
            return None
        edges = [parts(interval[1:-1], frozenset(","))[0] for interval in found]
        if len(found) == 2 and edges[0][1] == edges[1][0]:
            points.append(edges[0][1])
        elif len(found) == 1:
            lower += [found[0][0] + edges[0][0]] * (edges[0][0] != "-\\infty")
            upper += [edges[0][1] + found[0][-1]] * (edges[0][1] != "\\infty")
        else:
            return None
    if len(lower) > 1 or len(upper) > 1:
        return None
    return _without_points(",".join([*(lower or ["(-\\infty"]), *(upper or ["\\infty)"])]), points)
