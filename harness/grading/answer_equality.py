"""Decide whether an answer is the gold answer: first by its shape, then by the values in it.

docs/grading.md and `tests/data/labelled_answers.yaml` give the rules with examples. In short:
`(1,2)`, `[1,2)` and `1,2` all differ. The order counts between brackets, but not in a bare list or
a set. Every element counts. A unit, a name (`x=`) or a percent sign may be left out, but must not
be a different one. The base of a numeral may be left out. Nothing is rounded.
"""

import re
from collections import Counter
from contextlib import suppress
from itertools import chain, product, starmap

from harness.grading.answer_elements import (
    COLONS,
    CONDITION_MARKS,
    MATRIX,
    coordinates,
    is_readable,
    names_unknowns,
    split_atoms,
    split_matrix,
    split_members,
    without_set_braces,
)
from harness.grading.notation import (
    in_plain_notation,
    read_brackets,
    readings,
    split_outside_brackets,
)
from harness.grading.quantities import integer_value, same_in_order, same_quantity, same_ratio
from harness.grading.relations import (
    ELEMENT_SEPARATORS,
    UNION_SIGNS,
    Relation,
    as_relation,
    defined_value,
    exact_part,
    is_multiple,
    same_comparison,
    same_sets,
)
from harness.grading.units_and_words import AND, OR, numbered_name, readable_words

_OPTION = re.compile(
    # `\text{(A) 5 cm}`, `\text{A. 5 cm}`
    r"\\text\{(?:\(([A-E])\)|([A-E])[.)]) ?([^{}]+)\}"
    # `(A) 5`, `\text{(A)}5`, `(A) five`, but not `(A)b`, which is a product
    r"|(?:\\text\{|\{)?\(([A-E])\) ?(?:\}|(?=\\(?:text|frac|sqrt)|\d|[A-Za-z]{3}))(.+)"
    # `A: 5`, `A) 5`, `A. 5`, but not `A.5`
    r"|(?:\\text\{)?([A-E])(?:[):]|\.(?!\d)) ?\}? ?(.+)"
)
"""A choice with its text: the groups that match are its letter and its text."""
_DATE = re.compile(r"\d{4}-(?:0\d|\d\d?-\d\d?)|\d\d?([/-])\d\d?\1\d{4}")
"""A date, such as 2020-05-01 or 5/1/2020, or the month 2020-05: not a difference or quotient."""
_SHORT_WORD = re.compile(r"[A-Za-z][aeiou][a-z]?|[A-Z][a-z]{2}")
"""A gold answer such as `no` or `low`: few products have a vowel as second letter."""
_DIGIT_GROUPS = re.compile(r"[1-9]\d?(?:,\d{3})+")
"""Matches `58,500`, `1,234,567`, which may be a number or a list."""
_SET_SIGNS = re.compile(r"[<>]|\\(?:le|ge|ne|in|cup|setminus|mathbb)(?![A-Za-z])")
r"""A sign of a set of numbers: `<` in `x<5`, `\cup` in `(1,2)\cup(3,4)`."""
SEVERAL_ANSWERS = re.compile(rf"\A[,;]|\A[A-Za-z]\Z|[{OR}{AND}]|\([A-E]\)|\b(?:or|and|not)\b")
"""In the text of an option, a sign of several answers: `,B`, `B`, `5 or 6`, `(B)`."""
_FURTHER_STATEMENT = re.compile(
    r"\\(?:text|not|n(?:less|gtr|exists|mid|leq|geq)|neg|lnot|exists|forall)(?![A-Za-z])"
)
"""Matches what says more than a value in a member of a chain: words, `\\neg`, or `\\nleq`."""


def same_mathematics(answer: str, target: str) -> bool:
    """Whether two answers that differ as text are the same mathematics.

    A choice with its text, such as `(B) 5`, is also the same as a target that is its letter or its
    text.

    Raises:
        TooLarge: One of them would take too much work to compare.
    """
    answer_readings = readings(answer, target)
    target_readings = readings(target, answer)
    # The target `58,500` may be a number or a list. The answer `500,58` is the same only as a list,
    # so it is not accepted: the order counts, as it does in a number.
    is_ambiguous = len(target_readings) > 1 and any(map(_DIGIT_GROUPS.fullmatch, target_readings))
    compare = _same_list if is_ambiguous else _same_answer
    if any(starmap(compare, product(answer_readings, target_readings))):
        return True
    option_match = _OPTION.fullmatch(in_plain_notation(answer))
    return option_match is not None and _same_option(option_match, target)


def _same_option(option_match: re.Match[str], target: str) -> bool:
    """Whether a choice with its text, such as `(B) 5`, is the target B or 5."""
    # only the groups of the alternative that matched have a text
    letter, option_text = filter(None, option_match.groups())
    # `(B) or (C)` leaves open which choice is meant
    if SEVERAL_ANSWERS.search(option_text):
        return False
    target_letter = readable_words(in_plain_notation(target))
    if target_letter and target_letter in "ABCDE":
        return bool(letter == target_letter)
    return same_mathematics(option_text, target)


