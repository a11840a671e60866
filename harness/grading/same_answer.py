"""Is an answer the gold answer? Shape first, then the values in it.

The rules, each with examples, are in docs/grading.md and `tests/data/labelled_answers.yaml`. In short: `(1,2)`, `[1,2)`
and `1,2` all differ; between brackets order counts, in a bare list or a set it does not, and every element counts; a
unit, a name (`x=`) or a percent sign may be left out but not be another one; a base may not be left out; nothing is
rounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, pairwise, product

from harness.grading.extract_answer import LONGEST_ANSWER, TOO_LONG, Grade, Verdict, read
from harness.grading.formula import DEEPEST, TooLarge
from harness.grading.notation import ROW_END, brackets, parts, plain, readings
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
"""Terms of a chain such as `a=b=c`: each is compared with the last."""
MOST_SIGNS = 4
"""Signs with two values in one answer of a list: each doubles the values to compare."""

_BASED = re.compile(
    r"[({]?([A-F]*\d[0-9A-F]*|[A-F]{2,})[)}]?_(?:\{\(?(\d+|[a-z]+)\)?\}|\{?\\text\{([a-z-]+)\}\}?|\(?(\d+)\)?)"
)
_BUILDER = re.compile(r"([A-Za-z])(?:\\in ?\\mathbb\{R\})?[|:](?=.*\1)")
_NAMES = re.compile(r"\\(?:angle|triangle|overline|overrightarrow|widehat|square)|[A-Z]{2,}\Z")
_MATRIX = re.compile(
    r"(?P<factor>-?[^-+&]*?)(?P<bracket>[(\[]?)\\begin\{(?P<kind>[pbvBV]?|small)(?P<name>matrix|array)\}(?:\{[lcr|]+\})?"
    r"(?P<rows>.*)\\end\{(?P=kind)(?P=name)\}[)\]]?",
    re.DOTALL,
)
_SYMBOLS = ("\\infty", "-\\infty", "+\\infty", "\\ldots", "\\emptyset")
_LETTERS_AS_TEXT = re.compile(r"(?<=[\d}])\\text\{([A-Za-z]+)\}\Z")
_COMMAS, _COLONS = frozenset([",", ";", OR, AND]), frozenset(":")
_OPTION = re.compile(
    r"\\text\{\(([A-E])\) ?([^{}]+)\}|(?:\\text\{|\{)?\(([A-E])\) ?(?:\}|(?=\\(?:text|frac|sqrt)|\d|[A-Za-z]{3}))(.+)"
)
_SEVERAL = re.compile(rf"\A[,;]|\A[A-Za-z]\Z|[{OR}{AND}]|\([A-E]\)|\b(?:or|and|not)\b")
_SAYS_MORE = re.compile(
    r"\\(?:text|not|n(?:less|gtr|exists|mid|leq|geq)|neg|lnot|exists|forall)(?![A-Za-z])"
)
"""In a member of a chain: words, a negation, or another relation."""
_CLOCK = re.compile(r"\d\d?(?::[0-5]\d)+")
_HALF_DAY = re.compile(r"\\text\{[ap]m\}\Z")
_ROWS, _CELLS = frozenset(ROW_END), frozenset("&")


def grade(
    completion: str, target: str, *, finish_reason: str | None = None, line: bool = False
) -> Grade:
    """Grade a completion in this process. For many, use `GraderPool`: it grades in parallel, in killable processes.

    Args:
        completion: What the model wrote, without the prompt.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's, if known.
        line: Whether the answer is the first line, instead of the last box.
    """
    found = read(completion, finish_reason=finish_reason, line=line)
    return found if isinstance(found, Grade) else compare(found, target)


def compare(answer: str, target: str) -> Grade:
    """Grade the content of a box against the gold answer.

    What it costs is bounded by the length of the texts. On what a model wrote only worker processes call it all the
    same, since a bound is easier to state than to keep.

    Args:
        answer: What `read` returned.
        target: The gold answer, as it would stand in a box.

    Raises:
        MemoryError: Left to the worker, which knows its limit.
    """
    verdict: Verdict = "correct"
    reason = None
    begin_comparison()
    try:
        short = max(len(answer), len(target)) <= LONGEST_ANSWER
        if answer != target and not (short and plain(answer) == plain(target)):
            reason = refusal(answer) or refuse_target(target)
            verdict = (
                "refused"
                if reason
                else "correct"
                if same_mathematics(answer, target)
                else "incorrect"
            )
    except TooLarge as error:
        verdict, reason = "refused", str(error)
    except MemoryError:
        raise
    except Exception as error:  # a bug of the grader must not pass for a wrong answer
        verdict, reason = "crashed", type(error).__name__
    return Grade(verdict=verdict, answer=answer[:LONGEST_ANSWER], reason=reason)


def refusal(text: str) -> str | None:
    """Why an answer would take too much work to compare, in a few words; None if it would not."""
    if (
        len(text) > LONGEST_ANSWER or len(text := plain(text)) > LONGEST_ANSWER
    ):  # one character may stand for many
        return TOO_LONG
    if text.count("=") > MOST_RELATIONS:
        return f"more than {MOST_RELATIONS} equals signs"
    depths = accumulate((character in "([{") - (character in ")]}") for character in text)
    return f"nested deeper than {DEEPEST}" if max(depths, default=0) > DEEPEST else None


@lru_cache(maxsize=4096)
def refuse_target(target: str) -> str | None:
    """Why no answer can be compared with this gold answer, unless it is the same text; None if one can."""
    found = refusal(target)
    return found and f"gold answer: {found}"


def describe_gold(target: str) -> str | None:
    """Why the grader cannot compare an answer with this gold answer; None if it can."""
    begin_comparison()
    try:
        refused = refuse_target(target)
        return refused or (
            None if all(map(_has_value, _pieces(plain(target)))) else "not read as mathematics"
        )
    except TooLarge as error:
        return str(error)


def same_mathematics(answer: str, target: str) -> bool:
    """Whether two answers that differ as text are the same mathematics.

    Raises:
        TooLarge: One of them would take too much work to compare.
    """
    answers, targets = readings(answer, target), readings(target, answer)
    # 58,500 is hardly 500 and 58
    same = _same_in_order if any(map(_looks_grouped, (answers, targets))) else _same
    if any(same(one, other) for one in sorted(answers) for other in sorted(targets)):
        return True
    option = _OPTION.fullmatch(plain(answer))
    if not option or _SEVERAL.search(said := option[2] or option[4]):
        return False
    letter = readable_words(plain(target)) or ""
    named = option[1] or option[3]
    return letter == named if re.fullmatch("[A-E]", letter) else same_mathematics(said, target)


def _pieces(text: str) -> Iterator[str]:
    """The values that an answer is made of: what stands between its commas, brackets and signs of relation."""
    found = [
        piece
        for member in _members(text)
        for term in as_relation(member)[0]
        for one in intervals(term)
        for piece in _entries_of(one)
    ]
    if found == [text]:
        yield text
    else:
        for piece in found:
            yield from _pieces(piece)


def _entries_of(text: str) -> list[str]:
    if matrix := _MATRIX.fullmatch(text):
        return [entry for row in _entries(matrix) for entry in row]
    kind, inner = brackets(text)
    return parts(inner, _COMMAS if kind else _COLONS)[0]


def _has_value(piece: str) -> bool:
    if (
        readable_words(piece)
        or is_name(piece)
        or _BASED.fullmatch(piece)
        or piece in _SYMBOLS
        or _NAMES.match(piece)
    ):
        return True
    return has_value(without_unit(piece)[0])


def _same(answer: str, target: str) -> bool:
    if answer == target:
        return True
    answers, targets = _members(answer), _members(target)
    named = _named_values(answers), _named_values(targets)
    if (named[0] is None) != (named[1] is None):
        # x=1,y=2 is (1,2) and 1,2, in this order
        ordered = named[0] or _coordinates(answers), named[1] or _coordinates(targets)
        return len(ordered[0]) == len(ordered[1]) and all(map(_same_one, *ordered))
    if max(len(answers), len(targets)) > 1:
        # x<1 or x>3 against a union
        found, expected = list(as_sets(answers, answer)), list(as_sets(targets, target))
        if found and expected:
            return any(_same_in_any_order(one, other) for one in found for other in expected)
    if (
        OR in answer
        and len(targets) == 1 < len(answers)
        and all(_same_one(answers[0], one) for one in answers[1:])
    ):
        answers = answers[:1]  # 1/2 or 0.5
    if "\\ldots" in answer + target:
        return len(answers) == len(targets) and all(map(_same_one, answers, targets))
    return _same_in_any_order(answers, targets)


def _looks_grouped(read: set[str]) -> bool:
    """Whether a text may be one number such as 58,500, or two."""
    return len(read) > 1 and any(re.fullmatch(r"[1-9]\d?(?:,\d{3})+", one) for one in read)


def _same_in_order(answer: str, target: str) -> bool:
    answers, targets = _members(answer), _members(target)
    return len(answers) == len(targets) and all(map(_same_one, answers, targets))


def _same_in_any_order(answers: list[str], targets: list[str]) -> bool:
    if len(answers) != len(targets):
        return False
    equal = Counter(answers) & Counter(
        targets
    )  # the same text first: 5 is also 5 cm, and each may be taken once
    answers, unmatched = ([*(Counter(texts) - equal).elements()] for texts in (answers, targets))
    for answer in answers:
        found = next((target for target in unmatched if _same_one(answer, target)), None)
        if found is None:
            return False
        unmatched.remove(found)
    return True


def _named_values(members: list[str]) -> list[str] | None:
    """The values of several unknowns, as in `x=1,y=2`; None for other lists, such as `x_1=1,x_2=2`: roots of one."""
    relations = [as_relation(member) for member in members]
    names = {terms[0].partition("_")[0] for terms, operators in relations if operators == ["="]}
    named = len(names) == len(members) > 1 and all(is_name(terms[0]) for terms, _ in relations)
    return [terms[1] for terms, _ in relations] if named else None


def _coordinates(members: list[str]) -> list[str]:
    """The entries of a point, with or without the names of its coordinates; other lists as they are."""
    terms, operators = as_relation(members[0])
    kind, inner = brackets(terms[-1])
    point = len(members) == 1 and kind == "()" and (not operators or is_name(terms[0]))
    return parts(inner, _COMMAS)[0] if point else members


def _members(text: str) -> list[str]:
    """What a bare list or a set in braces holds, with both values of each plus-minus; a single answer is its own."""
    terms, operators = as_relation(text)
    if len(terms) == 2 and operators[0] in ("=", "\\in") and is_name(terms[0]):
        if brackets(terms[1])[0] == "\\{\\}":
            text = terms[1]
    kind, inner = brackets(text)
    if kind == "\\{\\}":
        builder = _BUILDER.match(inner)
        text = (
            inner[builder.end() :]
            if builder
            else text
            if re.search(r"[|:].*[<>=]", inner)
            else inner
        )
    items = [item for item in parts(text, _COMMAS)[0] if item] or [text]
    return [signed for item in items for signed in _both_signs(item)]


def _both_signs(text: str) -> list[str]:
    pieces = re.split(r"\\(pm|mp) ?", text)
    signs = pieces[1::2]
    if len(signs) > MOST_SIGNS:
        raise TooLarge(f"more than {MOST_SIGNS} choices of sign")
    if "mp" in signs:  # upper signs belong together
        choices = [tuple(sign == "pm" for sign in signs), tuple(sign == "mp" for sign in signs)]
    else:
        choices = list(product((True, False), repeat=len(signs)))
    return [
        pieces[0]
        + "".join("-+"[plus] + piece for plus, piece in zip(choice, pieces[2::2], strict=True))
        for choice in choices
    ]


def _same_one(answer: str, target: str) -> bool:
    answer, target = (
        text.removeprefix("+") if text == "+\\infty" else text for text in (answer, target)
    )
    if answer == target:
        return True
    relations = as_relation(answer), as_relation(target)
    if rounded := exact_and_rounded(relations[0]):
        return _same_rounded(*rounded, target)
    if rounded := exact_and_rounded(relations[1]):
        return _same_one(answer, rounded[0])
    if any(operators for _, operators in relations):
        return _same_relation(*relations)
    words = readable_words(answer), readable_words(target)
    if None not in words and ("\\text" in answer + target or min(len(answer), len(target)) > 3):
        return words[0] == words[1]  # three letters may be a product
    sets = intervals(answer), intervals(target)
    if sets != ([answer], [target]):
        return _same_in_any_order(*sets)
    matrices = _MATRIX.fullmatch(answer), _MATRIX.fullmatch(target)
    if any(matrices):
        return bool(matrices[0] and matrices[1]) and _same_matrix(matrices[0], matrices[1])  # type: ignore[arg-type]
    kinds = brackets(answer), brackets(target)
    if kinds[0][0] == kinds[1][0] == "\\{\\}":
        return _same_in_any_order(_members(answer), _members(target))
    entries = [parts(inner, _COMMAS)[0] if kind else [inner] for kind, inner in kinds]
    if max(map(len, entries)) > 1 or "[" in kinds[0][0] + kinds[1][0]:
        alike = kinds[0][0] == kinds[1][0] and len(entries[0]) == len(entries[1])
        return alike and all(map(_same, entries[0], entries[1]))
    ratios = parts(answer, _COLONS)[0], parts(target, _COLONS)[0]
    if len(ratios[0]) > 1 or len(ratios[1]) > 1:
        return _same_ratio(*ratios)
    return _same_value(answer, target)


def _same_rounded(stated: str, value: str, decimal: str, target: str) -> bool:
    """Whether a value with its rounding is the target: the value itself, or the rounding of a gold to two places."""
    if _same_one(stated, target):
        return True
    (value, _), (decimal, _), (target, _) = map(without_unit, (value, decimal, target))
    places = len(target.partition(".")[2])
    if places < 2 or decimal != target:
        return False
    number, rounded = approximate(value), approximate(decimal)
    return (
        number is not None
        and rounded is not None
        and abs(number - rounded) <= 0.500001 * 10.0**-places
    )


def _same_relation(answer: Relation, target: Relation) -> bool:
    ranges = as_range(answer), as_range(target)
    if not answer[1] or not target[1]:
        related, other = (answer, target[0][0]) if answer[1] else (target, answer[0][0])
        found = ranges[0] or ranges[1]
        if found:
            return _same_in_any_order(found[1], intervals(other))
        value = defined_value(related, _agrees_in_chain, combined=related is answer)
        if value is not None and _same(value, other):
            return True
        left, last = related[0][0], related[0][-1]
        return (
            related[1] == ["="]
            and related is answer
            and _agrees_in_chain(left, last)
            and _same(last, other)
        )
    if ranges[0] and ranges[1] and ranges[0][0] == ranges[1][0]:
        return _same_in_any_order(ranges[0][1], ranges[1][1])
    for terms, operators in (target, flipped(target)):
        if answer[1] == operators and all(map(_same, answer[0], terms)):
            return True
    return same_comparison(answer, target)


def _agrees_in_chain(value: str, last: str) -> bool:
    """Whether a member of a chain may be set equal to its last: what cannot be read is taken on trust."""
    bases = _BASED.fullmatch(value), _BASED.fullmatch(last)
    if all(bases):
        with suppress(ValueError):
            return len({int(one[1], int(_base(one)[1])) for one in bases}) == 1  # type: ignore[index, arg-type]
    whole = brackets(f"({value})")[0] == "()" and not _SAYS_MORE.search(value)
    return _same(value, last) or (whole and not any(map(_has_value, _pieces(value))))


def _same_matrix(answer: re.Match[str], target: re.Match[str]) -> bool:
    kinds = {match["kind"] for match in (answer, target)}
    grids = [_entries(match) for match in (answer, target)]
    scaled = any(match["factor"] and match["kind"] in ("v", "V") for match in (answer, target))
    if (
        scaled
        or (len(kinds) > 1 and kinds & set("vVB"))
        or [*map(len, grids[0])] != [*map(len, grids[1])]
    ):
        return False
    return all(all(map(_same, row, other)) for row, other in zip(*grids, strict=True))


def _entries(matrix: re.Match[str]) -> list[list[str]]:
    """The entries of a matrix by rows, each with the factor or sign that stands before the matrix."""
    rows = [parts(row, _CELLS)[0] for row in parts(matrix["rows"].removesuffix(ROW_END), _ROWS)[0]]
    factor = (
        matrix["factor"]
        if matrix["factor"] in ("", "-")
        else f"({matrix['factor'].removesuffix('*')})*"
    )
    return [[f"{factor}({entry})" for entry in row] if factor else row for row in rows]


def _same_ratio(answer: list[str], target: list[str]) -> bool:
    """Whether the terms between colons are the same, or make the same ratio: 6:4 is 3:2, and 3:2 is the number 3/2.

    A colon may also part hours from minutes, and 12:30 is not 6:15. The text does not say which is meant, and no gold
    of MATH-500 has a colon to learn from. So where both sides could be times, the terms must be the same. This loses
    only a ratio that is not in lowest terms and looks like a time: 6:20 for 3:10.
    """
    clocks = [_CLOCK.fullmatch(_HALF_DAY.sub("", ":".join(terms))) for terms in (answer, target)]
    if not all(clocks) and any(clock and ":0" in clock.group() for clock in clocks):
        return False
    if len(answer) == len(target) and all(map(_same_value, answer, target)):
        return True
    if all(clocks):
        return False
    # quotients, not cross products: those would make 0:0 every ratio
    quotients = [
        [f"({a})/({b})" for a, b in pairwise(terms)] or terms for terms in (answer, target)
    ]
    return len(quotients[0]) == len(quotients[1]) and all(map(_same_value, *quotients))


def _same_value(answer: str, target: str) -> bool:
    """Two single values, each perhaps with a unit or a percent sign."""
    whole = [answer, target]
    (answer, answer_unit), (target, target_unit) = map(without_unit, whole)
    if not agree(answer_unit, target_unit):
        return False
    bases = _BASED.fullmatch(answer), _BASED.fullmatch(target)
    if bases[1] and not bases[0] and not answer_unit:
        return (
            answer == bases[1][1]
        )  # a base may be left out as a unit may: by its digits, never by its value
    if any(bases):
        return bool(bases[0] and bases[1]) and _base(bases[0]) == _base(bases[1])  # type: ignore[arg-type]
    if answer == target or _same_formula(answer, target):
        if ("%" in answer_unit) == ("%" in target_unit):
            return True
        size = approximate(answer)  # 34% may answer 34, but 0.34% not 0.34
        return size is None or abs(size) >= 1
    if "%" in (answer_unit, target_unit) and answer_unit != target_unit:
        # 50% is also the number 0.5
        answer, target = (
            (f"({answer})/100", target) if answer_unit == "%" else (answer, f"({target})/100")
        )
        return _same_formula(answer, target)
    # what was taken for a unit, in `2 xyz`, may be letters
    letters = [_LETTERS_AS_TEXT.sub(r"\1", text) for text in whole]
    return letters != whole and _same_formula(*letters)


def _base(match: re.Match[str]) -> tuple[str, str]:
    return match[1], number_word(match[2] or match[3] or match[4])


def _same_formula(answer: str, target: str) -> bool:
    return not _NAMES.match(answer) and not _NAMES.match(target) and same_values(answer, target)
