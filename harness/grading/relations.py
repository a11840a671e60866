"""Read equations, inequalities and sets of numbers in plain notation.

`x=5` states a value; `x<5` and `x\\ne 5` state the intervals in which a value lies. This module
turns relations into values and intervals, as text. `harness.grading.same_answer` compares them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest

from harness.grading.notation import brackets, split_outside_brackets
from harness.grading.units_and_words import AND, HEDGES, OR
from harness.grading.values import approximate, constant_ratio, has_letters

Relation = tuple[list[str], list[str]]
"""The terms of a relation and the operators between them."""
Range = tuple[str, list[str]]
"""A letter and the intervals in which its value lies."""

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

_LETTER = r"(?:[A-Za-z]|\\[A-Za-z]+ ?)(?:_(?:\d+|\w|\{(?:\\text\{)?[^{}]*\}{1,2}))?'*"
_POINTS = (
    r"(?:\\(?:angle|triangle) ?)?[A-Z]{1,4}|\\over(?:line|rightarrow)\{[A-Z]+\}|\\text\{[^{}]*\}"
)
_NAME = rf"(?:{_LETTER}|{_POINTS})"
_ARGUMENT = rf"(?:{_NAME}|-?\d+)"
_CALL = rf"(?:[fghpqFGHPQ]'*\([^()]*\)|{_LETTER}\({_ARGUMENT}(?:,{_ARGUMENT})*\))"
_INVERSE = r"(?:[A-Z]\^\{-1\}|[fgh]\^\{-1\}(?:\([^()]*\))?)"
_FUNCTION = rf"\\(?:sin|cos|tan|cot|sec|csc) ?(?:{_NAME}|\({_NAME}\))"
_QUANTITY = rf"(?:{_CALL}|{_INVERSE}|{_NAME}|\|{_NAME}\||{_FUNCTION})"
_VARIABLE = re.compile(rf"{_CALL}|{_LETTER}")
_NAMED = re.compile(
    rf"{_QUANTITY}|\[[A-Z]{{3,6}}\]|\((?:{_NAME},)+{_NAME}\)|{_NAME}(?::{_NAME})+"
    r"|\\frac\{[A-Z]{2}\}\{[A-Z]{2}\}"
)
_SUM = rf"{_QUANTITY}(?:[-+*/]?{_QUANTITY})*|{_QUANTITY}\^\d(?:[-+]{_QUANTITY}\^\d)+"
_COMBINED = re.compile(rf"{_SUM}|\\frac\{{(?:{_SUM})\}}\{{(?:{_SUM})\}}")
_NO_NAMES = re.compile(
    r"\\(?:pi|infty|not|nless|ngtr|nexists|exists|forall|neg|lnot|sqrt|frac|binom|sum|prod|int|lim"
    r"|ln|lg|log|exp|sinh|cosh|tanh|arc[a-z]+)(?![A-Za-z])"
    rf"|\\text\{{[^{{}}]*\b(?:{HEDGES})\b"
)


def as_relation(text: str) -> Relation:
    """Split a text into its terms and operators; a text that is no relation has no operators."""
    return split_outside_brackets(text, OPERATORS)


def is_name(text: str) -> bool:
    r"""Whether a left side only names its value.

    Such names are `x`, `f(x)`, `|z|`, `\sin A`, `A^{-1}`, `AB`, `(x,y)`, and words.
    """
    return bool(_NAMED.fullmatch(text)) and not _NO_NAMES.search(text.removeprefix("\\frac"))


def _is_combination(text: str) -> bool:
    """Whether a left side is a sum, product or quotient of different unknowns without coefficients.

    A question may ask for the value of such a side. It may also be a side of an equation.
    """
    unknowns = text.removeprefix("\\frac")
    quantities = re.findall(rf"{_CALL}|{_LETTER}", unknowns)
    are_different = len(set(quantities)) == len(quantities)
    return bool(_COMBINED.fullmatch(text) and not _NO_NAMES.search(unknowns) and are_different)


def flipped(relation: Relation) -> Relation:
    """The relation read from right to left."""
    terms, operators = relation
    return terms[::-1], [FLIPPED.get(operator, "") for operator in reversed(operators)]


def defined_value(
    relation: Relation, same: Callable[[str, str], bool], *, combined: bool
) -> str | None:
    """The value that `x=5`, `5=x`, `f(x)=2x`, `x=2+3=5` or `2+3=5` states.

    None if the relation states something else.

    Args:
        relation: Its terms and operators.
        same: Compares two texts. All terms that a chain sets equal must be the same.
        combined: Whether `x+y=5` also states a value. As a gold answer it is a line.
    """
    terms, operators = relation
    if set(operators) != {"="}:
        return None

    def is_named(term: str) -> bool:
        return is_name(term) or (combined and _is_combination(term))

    if len(terms) == 2 and is_named(terms[1]) and not is_named(terms[0]):
        terms = terms[::-1]
    if is_named(terms[0]):
        # after a name, members with letters cannot be compared with a number
        *values, last = terms[1:]
        if approximate(last) is not None:
            values = [
                value for value in values if _VARIABLE.fullmatch(value) or not has_letters(value)
            ]
    else:
        *values, last = terms
    return last if all(same(value, last) for value in values) else None


def exact_and_rounded(relation: Relation) -> tuple[str, str, str] | None:
    r"""Split a value with its rounding, such as `x=\frac13\approx0.33`.

    The result is the text before the `\approx`, the exact value and the decimal. None for other
    relations.
    """
    terms, operators = relation
    if operators[-1:] != ["\\approx"]:
        return None
    text = "".join(chain(*zip_longest(terms[:-1], operators[:-1], fillvalue="")))
    return text, terms[-2], terms[-1]


def same_comparison(answer: Relation, target: Relation) -> bool:
    """Whether two equations or inequalities are multiples or rearrangements of each other."""
    if len(answer[1]) != 1 or len(target[1]) != 1:
        return False
    operator, target_operator = answer[1][0], target[1][0]
    if operator not in FLIPPED or target_operator not in FLIPPED:
        return False
    differences = [f"({terms[0]})-({terms[1]})" for terms, _ in (answer, target)]
    ratio = constant_ratio(*differences)
    return ratio != 0 and target_operator == (operator if ratio > 0 else FLIPPED[operator])


def as_range(relation: Relation) -> Range | None:
    r"""The range of `x<5`, `1<=x<2`, `-x>-1`, `|x|<3`, `x\ne 2` or `x\in[1,2]`.

    None for other relations.
    """
    terms, operators = relation
    if len(terms) == 2 and _ABSOLUTE.fullmatch(terms[1]):
        terms, operators = flipped(relation)
    if len(terms) == 2 and _ABSOLUTE.fullmatch(terms[0]) and operators[0] in _ENDS:
        bound = approximate(terms[1])
        # with another bound no number, or every number, is a solution
        if bound and bound > 0:
            return terms[0].strip("|"), _absolute_intervals(operators[0], terms[1])
    # `-x<1` is `x>-1`
    if len(terms) == 2 and terms[0].startswith("-") and _VARIABLE.fullmatch(terms[0][1:]):
        terms, operators = [terms[0][1:], f"-({terms[1]})"], [FLIPPED.get(operators[0], "")]
    if operators == ["\\in"] and _VARIABLE.fullmatch(terms[0]):
        sets = intervals(terms[1])
        return (terms[0], sets) if all(map(_is_interval, sets)) else None
    if operators == ["\\ne"] and _VARIABLE.fullmatch(terms[0]):
        return terms[0], _without_points(_EVERYTHING, [terms[1]])
    # from here on the smaller term is on the left
    if operators and operators[0] in (">", "\\ge"):
        terms, operators = flipped((terms, operators))
    if not set(operators) <= {"<", "\\le"}:
        return None
    if len(terms) == 2 and _VARIABLE.fullmatch(terms[0]):
        terms, operators = ["-\\infty", *terms], ["<", *operators]
    elif len(terms) == 2:
        terms, operators = [*terms, "\\infty"], [*operators, "<"]
    if len(terms) != 3 or not _VARIABLE.fullmatch(terms[1]):
        return None
    opening, closing = _ENDS[operators[0]][0], _ENDS[operators[1]][1]
    return terms[1], [f"{opening}{terms[0]},{terms[2]}{closing}"]


def _absolute_intervals(operator: str, edge: str) -> list[str]:
    """The intervals of x for `|x|<edge`, or another operator."""
    opening, closing = tuple(_ENDS[operator])
    if operator in ("<", "\\le"):
        return [f"{opening}-({edge}),{edge}{closing}"]
    return [f"(-\\infty,-({edge}){closing}", f"{opening}{edge},\\infty)"]


def as_sets(members: Sequence[str], joined: str) -> Iterator[list[str]]:
    r"""The sets, as intervals, that inequalities in a single letter may mean.

    `or` means their union, `and` their intersection, and a comma either. `x\ne 1,2` is two
    inequalities. A single text without a relation is a set.

    Args:
        members: The inequalities.
        joined: The text that they come from.
    """
    relations: list[Relation] = []
    for member in members:
        relation = as_relation(member)
        if not relation[1] and relations and relations[0][1] == ["\\ne"]:
            relation = [relations[0][0][0], member], ["\\ne"]
        relations.append(relation)
    ranges = [*filter(None, map(_range_or_point, relations))]
    letters = {letter for letter, _ in ranges}
    if len(ranges) == len(members) and len(letters) == 1:
        sets = [solution for _, solution in ranges]
        # `x<1 or x>3` is a union; `x\ne 1, x\ne 2` leaves out both
        if AND not in joined and relations[0][1] != ["\\ne"]:
            yield [*chain(*sets)]
        common = None if OR in joined else _common(sets)
        if common:
            yield common
    elif len(members) == 1:
        yield intervals(members[0])


def intervals(text: str) -> list[str]:
    r"""The sets that `\cup` joins in a text. A set without some points becomes intervals."""
    union = _EVERYTHING if text in _REALS else text
    return [
        *chain(*map(_without_exceptions, split_outside_brackets(union, frozenset(["\\cup"]))[0]))
    ]


def _without_exceptions(text: str) -> list[str]:
    r"""The intervals of a set such as `\mathbb{R}\setminus[1,2]` or `(0,5)-\{1\}`."""
    # the rest has the ends that the removed interval does not have
    gap = _MINUS_INTERVAL.fullmatch(text)
    if gap and gap[1] in _REALS:
        closing, opening = ")]"[gap[2] == "("], "(["[gap[5] == ")"]
        return [f"(-\\infty,{gap[3]}{closing}", f"{opening}{gap[4]},\\infty)"]
    difference = _MINUS_POINTS.fullmatch(text)
    if not difference:
        return [text]
    interval = _EVERYTHING if difference[1] in _REALS else difference[1]
    if not _is_interval(interval):
        return [text]
    return _without_points(interval, split_outside_brackets(difference[2], frozenset(",;"))[0])


def _range_or_point(relation: Relation) -> Range | None:
    terms, operators = relation
    if operators == ["="] and _VARIABLE.fullmatch(terms[0]):
        return terms[0], [f"\\{{{terms[1]}\\}}"]
    return as_range(relation)


def _is_interval(text: str) -> bool:
    kind, _ = brackets(text)
    return kind in ("()", "(]", "[)", "[]") and len(_edges(text)) == 2


def _edges(interval: str) -> list[str]:
    return split_outside_brackets(interval[1:-1], frozenset(","))[0]


def _without_points(interval: str, points: list[str]) -> list[str]:
    """The intervals that remain of an interval without some points.

    Points without a known value count as inside the interval.
    """
    opening, closing = interval[0], interval[-1]
    start, end = _edges(interval)
    values: dict[float, str] = {}
    for point in points:
        value = approximate(point)
        if value is not None:
            values[value] = point
    if len(values) == len(set(points)):
        lowest, highest = approximate(start), approximate(end)  # None at infinity
        if lowest in values:
            opening = "("
        if highest in values:
            closing = ")"
        points = [
            values[value]
            for value in sorted(values)
            if (lowest is None or value > lowest) and (highest is None or value < highest)
        ]
    edges = [opening + start]
    for point in points:
        edges += [f"{point})", f"({point}"]
    edges.append(end + closing)
    return [f"{lower},{upper}" for lower, upper in zip(edges[::2], edges[1::2], strict=True)]


def _common(sets: list[list[str]]) -> list[str] | None:
    """The intersection of sets of a single letter.

    None unless at most one set bounds it on each side and the others only leave out points.
    """
    lower, upper, points = ["(-\\infty"], ["\\infty)"], []
    for solution in sets:
        if not all(map(_is_interval, solution)):
            return None
        edges = [*map(_edges, solution)]
        if len(solution) == 2 and edges[0][1] == edges[1][0]:
            points.append(edges[0][1])
        elif len(solution) == 1:
            start, end = edges[0]
            if start != "-\\infty":
                lower.append(solution[0][0] + start)
            if end != "\\infty":
                upper.append(end + solution[0][-1])
        else:
            return None
    if len(lower) > 2 or len(upper) > 2:
        return None
    return _without_points(f"{lower[-1]},{upper[-1]}", points)
