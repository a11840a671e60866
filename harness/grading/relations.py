"""Read equations, inequalities and sets of numbers in plain notation.

`x=5` states a value, and `x<5` and `x\\ne 5` state the set in which a value lies. This module finds
the value, and compares the sets. `harness.grading.answer_equality` compares all other answers.
"""

import re
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from math import inf
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from harness.grading.formula import TooLarge, Unreadable, Value
from harness.grading.formula_values import (
    POINT_COUNT,
    Evaluator,
    approximate,
    constant_ratio,
    has_letters,
)
from harness.grading.notation import read_brackets, split_outside_brackets
from harness.grading.units_and_words import AND, HEDGES, OR


class Relation(NamedTuple):
    """The terms of a relation and the operators between them."""

    terms: list[str]
    operators: list[str]


OPERATORS = frozenset(
    r"""
    = < > \le \ge \ne \in \notin \approx \equiv \sim \simeq \cong \to \Rightarrow
    \mapsto \iff \subset \subseteq \propto \perp \parallel \Leftrightarrow
    """.split()
)
FLIPPED_BY_OPERATOR = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "=": "=", "\\ne": "\\ne"}
"""Each operator, and the one that means the same after both terms are exchanged."""
MOST_BOUNDS = 15
"""Most bounds of two sets together, of which the three names of infinity count too. The cost is
quadratic in this number. Longer unions and lists are compared member by member."""
ELEMENT_SEPARATORS = frozenset([",", ";", OR, AND])
REALS = "\\mathbb{R}"
UNION_SIGNS = frozenset(["\\cup"])
DIFFERENCE_SIGNS = frozenset(["\\setminus"])
SET_OPERATORS = UNION_SIGNS | DIFFERENCE_SIGNS
_OPERATORS_BY_BRACKETS = {
    "()": (">", "<"),
    "(]": (">", "\\le"),
    "[)": ("\\ge", "<"),
    "[]": ("\\ge", "\\le"),
}
"""How the numbers of an interval compare with its lower end, and with its upper end."""
_COMPARISON_BY_OPERATOR = dict(zip(FLIPPED_BY_OPERATOR, (lt, gt, le, ge, eq, ne), strict=True))
_INFINITY_BY_NAME = {"\\infty": inf, "+\\infty": inf, "-\\infty": -inf}

