"""Compute formulas at a few points, to 25 digits.

Short fractions are exact. All other values have a fixed precision and a largest size, and there is
a budget of functions. So the length of a formula bounds its cost: nothing is simplified, solved or
expanded.
"""

import math
import random
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from itertools import chain, starmap

import mpmath  # type: ignore[import-untyped]

from harness.grading.formula import TooLarge, Unreadable, Value, blame_gold_answer, read

PRECISION_BITS = 1000
"""The precision of each step of a formula."""
MOST_EXACT_BITS = 2**16
"""Most bits of the numerator and the denominator of a value that is not rounded."""
MOST_ROUNDED_BITS = 10_000
"""Most bits of a rounded value, before and after its point."""
MOST_RESULT_BITS = 800
"""Most bits of a value that is compared. Of larger values no digits would remain to compare."""
AGREEMENT_BITS = 83
"""Bits to which values must agree: 25 digits."""
TOLERANCE = 2.0**-AGREEMENT_BITS
"""The largest difference of values that agree. Of values below 1 it is relative."""
POINT_COUNT = 12
"""The number of points at which formulas with letters are compared."""
SMALLEST_LETTER_VALUE = 0.05
"""The smallest absolute value that is substituted for a letter."""
LARGEST_LETTER_VALUE = 200.0
"""The largest absolute value that is substituted for a letter."""
LETTER_DENOMINATOR = 1_000_003
"""The denominator of these values: a prime, so that none is a simple fraction of a period."""
COMPARISON_BUDGET = 40_000
"""The budget for all pairs of formulas in one comparison: about a second, if a list has many long
entries. Each function costs 1, and so do 16 characters that are computed at a point."""
PAIR_BUDGET = 6_000
"""The budget for the functions of one pair of formulas, at all points. A factorial or binomial
costs 20, and a step with long fractions up to 32."""

_ROUNDING_ERROR = mpmath.mpf(2) ** (200 - PRECISION_BITS)
"""The largest rounding error of a value that is 0, after steps that lose up to 200 bits."""
_CONSTANT_BY_NAME = {"\\pi": mpmath.pi, "e": mpmath.e, "\\degree": mpmath.degree}
_INVERTIBLE_NAMES = "sin cos tan cot sec csc sinh cosh tanh".split()
_FUNCTION_BY_NAME = {name: getattr(mpmath, name) for name in (*_INVERTIBLE_NAMES, "exp")}
_FUNCTION_BY_NAME |= {f"arc{name}": getattr(mpmath, f"a{name}") for name in _INVERTIBLE_NAMES}
_FUNCTION_BY_NAME |= {
    "ln": mpmath.log, "lg": mpmath.log10,
    "log": lambda x, base=10: mpmath.log(x) / mpmath.log(base),
    "abs": mpmath.fabs, "!": mpmath.factorial, "binom": mpmath.binomial,
    "lfloor": lambda x: mpmath.floor(x + _ROUNDING_ERROR),
    "lceil": lambda x: mpmath.ceil(x - _ROUNDING_ERROR),
}  # fmt: skip
_COMBINATORIAL_NAMES = ("!", "binom")
_MOST_ARGUMENT_BITS_BY_NAME = dict.fromkeys(("exp", "sinh", "cosh", "tanh"), 13)
_MOST_ARGUMENT_BITS_BY_NAME |= dict.fromkeys(_COMBINATORIAL_NAMES, 10)
"""Most bits of the arguments of functions that would otherwise be too large or too slow."""

_remaining_budget = [COMPARISON_BUDGET]
"""The remaining budget of the current comparison, over all its pairs of formulas. It is in a list,
so that functions can change it."""


def begin_comparison() -> None:
    """Restore the full budget, before an answer is compared with its gold answers."""
    _remaining_budget[0] = COMPARISON_BUDGET


def same_values(answer: str, target: str) -> bool:
    """Whether two formulas have the same values, for letters of both signs.

    A point says nothing if neither formula has a value there, or a value is too large. If only one
    has a value, the formulas differ. A formula without i has no value where it is not real.

    Raises:
        TooLarge: The values are too large at every point, or take too many functions.
    """
    has_values = False
    for value, target_value in _values_at_points(answer, target):
        if value is None or target_value is None or not _agree(value, target_value):
            return False
        has_values = True
    return has_values


