"""Compare single values: numbers with units, percent signs or bases, formulas, and ratios."""

import re
from collections.abc import Callable
from itertools import pairwise

from harness.grading.answer_elements import GEOMETRIC_NAMES, NUMERAL_WITH_BASE
from harness.grading.formula_values import approximate, same_values
from harness.grading.units_and_words import number_word, units_agree, without_unit

# `3:05`, `12:30:00`
_CLOCK = re.compile(r"\d\d?(?::[0-5]\d)+")


def same_in_order(answers: list[str], targets: list[str], same: Callable[[str, str], bool]) -> bool:
    """Whether two lists have the same elements in the same order."""
    return len(answers) == len(targets) and all(map(same, answers, targets))


def same_ratio(answer: list[str], target: list[str]) -> bool:
    """Whether terms between colons are equal or make equal ratios.

    6:4 is 3:2, and 3:2 is the number 3/2. But a colon may also separate hours from minutes, and
    12:30 is not 6:15. The text does not say which is meant, and no gold answer of MATH-500 has a
    colon to learn from. So if both sides could be times, the terms must be equal. This loses only a
    ratio that is not in lowest terms and looks like a time: 6:20 for 3:10.
    """
    clocks = [_CLOCK.fullmatch(":".join(terms)) for terms in (answer, target)]
    # only times have a zero after the colon, as in `3:05`, and the other side is not a time
    if not all(clocks) and any(clock and ":0" in clock.group() for clock in clocks):
        return False
    if same_in_order(answer, target, same_quantity):
        return True
    return not all(clocks) and same_in_order(_quotients(answer), _quotients(target), same_quantity)


def _quotients(terms: list[str]) -> list[str]:
    """The quotients of neighbouring terms; a single term is its own quotient.

    Cross products would make 0:0 equal to every ratio.
    """
    if len(terms) == 1:
        return terms
    return [f"({numerator})/({denominator})" for numerator, denominator in pairwise(terms)]


def same_quantity(answer: str, target: str) -> bool:
    """Compare two single values, each perhaps with a unit or a percent sign."""
    (value, unit), (target_value, target_unit) = without_unit(answer), without_unit(target)
    if not units_agree(unit, target_unit):
        return False
    numeral, target_numeral = (
        NUMERAL_WITH_BASE.fullmatch(value),
        NUMERAL_WITH_BASE.fullmatch(target_value),
    )
    if target_numeral and not numeral and not unit:
        # A base may be left out, as a unit may: then the digits must be equal, not the value.
        return value == target_numeral[1]
    if numeral and target_numeral:
        return _digits_and_base(numeral) == _digits_and_base(target_numeral)
    if numeral:
        digits, base = _digits_and_base(numeral)
        return base == "10" and _same_formula(digits, target_value)
    if target_numeral:
        return False
    if value == target_value or _same_formula(value, target_value):
        if ("%" in unit) == ("%" in target_unit):
            return True
        # 34% may lose its sign, but 0.34 would be read as a share, which is a hundred times 0.34%
        size = approximate(value)
        return size is None or abs(size) >= 1
    if "%" in (unit, target_unit) and unit != target_unit:
        # percent also means hundredths: 50% is the number 0.5
        if unit == "%":
            return _same_formula(f"({value})/100", target_value)
        return _same_formula(value, f"({target_value})/100")
    return False


def _digits_and_base(numeral: re.Match[str]) -> tuple[str, str]:
    digits, base = filter(None, numeral.groups())
    return digits, number_word(base)


def integer_value(text: str) -> int:
    """The value of an integer, perhaps with its base.

    Raises:
        ValueError: A text is not an integer, or has a digit or a base that does not exist.
    """
    numeral = NUMERAL_WITH_BASE.fullmatch(text)
    digits, base = _digits_and_base(numeral) if numeral else (text, "10")
    return int(digits, int(base))


def _same_formula(answer: str, target: str) -> bool:
    if any(map(GEOMETRIC_NAMES.match, (answer, target))):
        return False
    return same_values(answer, target)
