"""Compare single values: numbers with units, percent signs or bases, formulas, and ratios."""

import re
from collections.abc import Callable
from itertools import pairwise

from harness.grading.answer_elements import GEOMETRIC_NAMES, NUMERAL_WITH_BASE
from harness.grading.formula_values import approximate, same_values
from harness.grading.units_and_words import in_digits, split_unit, units_agree

_CLOCK = re.compile(r"\d\d?(?::[0-5]\d)+")
"""Matches what may be a time of day or a duration: `3:05`, `12:30:00`."""


def same_in_order(
    answers: list[str], targets: list[str], are_same: Callable[[str, str], bool]
) -> bool:
    """Whether two lists have the same elements in the same order."""
    return len(answers) == len(targets) and all(map(are_same, answers, targets))


def same_ratio(answer_terms: list[str], target_terms: list[str]) -> bool:
    """Whether terms between colons are equal or make equal ratios.

    - If both sides may be times, the terms must be equal: 12:30 is not 6:15. This loses a ratio
      that looks like a time and is not in lowest terms: 6:20 for 3:10.
    - If one side is certainly a time and the other is not, they differ: 3:05 and 3/5.
    - Otherwise both are ratios: 6:4 is 3:2, and 3:2 is the number 3/2.
    """
    clock_matches = [_CLOCK.fullmatch(":".join(terms)) for terms in (answer_terms, target_terms)]
    have_equal_terms = same_in_order(answer_terms, target_terms, same_quantity)
    if all(clock_matches):
        return have_equal_terms
    # a zero after the colon, as in `3:05`, is written only in times
    if any(clock_match and ":0" in clock_match.group() for clock_match in clock_matches):
        return False
    return have_equal_terms or same_in_order(
        _quotients(answer_terms), _quotients(target_terms), same_quantity
    )


def _quotients(terms: list[str]) -> list[str]:
    """The quotients of neighbouring terms; a single term is its own quotient.

    Cross products would make 0:0 equal to every ratio.
    """
    if len(terms) == 1:
        return terms
    return [f"({numerator})/({denominator})" for numerator, denominator in pairwise(terms)]


def same_quantity(answer: str, target: str) -> bool:
    """Compare two single values, each perhaps with a unit, a percent sign or a base.

    - Units must agree: see `units_agree`.
    - Two numerals with a base must have equal digits and bases.
    - If only the target has a base, the answer may leave it out, but must have its digits.
    - If only the answer has a base, it must be ten.
    - If one value has a percent sign, see `_same_but_for_percent_sign`.
    - Other values are formulas with equal values, or equal texts.
    """
    value, unit = split_unit(answer)
    target_value, target_unit = split_unit(target)
    if not units_agree(unit, target_unit):
        return False
    numeral_match = NUMERAL_WITH_BASE.fullmatch(value)
    target_numeral_match = NUMERAL_WITH_BASE.fullmatch(target_value)
    if numeral_match and target_numeral_match:
        return _digits_and_base(numeral_match) == _digits_and_base(target_numeral_match)
    if target_numeral_match:
        # a unit is not a base: `52\text{ cm}` is not `52_8`
        return not unit and value == target_numeral_match[1]
    if numeral_match:
        digits, base = _digits_and_base(numeral_match)
        return base == "10" and _same_formula(digits, target_value)
    if ("%" in unit) != ("%" in target_unit):
        return _same_but_for_percent_sign(value, unit, target_value, target_unit)
    return value == target_value or _same_formula(value, target_value)


def _same_but_for_percent_sign(value: str, unit: str, target_value: str, target_unit: str) -> bool:
    """Compare two values of which only one has a percent sign.

    34% may be written 34, and 50% is the number 0.5. But 0.34% may not be written 0.34, which could
    be a share, and so 34%.
    """
    if value == target_value or _same_formula(value, target_value):
        # a value that is not a number, as x%, cannot be a share
        approximate_value = approximate(value)
        return approximate_value is None or abs(approximate_value) >= 1
    # percent means hundredths, unless a further unit follows: `5%/\text{year}`
    if unit == "%":
        return _same_formula(f"({value})/100", target_value)
    return target_unit == "%" and _same_formula(value, f"({target_value})/100")


def _digits_and_base(numeral_match: re.Match[str]) -> tuple[str, str]:
    """The digits of a numeral, and its base as a number in digits: `52_{eight}` has the base 8."""
    digits, base = filter(None, numeral_match.groups())
    return digits, in_digits(base)


def integer_value(text: str) -> int:
    """The value of an integer, perhaps with its base.

    Raises:
        ValueError: A text is not an integer, or has a digit or a base that does not exist.
    """
    numeral_match = NUMERAL_WITH_BASE.fullmatch(text)
    digits, base = _digits_and_base(numeral_match) if numeral_match else (text, "10")
    return int(digits, int(base))


def _same_formula(answer: str, target: str) -> bool:
    """Compare two formulas by their values.

    Names of geometric figures are not formulas: as products AB and BA would be the same.
    """
    if any(map(GEOMETRIC_NAMES.match, (answer, target))):
        return False
    return same_values(answer, target)
