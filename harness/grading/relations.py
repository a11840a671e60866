"""Read equations, inequalities and sets of numbers in plain notation.

`x=5` states a value, and `x<5` and `x\\ne 5` state the set in which a value lies. This module finds
the value, and compares the sets. `harness.grading.answer_equality` compares all other answers.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import chain, zip_longest
from math import inf
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from harness.grading.formula import TooLarge, Unreadable, Value
from harness.grading.formula_values import (
    POINT_COUNT,
    Point,
    approximate,
    constant_ratio,
    has_letters,
)
from harness.grading.notation import brackets, split_outside_brackets
from harness.grading.units_and_words import AND, HEDGES, OR


class Relation(NamedTuple):
    """The terms of a relation and the operators between them."""

    terms: list[str]
    operators: list[str]


OPERATORS = frozenset(
    "= < > \\le \\ge \\ne \\in \\notin \\approx \\equiv \\sim \\simeq \\cong \\to \\Rightarrow "
    "\\mapsto \\iff \\subset \\subseteq \\propto \\perp \\parallel \\Leftrightarrow".split()
)
FLIPPED_OPERATORS = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "=": "=", "\\ne": "\\ne"}
MOST_BOUNDS = 15
"""Bounds of two sets together, with the three names of infinity, as the cost is quadratic. Longer
unions and lists are compared member by member."""
COMMAS = frozenset([",", ";", OR, AND])
REALS, SET_OPERATORS = "\\mathbb{R}", frozenset(["\\cup", "\\setminus"])
_END_OPERATORS = {
    "()": (">", "<"),
    "(]": (">", "\\le"),
    "[)": ("\\ge", "<"),
    "[]": ("\\ge", "\\le"),
}
_COMPARISONS = dict(zip(FLIPPED_OPERATORS, (lt, gt, le, ge, eq, ne), strict=True))
_INFINITIES: dict[str, Value] = {"\\infty": inf, "+\\infty": inf, "-\\infty": -inf}

# `x`, `\theta`, `x_{1}`, `x_{\text{max}}`, `f'`
_LETTER = r"(?:[A-Za-z]|\\[A-Za-z]+ ?)(?:_(?:\d+|\w|\{(?:\\text\{)?[^{}]*\}{1,2}))?'*"
# `AB`, `\angle ABC`, `\overline{AB}`, `\text{area}`
_FIGURE_OR_WORDS = (
    r"(?:\\(?:angle|triangle) ?)?[A-Z]{1,4}|\\over(?:line|rightarrow)\{[A-Z]+\}|\\text\{[^{}]*\}"
)
# any of these
_NAME = rf"(?:{_LETTER}|{_FIGURE_OR_WORDS})"
# `x`, `-2`
_ARGUMENT = rf"(?:{_NAME}|-?\d+)"
# `f(x+1)`, `a(2)`, `P(A,B)`
_CALL = rf"(?:[fghpqFGHPQ]'*\([^()]*\)|{_LETTER}\({_ARGUMENT}(?:,{_ARGUMENT})*\))"
# `A^{-1}`, `f^{-1}(x)`
_INVERSE = r"(?:[A-Z]\^\{-1\}|[fgh]\^\{-1\}(?:\([^()]*\))?)"
# `\sin A`, `\cos 2x`, `\tan(A+B)`; not `\sin(30)`
_FUNCTION = rf"\\(?:sin|cos|tan|cot|sec|csc) ?(?:\d*{_NAME}|\([^()]*[A-Za-z][^()]*\))"
# any of these, or `|z|`
_QUANTITY = rf"(?:{_CALL}|{_INVERSE}|{_NAME}|\|{_NAME}\||{_FUNCTION})"
# `x`, `f(x)`
_VARIABLE = re.compile(rf"{_CALL}|{_LETTER}")
# `x`, `-x`, `|x|`
_SIGNED_VARIABLE = re.compile(rf"-?(?:{_CALL}|{_LETTER})|\|[A-Za-z]\|")
# `f(x)`, `[ABC]` (an area), `(x,y)`, `AB:BC`, `\frac{AB}{CD}`
_NAMED_QUANTITY = re.compile(
    rf"{_QUANTITY}|\[[A-Z]{{3,6}}\]|\((?:{_NAME},)+{_NAME}\)|{_NAME}(?::{_NAME})+"
    r"|\\frac\{[A-Z]{2}\}\{[A-Z]{2}\}"
)
_MULTIPLE = re.compile(r"(?:-|-?(?:\d+|\\frac(?:\d\d|\{\d+\}\{\d+\}))\*?)m?(.+)")
"""A sign or a number before a name: `-\\angle A`, `\\frac{1}{2}m\\angle B`."""
_STRUCTURE = re.compile(r"\\frac ?\d?|\\(?:sqrt|angle|triangle|over(?:line|rightarrow)) ?")
"""Commands that combine or mark unknowns and are not unknowns themselves."""
_COEFFICIENT = re.compile(r"\A-|(?<![\^_\d])\d+\*?(?=[A-Za-z(\\|])")
"""A sign in front, or a number before an unknown: `2x`, `3(a+b)`; not the exponent of `a^2b`."""
# `\pi`, `\sqrt`, `\log`: not names of an unknown
_NOT_A_NAME = re.compile(
    r"\\(?:pi|infty|degree|not|nless|ngtr|nexists|exists|forall|neg|lnot|sqrt|frac|binom"
    r"|sum|prod|int|lim|ln|lg|log|exp|sinh|cosh|tanh|arc[a-z]+)(?![A-Za-z])"
)
# `\text{not x}`, `\text{at least}`
_HEDGED = re.compile(rf"\\text\{{[^{{}}]*\b(?:{HEDGES})\b")
# `(\text{no two})` in `P(\text{no two})`
_ARGUMENTS = re.compile(r"\([^()]*\)")


def as_relation(text: str) -> Relation:
    """Split a text into its terms and operators; a text that is not a relation has no operators."""
    return Relation(*split_outside_brackets(text, OPERATORS))


def is_name(text: str) -> bool:
    r"""Whether a left side only names its value.

    Such names are `x`, `f(x)`, `|z|`, `\sin A`, `A^{-1}`, `AB`, `(x,y)`, and words.
    """
    if not _NAMED_QUANTITY.fullmatch(text) or _NOT_A_NAME.search(text.removeprefix("\\frac")):
        return False
    # words in the brackets of `P(\text{no two adjacent})` name an event, and are not a hedge
    return not _HEDGED.search(_ARGUMENTS.sub("", text))


def is_multiple(text: str) -> bool:
    r"""Whether a left side is a multiple of what it names, such as `2\angle A` or `-f^{-1}(x)`."""
    match = _MULTIPLE.fullmatch(text)
    return match is not None and is_name(match[1])


def _is_combination(text: str) -> bool:
    r"""Whether a left side combines several unknowns without coefficients, such as `xy+yz`.

    A question may ask for its value. With a coefficient, as in `2x+y=4`, it is usually a side of an
    equation that was to be solved.
    """
    unknowns = _STRUCTURE.sub("", text)
    if "\\text" in unknowns:
        return False
    are_several = len({*re.findall(rf"{_CALL}|{_LETTER}", unknowns)}) > 1
    return are_several and not _COEFFICIENT.search(unknowns) and not _NOT_A_NAME.search(unknowns)


def defined_value(
    relation: Relation, same: Callable[[str, str], bool], *, combined: bool
) -> str | None:
    """The value that `x=5`, `5=x`, `f(x)=2x`, `x=2+3=5` or `2+3=5` states.

    None if the relation states something else.

    Args:
        relation: Its terms and operators.
        same: Compares two texts. All terms that a chain sets equal must be the same.
        combined: Whether `x+y=5` also states a value. A gold answer `x+y=5` is the equation of a
            line, so it is False for it.
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
        if values and approximate(last) is not None:
            values = [
                value for value in values if _VARIABLE.fullmatch(value) or not has_letters(value)
            ]
    else:
        *values, last = terms
    return last if all(same(value, last) for value in values) else None


