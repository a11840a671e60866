"""Compares formulas with functions or roots by their values at a few points, to 25 digits.

Every step has a fixed precision and a largest size, and there is a budget of functions. So a formula costs what its
length says: nothing is simplified, solved or expanded, and no number is written out.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath  # type: ignore[import-untyped]

from harness.grading.formula import TooLarge, Unreadable, read

BITS = 1000
"""Precision of every step."""
LARGEST, LARGEST_RESULT = 10_000, 800
"""Most bits of a value, at any step and when it is compared. Of larger ones no digits would be left to compare."""
AGREEMENT, NOISE = 2.0**-83, mpmath.mpf(2) ** (200 - BITS)
"""Values agree that differ by less than this part of them, or are no larger than what rounding leaves of 0."""
ROUNDS = 12
"""Points at which formulas with letters are compared."""
SMALLEST_LETTER, LARGEST_LETTER, PRIME = 0.05, 200.0, 1_000_003
"""Letters have values between these, of both signs, over a prime that is no part of any period."""
BUDGET = 6_000
"""Most functions in all rounds; a factorial or binomial counts as 20."""

Value = Any
"""A Fraction as long as it is short, since a power's root is its exponent's denominator; else mpmath's mpf or mpc."""

_CONSTANTS = {"\\pi": mpmath.pi, "e": mpmath.e, "\\degree": mpmath.degree}
_FUNCTIONS = {name: getattr(mpmath, name) for name in "sin cos tan cot sec csc sinh cosh tanh exp".split()} | {
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan,
    "arccot": mpmath.acot, "arcsec": mpmath.asec, "arccsc": mpmath.acsc,
    "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh,
    "ln": mpmath.log, "lg": mpmath.log10, "log": lambda x, base=10: mpmath.log(x) / mpmath.log(base),
    "abs": mpmath.fabs, "!": mpmath.factorial, "binom": mpmath.binomial,
    "lfloor": lambda x: mpmath.floor(x + NOISE), "lceil": lambda x: mpmath.ceil(x - NOISE),
}  # fmt: skip
_LARGEST_ARGUMENT = dict.fromkeys(("exp", "sinh", "cosh", "tanh"), 13) | dict.fromkeys(("!", "binom"), 10)
"""Most bits of what functions are taken of that would grow too large, or take too long."""


def same_values(answer: str, target: str) -> bool:
    """Whether two formulas have one value wherever they have any, for letters of both signs.

    A point where neither has a value, or one is too large, says nothing. One where only one has a value tells them
    apart. A formula without i has no value where it is not real.

    Raises:
        TooLarge: their values are too large at every point, or take too many functions.
        Unreadable: one of them is no formula, or holds a function that is not known.
    """
    compared, too_large = False, None
    points = _Points()
    for turn in range(ROUNDS):
        try:
            found, expected = points.value(answer, turn), points.value(target, turn)
            if (found is None) != (expected is None) or (found is not None and not _agree(found, expected)):
                return False
            compared = compared or found is not None
        except TooLarge as error:
            too_large = error
        if not points.letters:
            break
    if too_large and not compared:
        raise too_large
    return compared


def has_value(formula: str) -> bool:
    """Whether a formula can be read and computed."""
    points = _Points()
    try:
        return any(points.value(formula, turn) is not None for turn in range(ROUNDS))
    except (Unreadable, TooLarge):
        return False


def approximate(formula: str) -> float | None:
    """The value of a real number without letters; None for other texts."""
    points = _Points()
    try:
        value = points.value(formula, 0)
    except (Unreadable, TooLarge):
        return None
    return None if value is None or points.letters or isinstance(value, mpmath.mpc) else float(value)


@lru_cache(maxsize=1024)
def _letter_value(place: int, turn: int) -> Fraction:
    """The value of a letter at one point: seeded by both, so that all signs and sizes of several letters meet."""
    source = random.Random(f"{place} {turn}")
    size = math.exp(source.uniform(math.log(SMALLEST_LETTER), math.log(LARGEST_LETTER)))
    return source.choice((-1, 1)) * Fraction(round(size * PRIME), PRIME)