_LETTER = r"(?:[A-Za-z]|\\[A-Za-z]+ ?)(?:_(?:\d+|\w|\{(?:\\text\{)?[^{}]*\}{1,2}))?'*"
r"""A letter for an unknown, with its index and primes: `x`, `\theta`, `x_{\text{max}}`, `f'`."""
_FIGURE_OR_WORDS = (
    r"(?:\\(?:angle|triangle) ?)?[A-Z]{1,4}|\\over(?:line|rightarrow)\{[A-Z]+\}|\\text\{[^{}]*\}"
)
r"""A name of a figure, or words: `AB`, `\angle ABC`, `\overline{AB}`, `\text{area}`."""
_NAME = rf"(?:{_LETTER}|{_FIGURE_OR_WORDS})"
r"""A simple name of a quantity: `x`, `AB`, `\text{area}`."""
_ARGUMENT = rf"(?:{_NAME}|-?\d+)"
"""An argument of an unknown function: `x`, `-2`."""
_CALL = rf"(?:[fghpqFGHPQ]'*\([^()]*\)|{_LETTER}\({_ARGUMENT}(?:,{_ARGUMENT})*\))"
"""A value of an unknown function, which is unknown itself: `f(x+1)`, `a(2)`, `P(A,B)`."""
_INVERSE = r"(?:[A-Z]\^\{-1\}|[fgh]\^\{-1\}(?:\([^()]*\))?)"
"""An inverse, which names a quantity although it looks like a power: `A^{-1}`, `f^{-1}(x)`."""
_FUNCTION = rf"\\(?:sin|cos|tan|cot|sec|csc) ?(?:\d*{_NAME}|\([^()]*[A-Za-z][^()]*\))"
r"""A function of an unknown angle: `\sin A`, `\cos 2x`, `\tan(A+B)`, but not `\sin(30)`."""
_QUANTITY = rf"(?:{_CALL}|{_INVERSE}|{_NAME}|\|{_NAME}\||{_FUNCTION})"
r"""What a question may ask for, in any of these forms: `f(x)`, `A^{-1}`, `AB`, `|z|`, `\sin A`."""
_VARIABLE = re.compile(rf"{_CALL}|{_LETTER}")
"""An unknown number: `x`, `f(x)`."""
_SIGNED_VARIABLE = re.compile(rf"-?(?:{_CALL}|{_LETTER})|\|[A-Za-z]\|")
"""The side of an inequality that has the unknown number: `x`, `-x`, `|x|`."""
_NAMED_QUANTITY = re.compile(
    rf"{_QUANTITY}|\[[A-Z]{{3,6}}\]|\((?:{_NAME},)+{_NAME}\)|{_NAME}(?::{_NAME})+"
    r"|\\frac\{[A-Z]{2}\}\{[A-Z]{2}\}"
)
r"""A left side that only names a value: `f(x)`, `[ABC]` (an area), `(x,y)`, `AB:BC`,
`\frac{AB}{CD}`."""
_MULTIPLE = re.compile(r"(?:-|-?(?:\d+|\\frac(?:\d\d|\{\d+\}\{\d+\}))\*?)m?(.+)")
"""A sign or a number before a name: `-\\angle A`, `\\frac{1}{2}m\\angle B`."""
_STRUCTURE_COMMAND = re.compile(r"\\frac ?\d?|\\(?:sqrt|angle|triangle|over(?:line|rightarrow)) ?")
"""Commands that combine or mark unknowns and are not unknowns themselves."""
_COEFFICIENT = re.compile(r"\A-|(?<![\^_\d])\d+\*?(?=[A-Za-z(\\|])")
"""A sign in front, or a number before an unknown: `2x`, `3(a+b)`; not the exponent of `a^2b`."""
_NOT_A_NAME = re.compile(
    r"\\(?:pi|infty|degree|not|nless|ngtr|nexists|exists|forall|neg|lnot|sqrt|frac|binom"
    r"|sum|prod|int|lim|ln|lg|log|exp|sinh|cosh|tanh|arc[a-z]+)(?![A-Za-z])"
)
r"""Commands that have a value or compute one, and so do not name an unknown: `\pi`, `\sqrt`."""
_HEDGE_IN_TEXT = re.compile(rf"\\text\{{[^{{}}]*\b(?:{HEDGES})\b")
r"""Words that change what an equation states: `\text{not x}`, `\text{at least}`."""
_BRACKETED_ARGUMENTS = re.compile(r"\([^()]*\)")
r"""The arguments of a name, in which words change nothing: `(\text{no two})` in
`P(\text{no two})`."""


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
    return not _HEDGE_IN_TEXT.search(_BRACKETED_ARGUMENTS.sub("", text))


def is_multiple(text: str) -> bool:
    r"""Whether a left side is a multiple of what it names, such as `2\angle A` or `-f^{-1}(x)`."""
    match = _MULTIPLE.fullmatch(text)
    return match is not None and is_name(match[1])


def _is_combination(text: str) -> bool:
    r"""Whether a left side combines several unknowns without coefficients, such as `xy+yz`.

    A question may ask for its value. With a coefficient, as in `2x+y=4`, it is usually a side of an
    equation that was to be solved.
    """
    text_of_unknowns = _STRUCTURE_COMMAND.sub("", text)
    return (
        "\\text" not in text_of_unknowns
        and len({*_VARIABLE.findall(text_of_unknowns)}) > 1
        and not _COEFFICIENT.search(text_of_unknowns)
        and not _NOT_A_NAME.search(text_of_unknowns)
    )