def without_rounding(relation: Relation) -> str:
    r"""The exact part `x=\frac13` of `x=\frac13\approx0.33`; empty for other relations."""
    terms, operators = relation
    if operators[-1:] != ["\\approx"]:
        return ""
    return "".join(chain(*zip_longest(terms[:-1], operators[:-1], fillvalue="")))


def same_comparison(answer: Relation, target: Relation) -> bool:
    """Whether two equations or inequalities are multiples or rearrangements of each other."""
    if len(answer.operators) != 1 or len(target.operators) != 1:
        return False
    operator, target_operator = answer.operators[0], target.operators[0]
    if operator not in FLIPPED_OPERATORS or target_operator not in FLIPPED_OPERATORS:
        return False
    differences = [f"({terms[0]})-({terms[1]})" for terms, _ in (answer, target)]
    ratio = constant_ratio(*differences)
    return ratio != 0 and target_operator == (
        operator if ratio > 0 else FLIPPED_OPERATORS[operator]
    )


def same_sets(answer: str, target: str) -> bool | None:
    r"""Whether two texts are the same set of numbers. None unless both are sets, in one letter.

    A set is an inequality such as `1<=x<2`, `|x|<3` or `x\ne 2`, several of these, intervals,
    points, `\mathbb{R}`, and what `\cup` and `\setminus` make of them. Sets are the same if they
    have the same numbers at all their bounds and between these. A comma can mean `and` or `or`. A
    reading that gives the empty set, or all numbers although there are bounds, is discarded.
    """
    line = _NumberLine()
    is_proper = False
    for index in range(POINT_COUNT):
        try:
            answers, targets = line.memberships([answer, target], index)
        except (Unreadable, TooLarge):
            return None
        if len(line.letters) > 1:
            return None
        common_members = answers & targets
        if not common_members:
            return False
        # At this point some numbers are members and some are not, unless there is only one number.
        is_proper |= any(
            len(set(membership)) == min(2, len(membership)) for membership in common_members
        )
        if not line.point.letters:
            break
    return is_proper


