"""Computes formulas at a few points, to 25 digits.

Fractions are exact while they are short; all else has a fixed precision and a largest size, and
there is a budget of functions. So a formula costs what its length says: nothing is simplified,
solved or expanded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import mpmath  # type: ignore[import-untyped]

from harness.grading.formula import TooLarge, Unreadable, Value, blame_gold_answer, read

PRECISION_BITS = 1000
"""Of every step of a formula."""
EXACT_BITS = 2**16
"""Of the numerator and denominator of a value that is not rounded."""
MOST_BITS = 10_000
"""Of a rounded value, before and after its point."""
MOST_RESULT_BITS = 800
"""Of a value that is compared. Of larger ones no digits would be left to compare."""
AGREEMENT = 2.0**-83
"""Values agree that differ by less than this part of them: 25 digits."""
POINTS = 12
"""At which formulas with letters are compared."""
SMALLEST_LETTER, LARGEST_LETTER, LETTER_PRIME = 0.05, 200.0, 1_000_003
"""Letters have values between these, of both signs, over a prime that is no part of any period."""
COMPARISON_BUDGET = 40_000
"""Of all pairs of formulas in one comparison: about a second, where a list has many long entries.
One is spent for each function, and for each 16 characters that are computed at a point."""
BUDGET = 6_000
"""Functions of one pair of formulas, at all points. A factorial or binomial counts as 20, a step
with long fractions as 32."""

_NOISE = mpmath.mpf(2) ** (200 - PRECISION_BITS)
"""What rounding leaves of 0 is no larger."""
_CONSTANTS = {"\\pi": mpmath.pi, "e": mpmath.e, "\\degree": mpmath.degree}
_FUNCTIONS = {name: getattr(mpmath, name) for name in "sin cos tan cot sec csc sinh cosh tanh exp".split()} | {
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan,
    "arccot": mpmath.acot, "arcsec": mpmath.asec, "arccsc": mpmath.acsc,
    "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh,
    "ln": mpmath.log, "lg": mpmath.log10, "log": lambda x, base=10: mpmath.log(x) / mpmath.log(base),
    "abs": mpmath.fabs, "!": mpmath.factorial, "binom": mpmath.binomial,
    "lfloor": lambda x: mpmath.floor(x + _NOISE), "lceil": lambda x: mpmath.ceil(x - _NOISE),
}  # fmt: skip
_LARGEST_ARGUMENT = dict.fromkeys(("exp", "sinh", "cosh", "tanh"), 13) | dict.fromkeys(
    ("!", "binom"), 10
)
"""Most bits of what functions are taken of that would grow too large, or take too long."""


_left = [COMPARISON_BUDGET]
"""What is left of the work that one comparison may take, over all pairs of formulas in it."""


def begin_comparison() -> None:
    """From here on there is a whole budget again."""
    _left[0] = COMPARISON_BUDGET


def same_values(answer: str, target: str) -> bool:
    """Whether two formulas have one value wherever they have any, for letters of both signs.

    A point where neither has a value, or one is too large, says nothing. One where only one has a
    value tells them apart. A formula without i has no value where it is not real.

    Raises:
        TooLarge: their values are too large at every point, or take too many functions.
    """
    compared = False
    for found, expected in _at_points(answer, target):
        if found is None or expected is None or not _agree(found, expected):
            return False
        compared = True
    return compared


def constant_ratio(answer: str, target: str) -> float:
    """The real number that the first formula is of the second at every point; 0 if there is none.

    Raises:
        TooLarge: as `same_values`.
    """
    pairs = list(_at_points(answer, target))
    if not pairs or not all(found and expected for found, expected in pairs):
        return 0.0
    with mpmath.workprec(PRECISION_BITS):
        ratios = [a / b for a, b in (_alike(*pair) for pair in pairs)]
    constant = all(
        not isinstance(ratio, mpmath.mpc) and _agree(ratio, ratios[0]) for ratio in ratios
    )
    return float(ratios[0]) if constant else 0.0


def has_value(formula: str) -> bool:
    """Whether a formula can be read and computed."""
    try:
        return any(found is not None for found, _ in _at_points(formula, "0"))
    except TooLarge:
        return False


def approximate(formula: str) -> float | None:
    """The value of a real number without letters; None for other texts."""
    point = Point()
    try:
        value = point.value(formula, 0)
    except (Unreadable, TooLarge):
        return None
    return None if value is None or point.letters or isinstance(value, mpmath.mpc) else float(value)


def _at_points(answer: str, target: str) -> Iterator[tuple[Value | None, Value | None]]:
    """The values of two formulas at every point where either has one and neither is too large; None
    if unreadable."""
    point, compared, too_large = Point(), False, None
    for turn in range(POINTS):
        try:
            found = point.value(answer, turn)
            with blame_gold_answer():
                expected = point.value(target, turn)
            if found is not None or expected is not None:
                yield found, expected
                compared = True
        except TooLarge as error:
            too_large = error
        except Unreadable:
            yield None, None
            return
        if not point.letters:
            break
    if too_large and not compared:
        raise too_large


@lru_cache(maxsize=1024)
def letter_value(place: int, turn: int) -> Fraction:
    """The value of a letter at one point: seeded by both, so that all signs and sizes of several
    letters meet."""
    source = random.Random(f"{place} {turn}")
    size = math.exp(source.uniform(math.log(SMALLEST_LETTER), math.log(LARGEST_LETTER)))
    return source.choice((-1, 1)) * Fraction(round(size * LETTER_PRIME), LETTER_PRIME)


def _agree(a: Value, b: Value) -> bool:
    with mpmath.workprec(PRECISION_BITS):
        a, b = _alike(a, b)
        if isinstance(a, Fraction):
            return bool(a == b)
        scale = max(abs(a), abs(b))
        return bool(scale < _NOISE or abs(a - b) <= AGREEMENT * min(1, scale))


def _alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Both values exactly if both are exact, else both rounded."""
    return (
        (a, b)
        if isinstance(a, Fraction) and isinstance(b, Fraction)
        else (_rounded(a), _rounded(b))
    )