def defined_value(
    relation: Relation, are_same: Callable[[str, str], bool], *, may_be_combined: bool
) -> str | None:
    """The value that a chain of equations states: 5 for `x=5`, `5=x`, `x=2+3=5` and `2+3=5`.

    It is the last term, if all other terms are the same. These terms are not compared: a name at
    the beginning; formulas with letters between a name and a number, as `2x+1` in `y=2x+1=7`. None
    if the terms differ, or the relation is not a chain of equations.

    Args:
        relation: Its terms and operators.
        are_same: Compares two texts. All terms that a chain sets equal must be the same.
        may_be_combined: Whether `x+y=5` also states a value. It is False for a gold answer, where
            `x+y=5` is the equation of a line.
    """
    terms, operators = relation
    if set(operators) != {"="}:
        return None

    def is_named(term: str) -> bool:
        return is_name(term) or (may_be_combined and _is_combination(term))

    # the equation `5=x` is exchanged, so that its value is the last term
    if len(terms) == 2 and is_named(terms[1]) and not is_named(terms[0]):
        terms = terms[::-1]
    # these must be the same as the last term: all others, except those without a known value
    *compared_terms, last_term = terms
    if is_named(terms[0]):
        del compared_terms[0]
        if compared_terms and approximate(last_term) is not None:
            # in `y=2x+1=7` the letters of `2x+1` have no known values, so it is not compared with 7
            compared_terms = [
                term
                for term in compared_terms
                if _VARIABLE.fullmatch(term) or not has_letters(term)
            ]
    return last_term if all(are_same(term, last_term) for term in compared_terms) else None


def exact_part(text: str) -> str:
    r"""The exact part `x=\frac13` of `x=\frac13\approx0.33`; empty for other texts."""
    terms, operators = as_relation(text)
    if operators[-1:] != ["\\approx"]:
        return ""
    return "".join(chain(*zip_longest(terms[:-1], operators[:-1], fillvalue="")))


def same_comparison(answer: Relation, target: Relation) -> bool:
    """Whether two equations or inequalities are multiples or rearrangements of each other.

    They are if the differences of their sides have a constant ratio: `2x=2y` is `x=y`, because
    `2x-2y` is 2 times `x-y`. A negative ratio must exchange `<` and `>`: `-x<-5` is `x>5`. Chains
    are never compared so.
    """
    if len(answer.operators) != 1 or len(target.operators) != 1:
        return False
    operator = answer.operators[0]
    target_operator = target.operators[0]
    if operator not in FLIPPED_BY_OPERATOR or target_operator not in FLIPPED_BY_OPERATOR:
        return False
    differences = [f"({terms[0]})-({terms[1]})" for terms, _ in (answer, target)]
    ratio = constant_ratio(*differences)
    return ratio != 0 and target_operator == (
        operator if ratio > 0 else FLIPPED_BY_OPERATOR[operator]
    )


def same_sets(answer: str, target: str) -> bool | None:
    r"""Whether two texts are the same set of numbers. None unless both are sets, in one letter.

    A set is an inequality such as `1<=x<2`, `|x|<3` or `x\ne 2`, several of these, intervals,
    points, `\mathbb{R}`, and what `\cup` and `\setminus` make of them. Sets are the same if they
    have the same numbers at all their bounds and between these. If a bound has a letter, as in
    `x<a`, this must hold at several points, which give the letter different values.

    A comma can mean `and` or `or`, so a set can have two readings, and one that both sets have is
    enough. Every point is tested by itself, so it may be another reading than at the other points.
    At one point it must be proper. Elsewhere the sets may be empty, as `a<x<b` is where a is above
    b.
    """
    number_line = _NumberLine()
    has_proper_reading = False
    for point_index in range(POINT_COUNT):
        try:
            common_readings = number_line.find_common_readings(point_index, answer, target)
        except (Unreadable, TooLarge):
            return None
        if not common_readings:
            return False
        if any(map(_is_proper, common_readings)):
            has_proper_reading = True
        # bounds without letters are the same at every point
        if not number_line.evaluator.letters:
            break
    return has_proper_reading


Reading = tuple[bool, ...]
"""For each tested number, whether a set contains it in one meaning of its commas."""


def _is_proper(reading: Reading) -> bool:
    r"""Whether a reading shows that two sets are the same: it has some numbers and lacks others.

    The empty set, or all numbers although there are bounds, may come from the wrong meaning of a
    comma. Without bounds, as in `\mathbb{R}`, a single number is tested, and all are meant.
    """
    return len(reading) == 1 or len(set(reading)) == 2