def constant_ratio(answer: str, target: str) -> float:
    """The ratio of two formulas if it is the same real number at every point, else 0.

    Raises:
        TooLarge: As for `same_values`.
    """
    value_pairs = [*_values_at_points(answer, target)]
    values = chain.from_iterable(value_pairs)
    # A value of 0 has no ratio. It is the difference of an identity, such as `\sqrt2\sqrt2=2`.
    if not value_pairs or any(value is None or _agree(value, Fraction(0)) for value in values):
        return 0.0
    with mpmath.workprec(PRECISION_BITS):
        ratios = [a / b for a, b in starmap(_in_one_precision, value_pairs)]
    if any(isinstance(ratio, mpmath.mpc) or not _agree(ratio, ratios[0]) for ratio in ratios):
        return 0.0
    return float(ratios[0])


def has_value(formula: str) -> bool:
    """Whether a formula can be read and computed."""
    # 0 stands for the second formula, which is not needed
    try:
        return any(value is not None for value, _ in _values_at_points(formula, "0"))
    except TooLarge:
        return False


def approximate(formula: str) -> float | None:
    """The value of a real number without letters; None for other texts."""
    evaluator = Evaluator()
    try:
        value = evaluator.real_value(formula, 0)
    except (Unreadable, TooLarge):
        return None
    return None if evaluator.letters else float(value)


def has_letters(formula: str) -> bool:
    """Whether a formula contains letters that stand for numbers."""
    evaluator = Evaluator()
    with suppress(Unreadable, TooLarge):
        evaluator.value(formula, 0)
    return bool(evaluator.letters)


def _values_at_points(answer: str, target: str) -> Iterator[tuple[Value | None, Value | None]]:
    """Yield the values of two formulas at each point; None for a formula that has none there.

    - A point is skipped if neither formula has a value, or if a value is too large.
    - If a formula is not readable, two None are the last values.
    - Without letters there is a single point.

    Raises:
        TooLarge: No point is left, and one was skipped because a value was too large.
    """
    evaluator = Evaluator()
    has_values = False
    size_error = None
    for point_index in range(POINT_COUNT):
        try:
            value = evaluator.value(answer, point_index)
            with blame_gold_answer():
                target_value = evaluator.value(target, point_index)
        except TooLarge as error:
            # the values at other points may be smaller
            size_error = error
        except Unreadable:
            yield None, None
            return
        else:
            if value is not None or target_value is not None:
                has_values = True
                yield value, target_value
        # without letters all points are the same
        if not evaluator.letters:
            break
    if size_error and not has_values:
        raise size_error


@lru_cache(maxsize=1024)
def letter_value(letter_index: int, point_index: int) -> Fraction:
    """The value of a letter at a point, seeded by both, so that signs and sizes vary freely."""
    generator = random.Random(f"{letter_index} {point_index}")
    magnitude = math.exp(
        generator.uniform(math.log(SMALLEST_LETTER_VALUE), math.log(LARGEST_LETTER_VALUE))
    )
    return generator.choice((-1, 1)) * Fraction(
        round(magnitude * LETTER_DENOMINATOR), LETTER_DENOMINATOR
    )


def _agree(a: Value, b: Value) -> bool:
    """Whether two values are equal, up to rounding.

    The largest difference is relative for values below 1, so that 1e-30 and 2e-30 differ, and
    absolute for larger ones, so that 1e30 and 1e30 + 1 differ.
    """
    with mpmath.workprec(PRECISION_BITS):
        a, b = _in_one_precision(a, b)
        if isinstance(a, Fraction):
            return bool(a == b)
        magnitude = max(abs(a), abs(b))
        # both values are 0 up to rounding, or their difference is small
        return bool(magnitude < _ROUNDING_ERROR or abs(a - b) <= TOLERANCE * min(1, magnitude))