def _rounded(value: Value) -> Value:
    return (
        _not_small(mpmath.mpf(value.numerator) / value.denominator)
        if isinstance(value, Fraction)
        else value
    )


def _not_small(value: Value) -> Value:
    """The value, which would pass for what rounding leaves of 0 if it were too small."""
    if value and mpmath.mag(value) < -MOST_RESULT_BITS:
        raise TooLarge("number too small")
    return value


class Point:
    """A point at which formulas are computed. It has a value for every letter, another one in each
    turn.

    Attributes:
        letters: The letters met so far, each with its place.
    """

    def __init__(self) -> None:
        self.letters: dict[str, int] = {}
        self.letters_read = 0
        self._turn, self._imaginary, self._budget = 0, False, BUDGET

    def value(self, formula: str, turn: int) -> Value | None:
        """The formula's value at the point of this turn; None where it has none."""
        self._turn, self._imaginary = turn, False
        self._spend(len(formula) >> 4)
        with mpmath.workprec(PRECISION_BITS):
            try:
                value = read(formula, self)
            except (
                ZeroDivisionError,
                ValueError,
            ):  # what mpmath raises outside a function's domain
                return None
            if isinstance(value, Fraction):
                return value
            if abs(value) > mpmath.mpf(2) ** MOST_RESULT_BITS:
                raise TooLarge("number too large")
            if abs(mpmath.im(value)) <= _NOISE * max(1, abs(value)):
                value = mpmath.re(value)
            return (
                value
                if mpmath.isfinite(value) and (self._imaginary or not mpmath.im(value))
                else None
            )

    def letter(self, name: str) -> Value:
        """A letter or constant."""
        if name in _CONSTANTS:
            return +_CONSTANTS[name]
        if name == "i":
            self._imaginary = True
            return mpmath.mpc(0, 1)
        self.letters_read += 1
        return letter_value(self.letters.setdefault(name, len(self.letters)), self._turn)

    def plus(self, a: Value, b: Value) -> Value:
        """The sum."""
        a, b = _alike(a, b)
        return self.checked(a + b)

    def times(self, a: Value, b: Value) -> Value:
        """The product."""
        a, b = _alike(a, b)
        return self.checked(a * b)

    def power(self, base: Value, exponent: Value) -> Value:
        """The power; of a negative number, a root of an odd degree is the real one, as school has
        it."""
        rational = isinstance(exponent, Fraction)
        if rational and exponent.denominator == 1 and isinstance(base, Fraction):
            if (
                abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length())
                <= EXACT_BITS
            ):
                return self.checked(base**exponent.numerator)
        base, power, size = (
            _rounded(base),
            _rounded(exponent),
            mpmath.mag(_rounded(base)) or 1 if base else 0,
        )
        if mpmath.mag(power) + mpmath.mag(size) > MOST_BITS.bit_length():
            raise TooLarge("number too large")
        if rational and exponent.denominator % 2 and not mpmath.im(base) and base < 0:
            value = (-1 if exponent.numerator % 2 else 1) * mpmath.power(-base, power)
        else:
            value = mpmath.power(base, power)
        return self.checked(_not_small(value))

    def root(self, value: Value, degree: Value, *, of_number: bool) -> Value:
        """A root. That of a negative number is imaginary; that of a negative value of a letter is
        none."""
        self._imaginary |= of_number and degree == 2 and isinstance(value, Fraction) and value < 0
        return self.power(value, 1 / degree)

    def function(self, name: str, *arguments: Value) -> Value:
        """A function by its command: `log` of a value and its base, `binom`, ..."""
        self._spend(20 if name in ("!", "binom") else 1)
        if name in ("!", "binom"):
            if all(
                isinstance(one, Fraction) and one.denominator == 1 and one >= 0 for one in arguments
            ):
                n, k = int(arguments[0]), int(arguments[-1])
                if (n if name == "!" else min(k, n - k)) * n.bit_length() > EXACT_BITS:
                    raise TooLarge("factorial too large")
                return Fraction(math.factorial(n) if name == "!" else math.comb(n, k))
        values = [_rounded(argument) for argument in arguments]
        if any(
            value and mpmath.mag(value) > _LARGEST_ARGUMENT.get(name, MOST_BITS) for value in values
        ):
            raise TooLarge(f"{name} of a large number")
        if name in ("!", "binom") and any(mpmath.im(value) for value in values):
            raise Unreadable(f"{name} of a complex number")
        return self.checked(_FUNCTIONS[name](*values))

    def checked(self, value: Value) -> Value:
        """The value, rounded if it is too long a fraction.

        Raises:
            TooLarge: it has more bits than are computed with.
        """
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            if bits <= EXACT_BITS:
                self._spend((bits >> 12) ** 2 // 8)
                return value
            value = _rounded(value)
        if isinstance(value, mpmath.mpc) and not value.imag:
            value = value.real
        if mpmath.isfinite(value) and value != 0 and abs(mpmath.mag(value)) > MOST_BITS:
            raise TooLarge("number too large")
        return value

    def _spend(self, work: int) -> None:
        self._budget -= work
        _left[0] -= work
        if self._budget < 0:
            raise TooLarge("too much work")
        if _left[0] < 0:
            raise TooLarge("budget")