Combination = Callable[[Iterable[bool]], bool]
"""How the members of a set are combined: `any` for a union, `all` for an intersection."""
Membership = Callable[[int], bool]
"""Whether a set contains the number at a position of a `_NumberLine`."""


def _combine(combination: Combination, memberships: Iterable[Membership]) -> Membership:
    """The membership of a union or an intersection of sets."""
    # a list, because an iterator could not be used again for the next position
    membership_list = [*memberships]
    return lambda position: combination(contains(position) for contains in membership_list)


class _NumberLine:
    """The bounds of sets in their order, and the numbers at and between them.

    A set is read before it is tested: the `read_` methods collect its bounds and return its
    membership. The positions exist only after all sets have been read. Position 0 is at the lowest
    bound, 1 between it and the next bound, 2 at the next bound, and so on.

    Attributes:
        letters: The letters whose values the sets contain, as `x` in `x<5`.
        evaluator: Computes the bounds, which may contain further letters.
        point_index: The point of the evaluator, which gives these letters their values.
        value_by_bound: The value of each bound by its text.
        bounds: The values in ascending order, from minus infinity to infinity.
    """

    def __init__(self) -> None:
        self.letters: set[str] = set()
        self.evaluator = Evaluator()

    def find_common_readings(self, point_index: int, *set_texts: str) -> set[Reading]:
        """The readings that all sets have at a point.

        A number is tested at each bound and between neighbouring bounds. Each meaning of a comma
        gives a reading of a set. If a text has no comma, both meanings give the same one.

        Raises:
            Unreadable: A text is not a set, or the sets have different letters, as `x<5` and `y<5`.
        """
        self.point_index = point_index
        self.value_by_bound = dict(_INFINITY_BY_NAME)
        memberships_by_set = [
            [self.read_set(set_text, comma_meaning) for comma_meaning in (any, all)]
            for set_text in set_texts
        ]
        if len(self.letters) > 1:
            raise Unreadable("different letters")
        self.bounds: list[Value] = sorted(set(self.value_by_bound.values()))
        # Bound i has the position 2 * i. The first and last bounds are infinities, not numbers.
        positions = range(1, 2 * len(self.bounds) - 2)
        readings_by_set = [
            {tuple(map(contains, positions)) for contains in memberships}
            for memberships in memberships_by_set
        ]
        return set.intersection(*readings_by_set)

    def read_set(self, text: str, comma_meaning: Combination = any) -> Membership:
        """Read a list, a difference, a union, a relation, all real numbers, or an interval.

        The first of these that fits decides.

        Args:
            text: The set.
            comma_meaning: How members between commas are combined.

        Raises:
            Unreadable: The text is not a set.
        """
        members, separators = split_outside_brackets(text, ELEMENT_SEPARATORS)
        if separators:
            return self.read_list(members, separators, comma_meaning)
        first_set, *removed_sets = split_outside_brackets(text, DIFFERENCE_SIGNS).pieces
        if removed_sets:
            is_removed = _combine(any, map(self.read_set, removed_sets))
            is_in_first_set = self.read_set(first_set)
            return lambda position: is_in_first_set(position) and not is_removed(position)
        united_sets = split_outside_brackets(text, UNION_SIGNS).pieces
        if len(united_sets) > 1:
            return _combine(any, map(self.read_set, united_sets))
        relation = as_relation(text)
        if relation.operators:
            return self.read_relation(relation)
        return (lambda position: True) if text == REALS else self.read_interval(text)

    def read_list(
        self, members: list[str], separators: list[str], combination: Combination
    ) -> Membership:
        r"""Read a list of relations.

        The first of these rules that applies decides how they are combined:

        - A list that begins with `x\ne 1` is an intersection: `x\ne 1,2` excludes both numbers.
        - `or` makes a union, and `and` an intersection.
        - A list that is separated by commas alone has the combination that is given.

        Args:
            members: The relations.
            separators: The separators between them.
            combination: How members between commas are combined.

        Raises:
            Unreadable: It is a list of points, or has both `and` and `or`.
        """
        first_member = as_relation(members[0])
        if first_member.operators == ["\\ne"]:
            # `x\ne 1,2` is written as `x\ne 1` and `x\ne 2`
            combination = all
            members = [
                member if as_relation(member).operators else f"{first_member.terms[0]}\\ne {member}"
                for member in members
            ]
        elif OR in separators:
            combination = any
        elif AND in separators:
            combination = all
        are_relations = all(as_relation(member).operators for member in members)
        if not are_relations or {OR, AND} <= set(separators):
            raise Unreadable("points, or both `and` and `or`")
        return _combine(combination, map(self.read_set, members))

    def read_relation(self, relation: Relation) -> Membership:
        """Read a relation of a letter: `x<5`, `1<x<2` or `x\\in [1,2)`."""
        terms, operators = relation
        if operators == ["\\in"] and _VARIABLE.fullmatch(terms[0]):
            self.letters.add(terms[0])
            return self.read_set(terms[1])
        # the chain `1<x<2` states `x>1` and `x<2`
        if len(terms) == 3:
            flipped_operator = FLIPPED_BY_OPERATOR.get(operators[0], "")
            memberships = [
                self.read_comparison(terms[1], flipped_operator, terms[0]),
                self.read_comparison(terms[1], operators[1], terms[2]),
            ]
            return _combine(all, memberships)
        if len(terms) > 3:
            raise Unreadable("more than two comparisons")
        return self.read_comparison(terms[0], operators[0], terms[1])

    def read_interval(self, text: str) -> Membership:
        """Read the interval `[1,2)` or the set `\\{1,2\\}`.

        Raises:
            Unreadable: The text is neither.
        """
        bracket_pair, content = read_brackets(text)
        entries = split_outside_brackets(content, frozenset(",;")).pieces
        if bracket_pair == "\\{\\}":
            return _combine(any, (self.read_bound("=", entry) for entry in entries))
        if bracket_pair not in _OPERATORS_BY_BRACKETS or len(entries) != 2:
            raise Unreadable("no set")
        return _combine(all, map(self.read_bound, _OPERATORS_BY_BRACKETS[bracket_pair], entries))

    def read_comparison(self, left_term: str, operator: str, right_term: str) -> Membership:
        """Read a comparison of a letter, which bounds it on one side or on both.

        `5>x` is `x<5`, `-x<5` is `x>-5`, and `|x|<5` is `x<5` and `x>-5`.
        """
        # the side with the unknown becomes the left one
        if not _SIGNED_VARIABLE.fullmatch(left_term):
            left_term, right_term = right_term, left_term
            operator = FLIPPED_BY_OPERATOR.get(operator, "")
        if not _SIGNED_VARIABLE.fullmatch(left_term) or operator not in FLIPPED_BY_OPERATOR:
            raise Unreadable("no comparison of a letter")
        self.letters.add(left_term.strip("-|"))
        membership = self.read_bound(operator, right_term)
        # `x<5` has only this bound
        if left_term[0] not in "-|":
            return membership
        opposite_membership = self.read_bound(FLIPPED_BY_OPERATOR[operator], f"-({right_term})")
        # `-x<5` is `x>-5`, so only the opposite bound counts
        if left_term[0] == "-":
            return opposite_membership
        # `|x|>5` holds on one side or the other, `|x|<5` only where both sides hold
        combination = any if operator in (">", "\\ge", "=") else all
        return _combine(combination, [membership, opposite_membership])

    def read_bound(self, operator: str, bound: str) -> Membership:
        """Read the set of the numbers for which `number operator bound` is true.

        Raises:
            Unreadable: The bound is not a number, or there are more than `MOST_BOUNDS`.
        """
        # a set of numbers may extend to infinity, as in `x<\infty`, but does not contain it
        if bound in _INFINITY_BY_NAME and operator not in ("<", ">"):
            raise Unreadable("no number")
        if bound not in self.value_by_bound:
            self.value_by_bound[bound] = self.evaluator.real_value(bound, self.point_index)
        if len(self.value_by_bound) > MOST_BOUNDS:
            raise Unreadable("too many bounds")
        value = self.value_by_bound[bound]
        compare = _COMPARISON_BY_OPERATOR[operator]
        # the bound with the index i among the sorted ones has the position 2 * i
        return lambda position: compare(position, 2 * self.bounds.index(value))