def _same_answer(answer: str, target: str) -> bool:
    """Compare two texts in plain notation, each a list, a set or a single answer.

    The first of these rules that applies decides:

    - Equal texts are the same.
    - If only one text names unknowns, the texts are compared as points: `x=1,y=2` and `(1,2)`.
    - If both are sets of numbers, and one is a list, they are the same set: `x<1 or x>3`.
    - Alternatives of the same value are one answer: `1/2 or 0.5`.
    - The order counts in a sequence that is continued: `1,2,\\ldots`.
    - Otherwise every element of a list counts, but not their order. A single answer is a list of
      one element.
    """
    if answer == target:
        return True
    answers = split_members(answer)
    targets = split_members(target)
    if names_unknowns(answers) != names_unknowns(targets):
        # the order counts, because `x=1,y=2` is (1,2) and not (2,1)
        return same_in_order(coordinates(answers), coordinates(targets), _same_element)
    if max(len(answers), len(targets)) > 1:
        # `x<1 or x>3` is a set; the result is None for a list of numbers such as `1 or 3`
        are_same_sets = same_sets(without_set_braces(answer), without_set_braces(target))
        if are_same_sets is not None:
            return are_same_sets
    if OR in answer and len(targets) == 1:
        # one value is left if all alternatives are the same
        if all(_same_element(answers[0], alternative) for alternative in answers):
            return _same_element(answers[0], targets[0])
    if "\\ldots" in answer + target:
        return same_in_order(answers, targets, _same_element)
    return _same_in_any_order(answers, targets)


def _same_list(answer: str, target: str) -> bool:
    """Compare two lists in which the order counts."""
    return same_in_order(split_members(answer), split_members(target), _same_element)


def _same_in_any_order(answers: list[str], targets: list[str]) -> bool:
    """Compare two lists or sets in which only the number of equal elements counts."""
    if len(answers) != len(targets):
        return False
    # Equal texts match, and are taken away from both. Otherwise 5 could take the target `5 cm` from
    # another `5 cm`.
    unmatched_targets = [*(Counter(targets) - Counter(answers)).elements()]
    for answer in (Counter(answers) - Counter(targets)).elements():
        matching_target = next(
            (target for target in unmatched_targets if _same_element(answer, target)), None
        )
        if matching_target is None:
            return False
        unmatched_targets.remove(matching_target)
    return True


def _same_element(answer: str, target: str) -> bool:
    """Compare two elements of lists. Neither has a comma outside its brackets.

    Each comparison is for one kind of elements, and returns None for other kinds. The first result
    that is not None decides.
    """
    # `+\infty` is another spelling of `\infty`
    answer, target = (
        "\\infty" if element == "+\\infty" else element for element in (answer, target)
    )
    if answer == target:
        return True
    # of `\frac13\approx0.33` only the exact part is compared
    exact_answer = exact_part(answer)
    exact_target = exact_part(target)
    if exact_answer or exact_target:
        return _same_element(exact_answer or answer, exact_target or target)
    for compare in (_same_set, _same_relation, _same_date, _same_words, _same_union, _same_matrix):
        are_same = compare(answer, target)
        if are_same is not None:
            return are_same
    return _same_entries(answer, target)


def _same_set(answer: str, target: str) -> bool | None:
    """Compare two sets of numbers, such as `x<5` and `(-\\infty,5)`; None for other texts."""
    return same_sets(answer, target) if _SET_SIGNS.search(answer + target) else None


def _same_date(answer: str, target: str) -> bool | None:
    """Compare with a gold answer that is a date; None if it is not. May is written 05 or 5."""
    if not _DATE.fullmatch(target):
        return None
    return re.sub(r"\b0", "", answer) == re.sub(r"\b0", "", target)


def _same_words(answer: str, target: str) -> bool | None:
    """Compare two texts of words, or two words with a number, such as `Room 101`.

    None for other texts. Two texts of letters are words if one has `\\text`, if both have more than
    three letters, or if the gold answer looks like `no`. Otherwise they may be products, as `abc`.
    """
    answer_words = readable_words(answer)
    target_words = readable_words(target)
    are_words = "\\text" in answer + target or min(len(answer), len(target)) > 3
    if None not in (answer_words, target_words) and (are_words or _SHORT_WORD.fullmatch(target)):
        return answer_words == target_words
    answer_name = numbered_name(answer)
    target_name = numbered_name(target)
    return None if None in (answer_name, target_name) else answer_name == target_name


def _same_union(answer: str, target: str) -> bool | None:
    """Compare the members of two unions in any order; None if neither text is a union."""
    members = split_outside_brackets(answer, UNION_SIGNS).pieces
    target_members = split_outside_brackets(target, UNION_SIGNS).pieces
    if max(len(members), len(target_members)) == 1:
        return None
    return _same_in_any_order(members, target_members)


