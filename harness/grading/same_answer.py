"""Decide whether an answer is the gold answer: first by its shape, then by the values in it.

docs/grading.md and `tests/data/labelled_answers.yaml` give the rules with examples. In short:
`(1,2)`, `[1,2)` and `1,2` all differ. The order counts between brackets, but not in a bare list or
a set. Every element counts. A unit, a name (`x=`) or a percent sign may be left out, but must not
be a different one. The base of a numeral may be left out. Nothing is rounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain, pairwise, product, starmap, zip_longest

from harness.grading.extract_answer import (
    LONGEST_ANSWER,
    TOO_LONG,
    Grade,
    GradeJob,
    Verdict,
    read_answer,
)
from harness.grading.formula import DEEPEST, TooLarge, blame_gold_answer
from harness.grading.notation import ROW_END, brackets, plain, readings, split_outside_brackets
from harness.grading.relations import (
    Relation,
    as_range,
    as_relation,
    as_sets,
    defined_value,
    exact_and_rounded,
    flipped,
    intervals,
    is_name,
    same_comparison,
)
from harness.grading.units_and_words import (
    AND,
    OR,
    agree,
    number_word,
    readable_words,
    without_unit,
)
from harness.grading.values import approximate, begin_comparison, has_value, same_values

GRADER_VERSION = 6
"""Goes up whenever a verdict can change."""
MOST_RELATIONS = 20
"""Equals signs in a chain such as `a=b=c`, because each term is compared with the last term."""
MOST_SIGNS = 4
"""Plus-minus signs in one element of a list, because each doubles the values to compare."""

_BASED = re.compile(
    r"[({]?([A-F]*\d[0-9A-F]*|[A-F]{2,})[)}]?"
    r"_(?:\{\(?(\d+|[a-z]+)\)?\}|\{?\\text\{([a-z-]+)\}\}?|\(?(\d+)\)?)"
)
_BUILDER = re.compile(r"([A-Za-z])(?:\\in ?\\mathbb\{R\})?[|:](?=.*\1)")
_NAMES = re.compile(r"\\(?:angle|triangle|overline|overrightarrow|widehat|square)|[A-Z]{2,}\Z")
_MATRIX = re.compile(
    r"(?P<factor>-?[^-+&]*?)(?P<bracket>[(\[]?)"
    r"\\begin\{(?P<kind>[pbvBV]?|small)(?P<name>matrix|array)\}(?:\{[lcr|]+\})?"
    r"(?P<rows>.*)\\end\{(?P=kind)(?P=name)\}[)\]]?",
    re.DOTALL,
)
_SYMBOLS = ("\\infty", "-\\infty", "+\\infty", "\\ldots", "\\emptyset")
_LETTERS_AS_TEXT = re.compile(r"(?<=[\d}])\\text\{([A-Za-z]+)\}\Z")
_COMMAS, _COLONS = frozenset([",", ";", OR, AND]), frozenset(":")
_ROWS, _CELLS = frozenset(ROW_END), frozenset("&")
_OPTION = re.compile(
    r"\\text\{\(([A-E])\) ?([^{}]+)\}"
    r"|(?:\\text\{|\{)?\(([A-E])\) ?(?:\}|(?=\\(?:text|frac|sqrt)|\d|[A-Za-z]{3}))(.+)"
)
_SEVERAL = re.compile(rf"\A[,;]|\A[A-Za-z]\Z|[{OR}{AND}]|\([A-E]\)|\b(?:or|and|not)\b")
_SAYS_MORE = re.compile(
    r"\\(?:text|not|n(?:less|gtr|exists|mid|leq|geq)|neg|lnot|exists|forall)(?![A-Za-z])"
)
"""In a member of a chain: words, a negation, or another relation."""
_CLOCK = re.compile(r"\d\d?(?::[0-5]\d)+")
_HALF_DAY = re.compile(r"\\text\{[ap]m\}\Z")


def grade(
    completion: str, target: str, *, finish_reason: str | None = None, line: bool = False
) -> Grade:
    """Grade a completion in this process.

    For many completions, use `GraderPool`: it grades in parallel, in processes that can be killed.

    Args:
        completion: The text that the model wrote, without the prompt.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's finish reason, if known.
        line: Whether the answer is the first line instead of the content of the last box.
    """
    job = GradeJob(completion=completion, target=target, finish_reason=finish_reason, line=line)
    answer = read_answer(job)
    return answer if isinstance(answer, Grade) else compare(answer, target)


def compare(answer: str, target: str) -> Grade:
    """Grade the content of a box against the gold answer.

    The length of the texts bounds the cost. Even so, text of a model is compared only in worker
    processes, because it is easier to state a bound than to keep it.

    Args:
        answer: The result of `read_answer`.
        target: The gold answer, as it would stand in a box.

    Raises:
        MemoryError: The worker, which knows its limit, handles this error.
    """
    verdict: Verdict
    reason = None
    begin_comparison()
    try:
        verdict = "correct" if _is_gold_answer(answer, target) else "incorrect"
    except TooLarge as error:
        verdict, reason = "refused", str(error)
    except MemoryError:
        raise
    except Exception as error:  # a bug of the grader must not pass for a wrong answer
        verdict, reason = "crashed", type(error).__name__
    return Grade(verdict=verdict, answer=answer[:LONGEST_ANSWER], reason=reason)


def _is_gold_answer(answer: str, target: str) -> bool:
    if answer == target:
        return True
    is_short = max(len(answer), len(target)) <= LONGEST_ANSWER
    if is_short and plain(answer) == plain(target):
        return True
    _check_size(answer)
    with blame_gold_answer():
        _check_size(target)
    return same_mathematics(answer, target)


def _check_size(text: str) -> None:
    """Raise `TooLarge` if an answer would take too much work to compare."""
    if len(text) > LONGEST_ANSWER:
        raise TooLarge(TOO_LONG)
    text = plain(text)
    if len(text) > LONGEST_ANSWER:  # one character may stand for many
        raise TooLarge(TOO_LONG)
    if text.count("=") > MOST_RELATIONS:
        raise TooLarge(f"more than {MOST_RELATIONS} equals signs")
    depths = accumulate((character in "([{") - (character in ")]}") for character in text)
    if max(depths, default=0) > DEEPEST:
        raise TooLarge(f"nested deeper than {DEEPEST}")


def describe_gold(target: str) -> str | None:
    """Say why the grader cannot compare an answer with this gold answer; None if it can."""
    begin_comparison()
    try:
        with blame_gold_answer():
            _check_size(target)
        is_readable = all(map(_has_value, _atoms(plain(target))))
    except TooLarge as error:
        return str(error)
    return None if is_readable else "not read as mathematics"


def same_mathematics(answer: str, target: str) -> bool:
    """Whether two answers that differ as text are the same mathematics.

    Raises:
        TooLarge: One of them would take too much work to compare.
    """
    answers, targets = readings(answer, target), readings(target, answer)
    same = _same_answer
    if _looks_grouped(answers) or _looks_grouped(targets):
        same = _same_list  # 58,500 is hardly 500 and 58
    if any(starmap(same, product(answers, targets))):
        return True
    option = _OPTION.fullmatch(plain(answer))
    if not option:
        return False
    letter, text = filter(None, option.groups())
    if _SEVERAL.search(text):
        return False
    target_letter = readable_words(plain(target))
    if target_letter and target_letter in "ABCDE":
        return bool(letter == target_letter)
    return same_mathematics(text, target)


def _looks_grouped(texts: list[str]) -> bool:
    """Whether a text with these readings may be a single number such as 58,500, or two numbers."""
    return len(texts) > 1 and any(re.fullmatch(r"[1-9]\d?(?:,\d{3})+", text) for text in texts)


def _atoms(text: str) -> Iterator[str]:
    """Split an answer at its commas, brackets and signs of relation, down to single values."""
    pieces: list[str] = []
    for member in _members(text):
        for term in as_relation(member)[0]:
            for interval in intervals(term):
                pieces += _entries(interval)
    if pieces == [text]:
        yield text
    else:
        yield from chain.from_iterable(map(_atoms, pieces))


def _entries(text: str) -> list[str]:
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return [*chain.from_iterable(_matrix_rows(matrix))]
    kind, inner = brackets(text)
    return split_outside_brackets(inner, _COMMAS if kind else _COLONS)[0]


def _has_value(atom: str) -> bool:
    is_text = readable_words(atom) or is_name(atom) or _NAMES.match(atom)
    if is_text or _BASED.fullmatch(atom) or atom in _SYMBOLS:
        return True
    return has_value(without_unit(atom)[0])


def _same_answer(answer: str, target: str) -> bool:
    """Compare two texts in plain notation, each a list, a set or a single answer."""
    if answer == target:
        return True
    answers, targets = _members(answer), _members(target)
    if _names_unknowns(answers) != _names_unknowns(targets):
        # x=1,y=2 is (1,2) and 1,2, in this order
        return _same_in_order(_coordinates(answers), _coordinates(targets), _same_element)
    if max(len(answers), len(targets)) > 1:
        # x<1 or x>3 against a union
        answer_sets, target_sets = [*as_sets(answers, answer)], [*as_sets(targets, target)]
        if answer_sets and target_sets:
            return any(starmap(_same_in_any_order, product(answer_sets, target_sets)))
    if OR in answer and len(targets) == 1:
        if all(_same_element(answers[0], alternative) for alternative in answers):
            answers = answers[:1]  # 1/2 or 0.5
    if "\\ldots" in answer + target:
        return _same_in_order(answers, targets, _same_element)
    return _same_in_any_order(answers, targets)


def _same_list(answer: str, target: str) -> bool:
    return _same_in_order(_members(answer), _members(target), _same_element)


def _same_in_order(
    answers: list[str], targets: list[str], same: Callable[[str, str], bool]
) -> bool:
    return len(answers) == len(targets) and all(map(same, answers, targets))


def _same_in_any_order(answers: list[str], targets: list[str]) -> bool:
    if len(answers) != len(targets):
        return False
    # Equal texts first: 5 also matches 5 cm, and each target may be matched once.
    equal = Counter(answers) & Counter(targets)
    unmatched = [*(Counter(targets) - equal).elements()]
    for answer in (Counter(answers) - equal).elements():
        match = next((target for target in unmatched if _same_element(answer, target)), None)
        if match is None:
            return False
        unmatched.remove(match)
    return True


def _names_unknowns(members: list[str]) -> bool:
    """Whether a list has the values of several unknowns, as `x=1,y=2`.

    `x_1=1,x_2=2` has two roots of a single unknown.
    """
    relations = [as_relation(member) for member in members]
    names = {terms[0].partition("_")[0] for terms, operators in relations if operators == ["="]}
    has_names = len(names) == len(members) > 1
    return has_names and all(is_name(terms[0]) for terms, _ in relations)


def _coordinates(members: list[str]) -> list[str]:
    """The values of several unknowns, or the entries of a point; another list unchanged.

    A point may have the names of its coordinates before it, as in `(x,y)=(1,2)`.
    """
    if _names_unknowns(members):
        return [as_relation(member)[0][1] for member in members]
    terms, operators = as_relation(members[0])
    kind, inner = brackets(terms[-1])
    is_point = len(members) == 1 and kind == "()" and (not operators or is_name(terms[0]))
    return split_outside_brackets(inner, _COMMAS)[0] if is_point else members


def _members(text: str) -> list[str]:
    """The elements of a bare list or of a set in braces, with both values of each plus-minus.

    A single answer is the only element of its list.
    """
    terms, operators = as_relation(text)
    if operators in (["="], ["\\in"]) and is_name(terms[0]):
        if brackets(terms[1])[0] == "\\{\\}":
            text = terms[1]
    kind, inner = brackets(text)
    if kind == "\\{\\}":
        builder = _BUILDER.match(inner)
        if builder:
            text = inner[builder.end() :]
        elif not re.search(r"[|:].*[<>=]", inner):
            text = inner
    members = [member for member in split_outside_brackets(text, _COMMAS)[0] if member]
    if not members:
        members = [text]
    return [*chain.from_iterable(map(_both_signs, members))]


def _both_signs(text: str) -> Iterator[str]:
    pieces = re.split(r"\\(pm|mp) ?", text)
    signs = pieces[1::2]
    if len(signs) > MOST_SIGNS:
        raise TooLarge(f"more than {MOST_SIGNS} choices of sign")
    choices: Iterable[Iterable[str]] = product("+-", repeat=len(signs))
    if "mp" in signs:  # the upper signs belong together, and so do the lower signs
        upper = ["-+"[sign == "pm"] for sign in signs]
        lower = ["+-"[sign == "pm"] for sign in signs]
        choices = upper, lower
    for choice in choices:
        yield "".join(chain(*zip_longest(pieces[::2], choice, fillvalue="")))


def _same_element(answer: str, target: str) -> bool:
    """Compare two elements of lists. Neither has a comma outside its brackets."""
    answer, target = (
        "\\infty" if element == "+\\infty" else element for element in (answer, target)
    )
    if answer == target:
        return True
    answer_relation, target_relation = as_relation(answer), as_relation(target)
    rounded_answer = exact_and_rounded(answer_relation)
    if rounded_answer:
        return _same_rounded(*rounded_answer, target)
    rounded_target = exact_and_rounded(target_relation)
    if rounded_target:
        return _same_element(answer, rounded_target[0])
    if answer_relation[1] or target_relation[1]:
        return _same_relation(answer_relation, target_relation)
    words = readable_words(answer), readable_words(target)
    # Up to three letters may be a product.
    are_words = "\\text" in answer + target or min(len(answer), len(target)) > 3
    if None not in words and are_words:
        return words[0] == words[1]
    answer_sets, target_sets = intervals(answer), intervals(target)
    if answer_sets != [answer] or target_sets != [target]:
        return _same_in_any_order(answer_sets, target_sets)
    answer_matrix, target_matrix = _MATRIX.fullmatch(answer), _MATRIX.fullmatch(target)
    if answer_matrix and target_matrix:
        return _same_matrix(answer_matrix, target_matrix)
    if answer_matrix or target_matrix:
        return False
    return _same_enclosed(answer, target)


def _same_enclosed(answer: str, target: str) -> bool:
    """Compare two sets, tuples, intervals or ratios by their entries; others as quantities."""
    (answer_kind, answer_inner), (target_kind, target_inner) = brackets(answer), brackets(target)
    if answer_kind == target_kind == "\\{\\}":
        return _same_in_any_order(_members(answer), _members(target))
    answers = split_outside_brackets(answer_inner, _COMMAS)[0] if answer_kind else [answer]
    targets = split_outside_brackets(target_inner, _COMMAS)[0] if target_kind else [target]
    if max(len(answers), len(targets)) > 1 or "[" in answer_kind + target_kind:
        return answer_kind == target_kind and _same_in_order(answers, targets, _same_answer)
    answers, targets = (
        split_outside_brackets(answer, _COLONS)[0],
        split_outside_brackets(target, _COLONS)[0],
    )
    if max(len(answers), len(targets)) > 1:
        return _same_ratio(answers, targets)
    return _same_quantity(answer, target)


def _same_rounded(relation: str, exact: str, decimal: str, target: str) -> bool:
    r"""Whether an answer such as `x=\frac13\approx0.33` is the target.

    The target is the exact value, or a decimal of two or more digits to which the value rounds.
    """
    if _same_element(relation, target):
        return True
    exact, decimal, target = (without_unit(text)[0] for text in (exact, decimal, target))
    digits = len(target.partition(".")[2])
    if digits < 2 or decimal != target:
        return False
    value, rounded = approximate(exact), approximate(decimal)
    if value is None or rounded is None:
        return False
    return abs(value - rounded) <= 0.500001 * 10.0**-digits


def _same_relation(answer: Relation, target: Relation) -> bool:
    """Compare two relations, or a relation with a text that is none."""
    if not target[1]:
        return _states(answer, target[0][0], is_answer=True)
    if not answer[1]:
        return _states(target, answer[0][0], is_answer=False)
    answer_range, target_range = as_range(answer), as_range(target)
    if answer_range and target_range and answer_range[0] == target_range[0]:
        return _same_in_any_order(answer_range[1], target_range[1])
    for terms, operators in (target, flipped(target)):
        if answer[1] == operators and all(map(_same_answer, answer[0], terms)):
            return True
    return same_comparison(answer, target)


def _states(relation: Relation, text: str, *, is_answer: bool) -> bool:
    """Whether a relation states a value or a set: `x=5` states 5, and `x<5` an interval."""
    stated_range = as_range(relation)
    if stated_range:
        return _same_in_any_order(stated_range[1], intervals(text))
    value = defined_value(relation, _agrees_in_chain, combined=is_answer)
    if value is not None and _same_answer(value, text):
        return True
    terms, operators = relation
    if operators != ["="] or not is_answer:
        return False
    return _agrees_in_chain(*terms) and _same_answer(terms[1], text)


def _agrees_in_chain(term: str, last: str) -> bool:
    """Whether a term of a chain may equal the last term. A term that is not readable may."""
    numerals = _BASED.fullmatch(term), _BASED.fullmatch(last)
    if numerals[0] and numerals[1]:
        with suppress(ValueError):
            return _integer(numerals[0]) == _integer(numerals[1])
    if _same_answer(term, last):
        return True
    is_balanced = brackets(f"({term})")[0] == "()"
    if not is_balanced or _SAYS_MORE.search(term):
        return False
    return not any(map(_has_value, _atoms(term)))


def _same_matrix(answer: re.Match[str], target: re.Match[str]) -> bool:
    matrices = answer, target
    kinds = {matrix["kind"] for matrix in matrices}
    is_scaled_determinant = any(
        matrix["factor"] and matrix["kind"] in ("v", "V") for matrix in matrices
    )
    if is_scaled_determinant or (len(kinds) > 1 and kinds & set("vVB")):
        return False
    answer_rows, target_rows = map(_matrix_rows, matrices)
    if [*map(len, answer_rows)] != [*map(len, target_rows)]:
        return False
    return all(map(_same_answer, chain(*answer_rows), chain(*target_rows)))


def _matrix_rows(matrix: re.Match[str]) -> list[list[str]]:
    """The entries of a matrix by rows, each with the factor or sign before the matrix."""
    lines, _ = split_outside_brackets(matrix["rows"].removesuffix(ROW_END), _ROWS)
    rows = [split_outside_brackets(line, _CELLS)[0] for line in lines]
    factor = matrix["factor"]
    if not factor:
        return rows
    if factor != "-":
        factor = f"({factor.removesuffix('*')})*"
    return [[f"{factor}({entry})" for entry in row] for row in rows]


def _same_ratio(answer: list[str], target: list[str]) -> bool:
    """Whether terms between colons are equal or make equal ratios.

    6:4 is 3:2, and 3:2 is the number 3/2. But a colon may also separate hours from minutes, and
    12:30 is not 6:15. The text does not say which is meant, and no gold answer of MATH-500 has a
    colon to learn from. So if both sides could be times, the terms must be equal. This loses only a
    ratio that is not in lowest terms and looks like a time: 6:20 for 3:10.
    """
    clocks = [_CLOCK.fullmatch(_HALF_DAY.sub("", ":".join(terms))) for terms in (answer, target)]
    if not all(clocks) and any(clock and ":0" in clock.group() for clock in clocks):
        return False
    if _same_in_order(answer, target, _same_quantity):
        return True
    return not all(clocks) and _same_in_order(
        _quotients(answer), _quotients(target), _same_quantity
    )


def _quotients(terms: list[str]) -> list[str]:
    """The quotients of neighbouring terms; a single term is its own quotient.

    Cross products would make 0:0 equal to every ratio.
    """
    if len(terms) == 1:
        return terms
    return [f"({first})/({second})" for first, second in pairwise(terms)]


def _same_quantity(answer: str, target: str) -> bool:
    """Compare two single values, each perhaps with a unit or a percent sign."""
    (value, unit), (target_value, target_unit) = without_unit(answer), without_unit(target)
    if not agree(unit, target_unit):
        return False
    numeral, target_numeral = _BASED.fullmatch(value), _BASED.fullmatch(target_value)
    if target_numeral and not numeral and not unit:
        # A base may be left out, as a unit may: then the digits must be equal, not the value.
        return value == target_numeral[1]
    if numeral and target_numeral:
        return _digits_and_base(numeral) == _digits_and_base(target_numeral)
    if numeral or target_numeral:
        return False
    if value == target_value or _same_formula(value, target_value):
        if ("%" in unit) == ("%" in target_unit):
            return True
        size = approximate(value)  # 34% may answer 34, but 0.34% not 0.34
        return size is None or abs(size) >= 1
    if "%" in (unit, target_unit) and unit != target_unit:
        # 50% is also the number 0.5
        if unit == "%":
            return _same_formula(f"({value})/100", target_value)
        return _same_formula(value, f"({target_value})/100")
    # Letters that were taken for a unit, as in `2 xyz`, may be factors.
    formulas = [_LETTERS_AS_TEXT.sub(r"\1", text) for text in (answer, target)]
    return formulas != [answer, target] and _same_formula(*formulas)


def _digits_and_base(numeral: re.Match[str]) -> tuple[str, str]:
    digits, base = filter(None, numeral.groups())
    return digits, number_word(base)


def _integer(numeral: re.Match[str]) -> int:
    digits, base = _digits_and_base(numeral)
    return int(digits, int(base))


def _same_formula(answer: str, target: str) -> bool:
    return not _NAMES.match(answer) and not _NAMES.match(target) and same_values(answer, target)
