"""Are two answers the same? Shape first, then the values in it: exactly where possible, by sympy where not.

The rules, each with examples, are in `tests/data/labelled_answers.yaml`. In short: `(1,2)`, `[1,2)` and `1,2` all
differ; between brackets order counts, in a bare list or a set it does not, and every element counts; a unit, a name
(`x=`) or a percent sign may be left out but not be another one; a base may not be left out; nothing is rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product

from harness.grading.exact import Arithmetic, Quotient, TooLarge
from harness.grading.formula import Ambiguous, Broken, Unreadable, read
from harness.grading.notation import ROW_END, brackets, number_word, parts, plain, readable_words, readings
from harness.grading.symbolic import same_values
from harness.grading.units import in_radians, without_unit

_BASED = re.compile(r"\(?([0-9A-Z]+)\)?_(?:\{(\w+)\}|\{?\\text\{([\w-]+)\}\}?|(\d+))")
_RELATIONS = frozenset(
    "= < > \\le \\ge \\ne \\in \\notin \\approx \\equiv \\sim \\simeq \\cong \\to \\Rightarrow".split()
)
_RELATIONS |= frozenset("\\mapsto \\iff \\subset \\subseteq \\propto \\perp \\parallel \\Leftrightarrow".split())
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "=": "=", "\\ne": "\\ne"}
_VARIABLE = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?")
_DEFINED = re.compile(
    rf"{_VARIABLE.pattern}(?:\((?:[A-Za-z]|-?\d+)\))?"  # x, x_1, f(x), f(2)
    r"|(?:\\angle ?)?[A-Z]{1,3}|\((?:[A-Za-z],)+[A-Za-z]\)|\\text\{[^{}]*\}"  # AB, (x,y), words
)
_BUILDER = re.compile(r"[A-Za-z](?:\\in ?\\mathbb\{R\})?[|:]")
_NAMES = re.compile(r"\\(?:angle|triangle|overline|overrightarrow|widehat|square|boxed|fbox)|[A-Z]{2,}\Z")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?|small)(matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\2\}", re.DOTALL)
_COMMAS, _CUPS, _COLONS = frozenset(",;"), frozenset(["\\cup"]), frozenset(":")
_CLOCK = re.compile(r"\d\d?(?::[0-5]\d)+")
_ONE_SPELLING = {"\\mathbb{R}": "(-\\infty,\\infty)", "+\\infty": "\\infty"}
_ROWS, _CELLS = frozenset(ROW_END), frozenset("&")


def same_text(answer: str, target: str) -> bool:
    """Equal but for spacing, size commands, dollar signs, digit grouping and a closing full stop."""
    return plain(answer) == plain(target)


def same_mathematics(answer: str, target: str) -> bool:
    """Whether two answers that differ as text are the same mathematics.

    Raises:
        TooLarge: If the answer would take too much work to compare.
    """
    answers, targets = readings(answer, target), readings(target, answer)
    return any(_same(one, other) for one in sorted(answers) for other in sorted(targets))


def _same(answer: str, target: str) -> bool:
    if answer == target:
        return True
    answers, targets = _members(answer), _members(target)
    if len(answers) != len(targets):
        # x<1 or x>3 against a union
        joined = [_as_union(members) for members in (answers, targets)]
        return all(joined) and _same_one(str(joined[0]), str(joined[1]))
    if len(answers) == 1:
        return _same_one(answers[0], targets[0])
    if "\\ldots" in answer or "\\ldots" in target:
        return all(map(_same_one, answers, targets))
    return _same_in_any_order(answers, targets)


def _same_in_any_order(answers: list[str], targets: list[str]) -> bool:
    unmatched = list(targets)
    for answer in answers:
        found = next((target for target in unmatched if _same_one(answer, target)), None)
        if found is None:
            return False
        unmatched.remove(found)
    return True


def _members(text: str) -> list[str]:
    """What a bare list or a set in braces holds, with both values of each plus-minus; a single answer is its own."""
    terms, operators = parts(text, _RELATIONS)
    if len(terms) == 2 and operators[0] in ("=", "\\in") and _DEFINED.fullmatch(terms[0]):
        if brackets(terms[1])[0] == "\\{\\}":
            text = terms[1]
    kind, inner = brackets(text)
    if kind == "\\{\\}":
        builder = _BUILDER.match(inner)
        text = inner[builder.end() :] if builder else inner
    items = [item for item in parts(text, _COMMAS)[0] if item] or [text]
    return [signed for item in items for signed in _both_signs(item)]


def _both_signs(text: str) -> list[str]:
    pieces = re.split(r"\\(pm|mp) ?", text)
    if len(pieces) == 1:
        return [text]
    signs = pieces[1::2]
    if "mp" in signs:  # upper signs belong together
        choices = [tuple(sign == "pm" for sign in signs), tuple(sign == "mp" for sign in signs)]
    else:
        choices = list(product((True, False), repeat=len(signs)))
    return [
        pieces[0] + "".join("-+"[plus] + piece for plus, piece in zip(choice, pieces[2::2], strict=True))
        for choice in choices
    ]


def _same_one(answer: str, target: str) -> bool:
    answer, target = (_ONE_SPELLING.get(text, text) for text in (answer, target))
    if answer == target:
        return True
    relations = parts(answer, _RELATIONS), parts(target, _RELATIONS)
    if any(operators for _, operators in relations):
        return _same_relation(*relations)
    words = readable_words(answer), readable_words(target)
    if "\\text" in answer + target and None not in words:
        return words[0] == words[1]
    unions = parts(answer, _CUPS)[0], parts(target, _CUPS)[0]
    if len(unions[0]) > 1 or len(unions[1]) > 1:
        return len(unions[0]) == len(unions[1]) and _same_in_any_order(*unions)
    matrices = _MATRIX.fullmatch(_unwrapped(answer)), _MATRIX.fullmatch(_unwrapped(target))
    if any(matrices):
        return bool(matrices[0] and matrices[1]) and _same_matrix(matrices[0], matrices[1])  # type: ignore[arg-type]
    kinds = brackets(answer), brackets(target)
    entries = [parts(inner, _COMMAS)[0] if kind else [inner] for kind, inner in kinds]
    if max(map(len, entries)) > 1 or "[" in kinds[0][0] + kinds[1][0]:
        alike = kinds[0][0] == kinds[1][0] and len(entries[0]) == len(entries[1])
        return alike and all(map(_same, entries[0], entries[1]))
    ratios = parts(answer, _COLONS)[0], parts(target, _COLONS)[0]
    if len(ratios[0]) > 1 or len(ratios[1]) > 1:
        return _same_ratio(*ratios)
    return _same_value(answer, target)


def _same_relation(answer: tuple[list[str], list[str]], target: tuple[list[str], list[str]]) -> bool:
    intervals = _as_interval(answer), _as_interval(target)
    if not answer[1] or not target[1]:
        related, other = (answer, target[0][0]) if answer[1] else (target, answer[0][0])
        interval = intervals[0] or intervals[1]
        if interval:
            return (
                brackets(other)[0] != "\\{\\}" and bool(re.search(r"[\[(].*,", other)) and _same_one(interval[1], other)
            )
        value = _defined_value(*related)
        return value is not None and _same(value, other)
    if intervals[0] and intervals[1]:
        return intervals[0][0] == intervals[1][0] and _same_one(intervals[0][1], intervals[1][1])
    flipped = target[0][::-1], [_FLIPPED.get(operator, "") for operator in reversed(target[1])]
    for terms, operators in (target, flipped):
        if answer[1] == operators and all(map(_same, answer[0], terms)):
            return True
    if answer[1] == target[1] == ["="]:
        return _same_equation(answer[0], target[0])
    if answer[0][0] == target[0][0] and {*answer[1], *target[1]} == {"=", "\\in"}:
        values = _defined_value(*answer), _defined_value(*target)
        return values[0] is not None and values[1] is not None and _same(values[0], values[1])
    return False


def _same_equation(answer: list[str], target: list[str]) -> bool:
    sides = [f"({terms[0]})-({terms[1]})" for terms in (answer, target)]
    try:
        values = _answer_value(sides[0]), _target_value(sides[1])
    except Broken:
        return False
    return values[0] is not None and values[1] is not None and Arithmetic().proportional(values[0], values[1])


def _defined_value(terms: list[str], operators: list[str]) -> str | None:
    """What `x=5`, `5=x`, `f(x)=2x`, `x=2+3=5` or `2+3=5` says the value is; None if it says something else."""
    if operators == ["\\in"] and _DEFINED.fullmatch(terms[0]):
        return terms[1]
    if set(operators) != {"="}:
        return None
    if len(terms) == 2 and _DEFINED.fullmatch(terms[1]) and not _DEFINED.fullmatch(terms[0]):
        return terms[0]
    values = terms[1:] if _DEFINED.fullmatch(terms[0]) else terms
    return values[-1] if all(_same(value, values[-1]) for value in values[:-1]) else None


def _as_interval(relation: tuple[list[str], list[str]]) -> tuple[str, str] | None:
    """The variable and the interval of `x<5`, `1<=x<2`, `x in [1,2]`; None for other relations."""
    terms, operators = relation
    if operators == ["\\in"] and _VARIABLE.fullmatch(terms[0]) and re.search(r"[\[(].*,", terms[1]):
        return terms[0], terms[1]
    if operators and operators[0] in (">", "\\ge"):
        terms, operators = terms[::-1], [_FLIPPED.get(operator, "") for operator in reversed(operators)]
    if operators == ["\\ne"] and _VARIABLE.fullmatch(terms[0]):
        return terms[0], f"(-\\infty,{terms[1]})\\cup(" + f"{terms[1]},\\infty)"
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
    return terms[1], f"{opening}{terms[0]},{terms[2]}{closing}"


def _as_union(members: list[str]) -> str | None:
    """Inequalities in one variable as a union of intervals; a single answer with a union in it as it is."""
    intervals = [_as_interval(parts(member, _RELATIONS)) for member in members]
    if all(intervals) and len({interval[0] for interval in intervals if interval}) == 1:
        return "\\cup".join(interval[1] for interval in intervals if interval)
    return members[0] if len(members) == 1 and "\\cup" in members[0] else None


def _same_matrix(answer: re.Match[str], target: re.Match[str]) -> bool:
    if (answer[1] in ("v", "V", "B") or target[1] in ("v", "V", "B")) and answer[1] != target[1]:
        return False
    grids = [
        [parts(row, _CELLS)[0] for row in parts(match[3].removesuffix(ROW_END), _ROWS)[0]] for match in (answer, target)
    ]
    if [len(row) for row in grids[0]] != [len(row) for row in grids[1]]:
        return False
    return all(all(map(_same, row, other)) for row, other in zip(*grids, strict=True))


def _same_ratio(answer: list[str], target: list[str]) -> bool:
    """Whether the terms between colons are the same, or make the same ratio: 6:4 is 3:2, and 3:2 is the number 3/2.

    A colon may also part hours from minutes, and 12:30 is not 6:15. The text does not say which is meant, and no gold
    of MATH-500 has a colon to learn from. So where both sides could be times, the terms must be the same. This loses
    only a ratio that is not in lowest terms and looks like a time: 6:20 for 3:10.
    """
    if len(answer) == len(target) and all(map(_same_value, answer, target)):
        return True
    if all(_CLOCK.fullmatch(":".join(terms)) for terms in (answer, target)):
        return False
    # quotients, not cross products: those would make 0:0 every ratio
    quotients = [[f"({a})/({b})" for a, b in pairwise(terms)] or terms for terms in (answer, target)]
    return len(quotients[0]) == len(quotients[1]) and all(map(_same_value, *quotients))


def _same_value(answer: str, target: str) -> bool:
    """Two single values, each perhaps with a unit or a percent sign."""
    (answer, answer_unit), (target, target_unit) = (without_unit(in_radians(text)) for text in (answer, target))
    if answer_unit and target_unit and answer_unit != target_unit:
        return False
    if answer == target:
        return True
    bases = _BASED.fullmatch(answer), _BASED.fullmatch(target)
    if any(bases):
        return bool(bases[0] and bases[1]) and _base(bases[0]) == _base(bases[1])
    if _NAMES.match(answer) or _NAMES.match(target):
        return False
    try:
        values = _answer_value(answer), _target_value(target)
    except Broken:
        return False
    if values[0] is None or values[1] is None:
        return same_values(answer, target)
    exact = Arithmetic()
    if exact.equal(values[0], values[1]):
        return True
    if "%" in (answer_unit, target_unit) and answer_unit != target_unit:
        # 50% is also the number 0.5
        percent = exact.number(Fraction(1, 100))
        scaled = exact.multiply(values[0] if answer_unit == "%" else values[1], percent)
        return exact.equal(scaled, values[1] if answer_unit == "%" else values[0])
    return False


def _base(match: re.Match[str] | None) -> tuple[str, str]:
    return (match[1], number_word(match[2] or match[3] or match[4])) if match else ("", "")


def _answer_value(text: str) -> Quotient | None:
    try:
        return read(text)
    except Broken:
        raise
    except Unreadable:
        return None


@lru_cache(maxsize=4096)
def _target_value(text: str) -> Quotient | None:
    try:
        return read(text)
    except Ambiguous:
        raise
    except (Unreadable, TooLarge):
        return None


def _unwrapped(text: str) -> str:
    kind, inner = brackets(text)
    return inner if kind in ("()", "[]") else text
