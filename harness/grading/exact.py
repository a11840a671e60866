"""Exact values: quotients of polynomials over the rationals in letters, \\pi, i and the square roots of primes.

Two such values are equal exactly if cross-multiplication gives the same polynomial. So equality *and* difference are
proved. Work is counted, and `TooLarge` is raised before there is too much of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from harness.grading.formula import TooLarge, Unreadable

Monomial = tuple[tuple[str, int], ...]
"""Generators such as `x`, `pi`, `i` and `√2` with their exponents, sorted."""
Polynomial = dict[Monomial, Fraction]

MOST_PRODUCTS, MOST_BITS, MOST_POWER = 20_000, 2**16, 2_000
ONE: Polynomial = {(): Fraction(1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotient:
    """A numerator over a denominator that is 1 or has several terms."""

    numerator: Polynomial
    denominator: Polynomial = field(default_factory=lambda: ONE)

    def rational(self) -> Fraction | None:
        """The value as a rational number. None: it is not rational."""
        if self.denominator is not ONE or set(self.numerator) - {()}:
            return None
        return self.numerator.get((), Fraction(0))


@dataclass(slots=True, kw_only=True)
class Arithmetic:
    """The `Numbers` of a formula that is compared exactly, within a budget of products of terms.

    Functions, powers that are no numbers, and roots of letters are `Unreadable` to it.
    """

    products_left: int = MOST_PRODUCTS

    def number(self, value: Fraction) -> Quotient:
        """A rational number."""
        return Quotient(numerator={(): value} if value else {})

    def letter(self, name: str) -> Quotient:
        """A letter or constant."""
        return Quotient(numerator={((name, 1),): Fraction(1)})

    def add(self, a: Quotient, b: Quotient) -> Quotient:
        """The sum."""
        if a.denominator == b.denominator:
            return Quotient(numerator=_sum(a.numerator, b.numerator), denominator=a.denominator)
        numerator = _sum(self._times(a.numerator, b.denominator), self._times(b.numerator, a.denominator))
        return Quotient(numerator=numerator, denominator=self._times(a.denominator, b.denominator))

    def multiply(self, a: Quotient, b: Quotient) -> Quotient:
        """The product."""
        over_one = a.denominator is ONE and b.denominator is ONE
        return Quotient(
            numerator=self._times(a.numerator, b.numerator),
            denominator=ONE if over_one else self._times(a.denominator, b.denominator),
        )

    def invert(self, a: Quotient) -> Quotient:
        """1 / a.

        Raises:
            ZeroDivisionError: a is 0.
        """
        if not a.numerator:
            raise ZeroDivisionError
        if len(a.numerator) > 1:
            return Quotient(numerator=a.denominator, denominator=a.numerator)
        ((monomial, coefficient),) = a.numerator.items()
        inverse = _reduced({name: -exponent for name, exponent in monomial}, 1 / coefficient)
        return Quotient(numerator=self._times(dict([inverse]), a.denominator))

    def power(self, base: Quotient, exponent: Quotient) -> Quotient:
        """The value raised to a whole number."""
        number = exponent.rational()
        if number is None or number.denominator != 1:
            raise Unreadable("power that is no whole number")
        if abs(number.numerator) > MOST_POWER and max(len(base.numerator), len(base.denominator)) > 1:
            raise TooLarge("power too large")
        base, result = (self.invert(base) if number < 0 else base), Quotient(numerator=ONE)
        for bit in bin(abs(number.numerator))[2:]:  # by squaring
            result = self.multiply(result, result)
            if bit == "1":
                result = self.multiply(result, base)
        return result

    def function(self, name: str, *arguments: Quotient) -> Quotient:
        """Square roots, factorials and binomials of rational numbers."""
        values = [value for argument in arguments if (value := argument.rational()) is not None]
        if len(values) < len(arguments):
            raise Unreadable(f"{name} of more than a number")
        value = values[0]
        if name == "sqrt" and values[1] == 2:
            return self.square_root(value)
        if name in ("!", "binom") and min(values) >= 0 and all(one.denominator == 1 for one in values):
            n, k = int(value), int(values[-1])
            factors = n if name == "!" else min(k, n - k)
            if factors * n.bit_length() > MOST_BITS:
                raise TooLarge("factorial too large")
            return self.number(Fraction(math.factorial(n) if name == "!" else math.comb(n, k)))
        raise Unreadable(f"{name} of a number")

    def square_root(self, value: Fraction) -> Quotient:
        """The root of a rational number: a rational times roots of distinct primes. Unreadable if hard to factor."""
        rest, outside, inside = abs(value.numerator * value.denominator), 1, []
        if rest == 0:
            return self.number(Fraction(0))
        for prime in _SMALL_PRIMES:
            while rest % (prime * prime) == 0:
                rest //= prime * prime
                outside *= prime
            if rest % prime == 0:
                rest //= prime
                inside.append(prime)
        if math.isqrt(rest) ** 2 == rest:
            outside, rest = outside * math.isqrt(rest), 1
        if rest > 1:
            if rest > _SMALL_PRIMES[-1] ** 2:  # otherwise rest is prime
                raise Unreadable("root of a number that is hard to factor")
            inside.append(rest)
        names = sorted([f"√{prime}" for prime in inside] + ["i"] * (value < 0))
        return Quotient(numerator={tuple((name, 1) for name in names): Fraction(outside, value.denominator)})

    def equal(self, a: Quotient, b: Quotient) -> bool:
        """Whether a and b are the same value."""
        return self._times(a.numerator, b.denominator) == self._times(b.numerator, a.denominator)

    def ratio(self, a: Quotient, b: Quotient) -> Fraction | None:
        """The rational number that a is of b; None if there is none, or one of them is 0."""
        left, right = self._times(a.numerator, b.denominator), self._times(b.numerator, a.denominator)
        if not left or left.keys() != right.keys():
            return None
        ratios = {left[monomial] / right[monomial] for monomial in left}
        return ratios.pop() if len(ratios) == 1 else None

    def _times(self, a: Polynomial, b: Polynomial) -> Polynomial:
        if a is ONE or b is ONE:
            return b if a is ONE else a
        self.products_left -= len(a) * len(b)
        if self.products_left < 0:
            raise TooLarge("too many terms")
        result: Polynomial = {}
        for monomial_a, coefficient_a in a.items():
            for monomial_b, coefficient_b in b.items():
                exponents = dict(monomial_a)
                for name, exponent in monomial_b:
                    exponents[name] = exponents.get(name, 0) + exponent
                monomial, coefficient = _reduced(exponents, coefficient_a * coefficient_b)
                result[monomial] = _checked(result.get(monomial, Fraction(0)) + _checked(coefficient))
        return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    totals = {monomial: _checked(a.get(monomial, Fraction(0)) + b.get(monomial, Fraction(0))) for monomial in a | b}
    return {monomial: total for monomial, total in totals.items() if total}


def _checked(coefficient: Fraction) -> Fraction:
    if max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length()) > MOST_BITS:
        raise TooLarge("number too large")
    return coefficient


def _reduced(exponents: dict[str, int], coefficient: Fraction) -> tuple[Monomial, Fraction]:
    """The monomial with i^2 = -1 and (√p)^2 = p applied, so that i and each root occur at most once."""
    kept = []
    for name, exponent in exponents.items():
        if name == "i" or name[0] == "√":
            square = -1 if name == "i" else int(name[1:])
            coefficient *= Fraction(square) ** (exponent // 2)
            exponent %= 2
        if exponent:
            kept.append((name, exponent))
    return tuple(sorted(kept)), coefficient


_SMALL_PRIMES = [n for n in range(2, 1000) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1))]