class _NumberLine:
    """The bounds of sets in their order, and a number that is compared with them.

    Attributes:
        letters: The letters whose values the sets contain, as `x` in `x<5`.
        point: The values of letters in bounds.
        number: The position of the number: even at a bound, odd between two.
    """

    def __init__(self) -> None:
        self.letters: set[str] = set()
        self.point = Point()
        self.number = 0

    def memberships(self, texts: list[str], index: int) -> list[set[tuple[bool, ...]]]:
        """For each set, whether it has the numbers from the lowest to the highest.

        A comma may mean a union or an intersection, so there are two results.
        """
        self.index, self.bounds = index, dict(_INFINITIES)
        self.order: list[Value] = []
        for text in texts:
            self.contains(text, any)  # the result is not used: this collects the bounds
        self.order = sorted(set(self.bounds.values()))
        memberships = []
        for text in texts:
            results: set[tuple[bool, ...]] = set()
            for combine in (any, all):
                membership = []
                for number in range(1, 2 * len(self.order) - 2):
                    self.number = number
                    membership.append(self.contains(text, combine))
                results.add(tuple(membership))
            memberships.append(results)
        return memberships

    def contains(self, text: str, combine: Callable[[list[bool]], bool]) -> bool:
        """Whether a set contains the number. All its bounds are visited, to collect them.

        Args:
            text: The set.
            combine: The meaning of a comma: `any` for a union, `all` for an intersection.

        Raises:
            Unreadable: The text is not a set.
        """
        members, marks = split_outside_brackets(text, COMMAS)
        if marks:
            terms, operators = as_relation(members[0])
            if operators == ["\\ne"]:  # `x\ne 1,2` excludes both numbers, so all members must hold
                combine = all
                for index, member in enumerate(members):
                    if not as_relation(member).operators:
                        members[index] = f"{terms[0]}\\ne {member}"
            elif OR in marks:
                combine = any
            elif AND in marks:
                combine = all
            are_relations = all(as_relation(member).operators for member in members)
            if not are_relations or {OR, AND} <= set(marks):
                raise Unreadable("points, or both `and` and `or`")
            return combine([self.contains(member, combine) for member in members])
        pieces, operators = split_outside_brackets(text, SET_OPERATORS)
        if "\\setminus" in operators:
            full_set, *removed_sets = split_outside_brackets(text, frozenset(["\\setminus"])).pieces
            is_removed = [self.contains(piece, any) for piece in removed_sets]
            return self.contains(full_set, any) and not any(is_removed)
        if operators:
            return any([self.contains(piece, any) for piece in pieces])
        terms, operators = as_relation(text)
        if operators == ["\\in"] and _VARIABLE.fullmatch(terms[0]):
            self.letters.add(terms[0])
            return self.contains(terms[1], any)
        if len(terms) == 3:  # a chain such as `1<x<2` states two relations, and both must hold
            is_above = self.satisfies(terms[1], FLIPPED_OPERATORS.get(operators[0], ""), terms[0])
            return self.satisfies(terms[1], operators[1], terms[2]) and is_above
        if operators:
            return self.satisfies(terms[0], "".join(operators), terms[-1])
        if text == REALS:
            return True
        kind, inner = brackets(text)
        entries = split_outside_brackets(inner, frozenset(",;")).pieces
        if kind == "\\{\\}":
            return any([self.compares("=", entry) for entry in entries])
        if kind not in _END_OPERATORS or len(entries) != 2:
            raise Unreadable("no set")
        return all([*map(self.compares, _END_OPERATORS[kind], entries)])

    def satisfies(self, left_term: str, operator: str, right_term: str) -> bool:
        """Whether the number satisfies `x<5`, `5>x`, `-x<5` or `|x|<5`."""
        if not _SIGNED_VARIABLE.fullmatch(left_term):
            left_term, operator, right_term = (
                right_term,
                FLIPPED_OPERATORS.get(operator, ""),
                left_term,
            )
        if not _SIGNED_VARIABLE.fullmatch(left_term) or operator not in FLIPPED_OPERATORS:
            raise Unreadable("no comparison of a letter")
        self.letters.add(left_term.strip("-|"))
        is_satisfied = self.compares(operator, right_term)
        if left_term[0] not in "-|":
            return is_satisfied
        is_opposite = self.compares(FLIPPED_OPERATORS[operator], f"-({right_term})")
        if left_term[0] == "-":
            return is_opposite
        choose = any if operator in (">", "\\ge", "=") else all
        return choose([is_satisfied, is_opposite])

    def compares(self, operator: str, bound: str) -> bool:
        """Whether `number operator bound` is true."""
        is_closed = bound in _INFINITIES and operator not in ("<", ">")
        if is_closed or len(self.bounds) > MOST_BOUNDS:
            raise Unreadable("no number, or too many")
        if bound not in self.bounds:
            self.bounds[bound] = self.point.real_value(bound, self.index)
        position = 2 * bisect_left(self.order, self.bounds[bound])
        return bool(_COMPARISONS[operator](self.number, position))