def _same_entries(answer: str, target: str) -> bool:
    """Compare two elements of a list of which neither is a relation, a matrix or words.

    The first of these rules that applies decides:

    - Two sets in braces are compared by their members in any order. If both are given by a
      condition, `\\{x|x<5\\}`, their elements and their conditions are compared.
    - Tuples and intervals need equal brackets, and equal entries in the same order.
    - Ratios such as 3:2 are compared by their quotients.
    - Other texts are compared as quantities.
    """
    answer_brackets, answer_content = read_brackets(answer)
    target_brackets, target_content = read_brackets(target)
    if answer_brackets == target_brackets == "\\{\\}":
        members = split_members(answer)
        target_members = split_members(target)
        if members != [answer] or target_members != [target]:
            return _same_in_any_order(members, target_members)
        # neither set was split, so both are given by a condition after the element: `\{x|x<5\}`
        pieces = split_outside_brackets(answer_content, CONDITION_MARKS).pieces
        target_pieces = split_outside_brackets(target_content, CONDITION_MARKS).pieces
        return same_in_order(pieces, target_pieces, _same_answer)
    # a text without brackets has one entry, because an element of a list has no comma outside them
    entries = split_outside_brackets(answer_content, ELEMENT_SEPARATORS).pieces
    target_entries = split_outside_brackets(target_content, ELEMENT_SEPARATORS).pieces
    # square brackets count around a single entry too: `[5]` is not 5, but `(5)` is
    if max(len(entries), len(target_entries)) > 1 or "[" in answer_brackets + target_brackets:
        if answer_brackets != target_brackets:
            return False
        return same_in_order(entries, target_entries, _same_answer)
    terms = split_outside_brackets(answer, COLONS).pieces
    target_terms = split_outside_brackets(target, COLONS).pieces
    if max(len(terms), len(target_terms)) > 1:
        return same_ratio(terms, target_terms)
    return same_quantity(answer, target)


def _same_relation(answer_text: str, target_text: str) -> bool | None:
    """Compare two relations, or a relation with a value; None if neither text is a relation.

    Relations are the same if their operators and terms are, or if they are multiples of each other.
    """
    answer = as_relation(answer_text)
    target = as_relation(target_text)
    if not answer.operators and not target.operators:
        return None
    if not target.operators:
        return _states_value(answer, target_text, relation_is_answer=True)
    if not answer.operators:
        return _states_value(target, answer_text, relation_is_answer=False)
    if answer.operators == target.operators and all(map(_same_answer, answer.terms, target.terms)):
        return True
    return same_comparison(answer, target)


def _states_value(relation: Relation, expected_value: str, *, relation_is_answer: bool) -> bool:
    """Whether a relation states the expected value: `x=5` and `2+3=5` state 5.

    An equation that is an answer also states its right side if its left side has no known value.
    """
    value = defined_value(relation, _may_agree_in_chain, may_be_combined=relation_is_answer)
    if value is not None and _same_answer(value, expected_value):
        return True
    terms, operators = relation
    if operators != ["="] or not relation_is_answer:
        return False
    # `a\star b=x` states x, because the grader cannot read `a\star b`
    return _may_agree_in_chain(*terms) and _same_answer(terms[1], expected_value)


def _may_agree_in_chain(term: str, last_term: str) -> bool:
    """Whether a term of a chain such as `2+3=5` agrees with the last term.

    A term agrees if it is the same, or if the grader cannot read it. It disagrees if it is readable
    and differs, if its brackets do not match, if it says more than a value, or if it is a multiple
    of a name.
    """
    # `101_2=5` converts a numeral; a term that is not an integer is compared below
    with suppress(ValueError):
        return integer_value(term) == integer_value(last_term)
    if _same_answer(term, last_term):
        return True
    # brackets that do not match, as in `1)+(2`, would pair with the ones that are put around them
    bracket_pair, _ = read_brackets(f"({term})")
    if bracket_pair != "()" or _FURTHER_STATEMENT.search(term) or is_multiple(term):
        return False
    return not any(map(is_readable, split_atoms(term)))


def _same_matrix(answer: str, target: str) -> bool | None:
    """Compare two matrices or determinants by their brackets, sizes and entries.

    None if neither text is a matrix.
    """
    matrix_matches = [*filter(None, map(MATRIX.fullmatch, (answer, target)))]
    if not matrix_matches:
        return None
    # a matrix is different from a text that is not one
    if len(matrix_matches) == 1:
        return False
    bracket_kinds = {matrix_match["kind"] for matrix_match in matrix_matches}
    # a factor before a determinant multiplies its value, not its entries
    is_scaled_determinant = any(
        matrix_match["factor"] and matrix_match["kind"] in ("v", "V")
        for matrix_match in matrix_matches
    )
    # Parentheses, brackets and no brackets mean the same. Bars (v, V) and braces (B) do not.
    if is_scaled_determinant or (len(bracket_kinds) > 1 and bracket_kinds & set("vVB")):
        return False
    answer_rows, target_rows = map(split_matrix, matrix_matches)
    if [*map(len, answer_rows)] != [*map(len, target_rows)]:
        return False
    return all(map(_same_answer, chain(*answer_rows), chain(*target_rows)))