def _agree(a: Value, b: Value) -> bool:
    with mpmath.workprec(BITS):
        a, b = _rounded(a), _rounded(b)
        scale = max(abs(a), abs(b))
        if scale > mpmath.mpf(2) ** LARGEST_RESULT:
            raise TooLarge("value too large to compare")
        return bool(scale < NOISE or abs(a - b) <= AGREEMENT * min(1, scale))


def _rounded(value: Value) -> Any:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _checked(value: Value) -> Value:
    """The value, rounded if it is a long fraction.

    Raises:
        TooLarge: it has more bits than are computed with.
    """
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) <= BITS:
            return value
        value = _rounded(value)
    if isinstance(value, mpmath.mpc) and not value.imag:
        value = value.real
    if mpmath.isfinite(value) and value != 0 and abs(mpmath.mag(value)) > LARGEST:
        raise TooLarge("number too large")
    return value


class _Points:
    """The `Numbers` of formulas that are compared: one point in each turn, where every letter has a value.

    Attributes:
        letters: The letters met so far, each with its place.
    """

    def __init__(self) -> None:
        self.letters: dict[str, int] = {}
        self._turn, self._imaginary, self._budget = 0, False, BUDGET

    def value(self, formula: str, turn: int) -> Value | None:
        """The formula's value at the point of this turn; None where it has none."""
        self._turn, self._imaginary = turn, False
        with mpmath.workprec(BITS):
            try:
                value = read(formula, self)
            except (ZeroDivisionError, ValueError):  # what mpmath raises outside a function's domain
                return None
            if isinstance(value, Fraction):
                return value
            if abs(mpmath.im(value)) <= NOISE * max(1, abs(value)):
                value = mpmath.re(value)
            return value if mpmath.isfinite(value) and (self._imaginary or not mpmath.im(value)) else None

    def number(self, value: Fraction) -> Value:
        return _checked(value)

    def letter(self, name: str) -> Value:
        if name in _CONSTANTS:
            return +_CONSTANTS[name]
        if name == "i":
            self._imaginary = True
            return mpmath.mpc(0, 1)
        return _letter_value(self.letters.setdefault(name, len(self.letters)), self._turn)

    def add(self, a: Value, b: Value) -> Value:
        return _checked(a + b if isinstance(a, Fraction) and isinstance(b, Fraction) else _rounded(a) + _rounded(b))

    def multiply(self, a: Value, b: Value) -> Value:
        return _checked(a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else _rounded(a) * _rounded(b))

    def invert(self, a: Value) -> Value:
        return _checked(1 / a)

    def power(self, base: Value, exponent: Value) -> Value:
        """The power; of a negative number, a root of an odd degree is the real one, as school has it."""
        bits = mpmath.mag(_rounded(base)) or 1 if base else 0
        if mpmath.mag(_rounded(exponent)) + mpmath.mag(bits) > LARGEST.bit_length():
            raise TooLarge("power too large")
        if isinstance(exponent, Fraction) and exponent.denominator % 2 and not mpmath.im(_rounded(base)) and base < 0:
            sign = -1 if exponent.numerator % 2 else 1
            return _checked(sign * mpmath.power(-_rounded(base), _rounded(exponent)))
        return _checked(mpmath.power(_rounded(base), _rounded(exponent)))

    def function(self, name: str, *arguments: Value) -> Value:
        if name == "sqrt":
            value, degree = arguments
            return self.power(value, self.invert(degree))
        values = [_rounded(argument) for argument in arguments]
        if any(value and mpmath.mag(value) > _LARGEST_ARGUMENT.get(name, LARGEST) for value in values):
            raise TooLarge(f"{name} of a large number")
        if name not in _FUNCTIONS:
            raise Unreadable(name)
        self._budget -= 20 if name in ("!", "binom") else 1
        if self._budget < 0:
            raise TooLarge("too many functions")
        if name in ("!", "binom") and any(mpmath.im(value) for value in values):
            raise Unreadable(f"{name} of a complex number")
        return _checked(_FUNCTIONS[name](*values))