def _in_one_precision(a: Value, b: Value) -> tuple[Value, Value]:
    """Both values exactly if both are exact; otherwise both rounded."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a, b
    return _rounded(a), _rounded(b)


def _rounded(value: Value) -> Value:
    """A fraction as a rounded value; a rounded value unchanged."""
    if isinstance(value, Fraction):
        return _refuse_tiny(mpmath.mpf(value.numerator) / value.denominator)
    return value


def _refuse_tiny(value: Value) -> Value:
    """Return a value unless it is so small that it would pass for a rounded 0."""
    if value and mpmath.mag(value) < -MOST_RESULT_BITS:
        raise TooLarge("number too small")
    return value


def _count_bits(fraction: Fraction) -> int:
    """The bits of the longer one of numerator and denominator."""
    return max(fraction.numerator.bit_length(), fraction.denominator.bit_length())


def _is_natural(value: Value) -> bool:
    """Whether a value is 0, 1, 2, ..."""
    return isinstance(value, Fraction) and value.denominator == 1 and value >= 0


def _exact_factorial_or_binomial(n: int, k: int | None = None) -> Fraction:
    """The factorial of n without k; with k the binomial, the number of choices of k from n."""
    # n! has n factors, and a binomial the fewer of k and n - k
    factor_count = n if k is None else min(k, n - k)
    if factor_count * n.bit_length() > MOST_EXACT_BITS:
        raise TooLarge("factorial too large")
    return Fraction(math.factorial(n) if k is None else math.comb(n, k))


class Evaluator:
    """Computes formulas at points. A point, given by its index, has a value for every letter.

    Attributes:
        letters: The letters so far, each with its index.
        letter_read_count: How many times a letter was read. The reader compares it before and after
            a root, to know whether the root is that of a number.
    """

    def __init__(self) -> None:
        self.letters: dict[str, int] = {}
        self.letter_read_count = 0
        # whether the formula that is computed has i or the root of a negative number
        self._may_be_complex = False
        self._point_index = 0
        self._remaining_pair_budget = PAIR_BUDGET

    def value(self, formula: str, point_index: int) -> Value | None:
        """The formula's value at the point with this index; None where it has no value."""
        self._point_index = point_index
        self._may_be_complex = False
        self._spend(len(formula) // 16)
        with mpmath.workprec(PRECISION_BITS):
            try:
                value = read(formula, self)
            except (ZeroDivisionError, ValueError):  # mpmath's errors outside a function's domain
                return None
            if isinstance(value, Fraction):
                return value
            if abs(value) > mpmath.mpf(2) ** MOST_RESULT_BITS:
                raise TooLarge("number too large")
            # an imaginary part that is only rounding, as of i squared, is dropped
            if abs(mpmath.im(value)) <= _ROUNDING_ERROR * max(1, abs(value)):
                value = mpmath.re(value)
            # `\log(-1)` has no real value, so only a formula with i may have a complex one
            has_value = mpmath.isfinite(value) and (self._may_be_complex or not mpmath.im(value))
            return value if has_value else None

    def real_value(self, formula: str, point_index: int) -> Value:
        """The formula's value to 25 digits.

        Raises:
            Unreadable: It is not a real number.
        """
        value = self.value(formula, point_index)
        if value is None or isinstance(value, mpmath.mpc):
            raise Unreadable("no real number")
        with mpmath.workprec(AGREEMENT_BITS):
            # the plus sign makes mpmath round the value to this precision
            return +_rounded(value)

    def letter(self, name: str) -> Value:
        """A letter or constant."""
        if name in _CONSTANT_BY_NAME:
            # The plus sign makes mpmath compute the constant now, in the precision of this formula.
            return +_CONSTANT_BY_NAME[name]
        if name == "i":
            self._may_be_complex = True
            return mpmath.mpc(0, 1)
        self.letter_read_count += 1
        return letter_value(self.letters.setdefault(name, len(self.letters)), self._point_index)

    def plus(self, a: Value, b: Value) -> Value:
        """The sum."""
        a, b = _in_one_precision(a, b)
        return self.limit_size(a + b)

    def times(self, a: Value, b: Value) -> Value:
        """The product."""
        a, b = _in_one_precision(a, b)
        return self.limit_size(a * b)

    def power(self, base: Value, exponent: Value) -> Value:
        """The power. A root of odd degree of a negative number is the real root, as in school."""
        is_rational = isinstance(exponent, Fraction)
        if is_rational and exponent.denominator == 1 and isinstance(base, Fraction):
            # an exact power with a long numerator or denominator would take too long
            if abs(exponent) * _count_bits(base) <= MOST_EXACT_BITS:
                return self.limit_size(base**exponent.numerator)
        base = _rounded(base)
        rounded_exponent = _rounded(exponent)
        # `mag` estimates a binary logarithm from above. The power has about exponent * base_bits
        # bits. The limit is checked on the logarithms of both factors, because an exponent may be
        # too large to multiply.
        base_bits = max(1, abs(mpmath.mag(base))) if base else 0
        if mpmath.mag(rounded_exponent) + mpmath.mag(base_bits) > MOST_ROUNDED_BITS.bit_length():
            raise TooLarge("number too large")
        # of an odd root of -8 the sign is taken out: (-8)^(2/3) is (-1)^2 * 8^(2/3)
        if is_rational and exponent.denominator % 2 and not mpmath.im(base) and base < 0:
            value = (-1 if exponent.numerator % 2 else 1) * mpmath.power(-base, rounded_exponent)
        else:
            value = mpmath.power(base, rounded_exponent)
        return self.limit_size(_refuse_tiny(value))

    def root(self, value: Value, degree: Value, *, has_letters: bool) -> Value:
        """The root of a value.

        The square root of a negative number is imaginary. At a point where a letter makes the
        radicand negative, the formula has no value instead, because the letter may mean a positive
        number.
        """
        is_negative_number = isinstance(value, Fraction) and value < 0 and not has_letters
        self._may_be_complex |= degree == 2 and is_negative_number
        return self.power(value, 1 / degree)

    def function(self, name: str, *arguments: Value) -> Value:
        """The value of a function, by its command: `log` of a value and its base, `binom`, ...

        Factorials and binomials of natural numbers are exact, and all other functions are rounded.
        """
        is_combinatorial = name in _COMBINATORIAL_NAMES
        self._spend(20 if is_combinatorial else 1)
        if is_combinatorial and all(map(_is_natural, arguments)):
            return _exact_factorial_or_binomial(*map(int, arguments))
        rounded_arguments = [*map(_rounded, arguments)]
        most_argument_bits = _MOST_ARGUMENT_BITS_BY_NAME.get(name, MOST_ROUNDED_BITS)
        if any(value and mpmath.mag(value) > most_argument_bits for value in rounded_arguments):
            raise TooLarge(f"{name} of a large number")
        if is_combinatorial and any(map(mpmath.im, rounded_arguments)):
            raise Unreadable(f"{name} of a complex number")
        return self.limit_size(_FUNCTION_BY_NAME[name](*rounded_arguments))

    def limit_size(self, value: Value) -> Value:
        """The value, rounded if it is too long a fraction.

        Raises:
            TooLarge: It has more than `MOST_ROUNDED_BITS` bits.
        """
        if isinstance(value, Fraction):
            bit_count = _count_bits(value)
            if bit_count <= MOST_EXACT_BITS:
                # the cost grows with the square of the length, up to 32 for `MOST_EXACT_BITS`
                self._spend((bit_count // 2**12) ** 2 // 8)
                return value
            value = _rounded(value)
        if isinstance(value, mpmath.mpc) and not value.imag:
            value = value.real
        if mpmath.isfinite(value) and value != 0 and abs(mpmath.mag(value)) > MOST_ROUNDED_BITS:
            raise TooLarge("number too large")
        return value

    def _spend(self, cost: int) -> None:
        """Take a cost from both budgets, and raise `TooLarge` if one of them is used up."""
        self._remaining_pair_budget -= cost
        _remaining_budget[0] -= cost
        if self._remaining_pair_budget < 0:
            raise TooLarge("too much work")
        if _remaining_budget[0] < 0:
            raise TooLarge("budget")
