"""Compares formulas with functions or roots by their values at a few points, to 25 digits.

Every step has a fixed precision and a largest size, so a formula costs what its length says: nothing is simplified,
solved or expanded, and no number is written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]

from harness.grading.formula import TooLarge, Unreadable, read

BITS = 1000
"""Precision of every step."""
LARGEST, LARGEST_RESULT = 10_000, 800
"""Most bits of a value, at any step and when it is compared. Of larger ones no digits would be left to compare."""
AGREEMENT, NOISE = 2.0**-83, mpmath.mpf(2) ** (200 - BITS)
"""Values agree that differ by less than this part of them, or are no larger than what rounding leaves of 0."""
ROUNDS = 8
"""Points at which formulas with letters are compared."""

Value = Any
"""A Fraction as long as it is short, since a power's root is its exponent's denominator; else mpmath's mpf or mpc."""

_CONSTANTS = {"\\pi": mpmath.pi, "e": mpmath.e, "\\degree": mpmath.degree}
_FUNCTIONS = {name: getattr(mpmath, name) for name in "sin cos tan cot sec csc sinh cosh tanh exp".split()} | {
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan,
    "arccot": mpmath.acot, "arcsec": mpmath.asec, "arccsc": mpmath.acsc,
    "ln": mpmath.log, "lg": mpmath.log10, "log": lambda x, base=10: mpmath.log(x) / mpmath.log(base),
    "abs": mpmath.fabs, "!": mpmath.factorial, "binom": mpmath.binomial,
    "lfloor": lambda x: mpmath.floor(x + NOISE), "lceil": lambda x: mpmath.ceil(x - NOISE),
}  # fmt: skip
_LARGEST_ARGUMENT = dict.fromkeys(("exp", "sinh", "cosh", "tanh"), 13) | dict.fromkeys(("!", "binom"), 10)
"""Most bits of what functions are taken of that would grow too large, or take too long."""


def same_values(answer: str, target: str) -> bool:
    """Whether two formulas have one value wherever they have any, for letters of both signs.

    A point outside the domain of both says nothing. One that is outside the domain of only one tells them apart.

    Raises:
        TooLarge: a step has a value of more bits than are computed with.
        Unreadable: one of them is no formula, or holds a function that is not known.
    """
    compared = False
    for found, expected in _values(answer, target):
        if (found is None) != (expected is None) or (found is not None and not _agree(found, expected)):
            return False
        compared = compared or found is not None
    return compared


def has_value(formula: str) -> bool:
    """Whether a formula can be read and computed."""
    try:
        return bool(next(_values(formula)))
    except (Unreadable, TooLarge):
        return False


def approximate(formula: str) -> float | None:
    """The value of a real number without letters; None for other texts."""
    letters: dict[str, int] = {}
    try:
        value = _value(formula, _Point(letters, 0))
    except (Unreadable, TooLarge):
        return None
    return None if letters or value is None or mpmath.im(_rounded(value)) else float(mpmath.re(_rounded(value)))


def _values(*formulas: str) -> Iterator[list[Value | None]]:
    """The formulas' values at one point after the other; None where one has no value."""
    places: dict[str, int] = {}
    for turn in range(ROUNDS):
        with mpmath.workprec(BITS):
            yield [_value(formula, _Point(places, turn)) for formula in formulas]
        if not places:
            return


def _value(formula: str, point: _Point) -> Value | None:
    try:
        value = read(formula, point)
    except (ZeroDivisionError, ValueError):  # what mpmath raises outside a function's domain
        return None
    return value if isinstance(value, Fraction) or mpmath.isfinite(value) else None


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
    if mpmath.isfinite(value) and value != 0 and abs(mpmath.mag(value)) > LARGEST:
        raise TooLarge("number too large")
    return value


class _Point:
    """The `Numbers` of a formula at one point: every letter has a value there.

    Over the rounds every letter has both signs, since |x| is not x, and two of the first seven have equal and opposite
    ones, since |xy| is not xy.

    Args:
        places: The letters met so far, over all formulas and rounds.
        turn: Which round, from 0.
    """

    def __init__(self, places: dict[str, int], turn: int) -> None:
        self._places, self._turn = places, turn

    def number(self, value: Fraction) -> Value:
        return _checked(value)

    def letter(self, name: str) -> Value:
        if name in _CONSTANTS:
            return +_CONSTANTS[name]
        if name == "i":
            return mpmath.mpc(0, 1)
        place = self._places.setdefault(name, len(self._places))
        sign = (-1) ** (self._turn & (1 + place % (ROUNDS - 1))).bit_count()
        return sign * (Fraction(7, 10) + Fraction(self._turn, 5) + Fraction(37 * place, 1009))

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
        return _checked(_FUNCTIONS[name](*values))
