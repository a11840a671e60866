"""Exact values: quotients of polynomials over the rationals in letters, \\pi, i and the square roots of primes.

Two such values are equal exactly if cross-multiplication gives the same polynomial. So equality *and* difference are
proved, without sympy. Work is counted, and `TooLarge` is raised before there is too much of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

Monomial = tuple[tuple[str, int], ...]
"""Generators such as `x`, `pi`, `i` and `√2` with their exponents, sorted."""
Polynomial = dict[Monomial, Fraction]

MOST_PRODUCTS, MOST_BITS, MOST_POWER = 20_000, 20_000, 2_000
ONE: Polynomial = {(): Fraction(1)}


class TooLarge(Exception):
    """The value would take too much work to write out."""


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
    """Adds, multiplies, inverts and takes roots within a budget of products of terms."""

    products_left: int = MOST_PRODUCTS

    def number(self, value: Fraction | int) -> Quotient:
        """A rational number."""
        return Quotient(numerator={(): Fraction(value)} if value else {})

    def generator(self, name: str) -> Quotient:
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

    def power(self, a: Quotient, exponent: int) -> Quotient:
        """The value raised to a whole exponent, by squaring.

        Raises:
            TooLarge: the exponent is too large.
        """
        if abs(exponent) > MOST_POWER * (5 if a.rational() is not None else 1):
            raise TooLarge("power too large")
        base, result = (self.invert(a) if exponent < 0 else a), Quotient(numerator=ONE)
        for bit in bin(abs(exponent))[2:]:
            result = self.multiply(result, result)
            if bit == "1":
                result = self.multiply(result, base)
        return result

    def square_root(self, value: Fraction) -> Quotient | None:
        """The root of a rational number: a rational times roots of distinct primes. None: it is hard to factor."""
        rest, outside, inside = abs(value.numerator * value.denominator), 1, []
        if rest == 0:
            return self.number(0)
        if rest.bit_length() > 128:
            return None
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
                return None
            inside.append(rest)
        names = sorted([f"√{prime}" for prime in inside] + ["i"] * (value < 0))
        return Quotient(numerator={tuple((name, 1) for name in names): Fraction(outside, value.denominator)})

    def equal(self, a: Quotient, b: Quotient) -> bool:
        """Whether a and b are the same value."""
        return self._times(a.numerator, b.denominator) == self._times(b.numerator, a.denominator)

    def proportional(self, a: Quotient, b: Quotient) -> bool:
        """Whether a is a rational multiple of b and neither is 0, so that `a = 0` and `b = 0` are the same equation."""
        left, right = self._times(a.numerator, b.denominator), self._times(b.numerator, a.denominator)
        if not left or left.keys() != right.keys():
            return False
        return len({left[monomial] / right[monomial] for monomial in left}) == 1

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
                if max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length()) > MOST_BITS:
                    raise TooLarge("number too large")
                result[monomial] = result.get(monomial, 0) + coefficient
        return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    totals = {monomial: a.get(monomial, Fraction(0)) + b.get(monomial, Fraction(0)) for monomial in a | b}
    return {monomial: total for monomial, total in totals.items() if total}


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


def factorial(n: int) -> int:
    """The factorial of a number that is not negative.

    Raises:
        TooLarge: the number is above 1,000.
    """
    if n > 1000:
        raise TooLarge("factorial too large")
    return math.factorial(n)
