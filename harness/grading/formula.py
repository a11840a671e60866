"""Reads a formula in plain notation as an exact value, by recursive descent. Nothing is evaluated as code.

Functions, roots of letters and bars are left to `harness.grading.symbolic`: on them the reader raises `Unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from harness.grading.exact import Arithmetic, Quotient, TooLarge, factorial

DEEPEST = 40
# \infty is not among them: a letter cancels, and \infty-\infty would be 0
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega pi ell".split()
)
_SIMPLE = re.compile(r"([-+]?)(?:(\d+(?:\.\d+)?|\.\d+|\d+/\d+)|\\frac\{(-?\d+)\}\{(\d+)\})")
_NUMBER = re.compile(r"(?P<whole>\d*)(?:\.(?P<decimals>\d*)(?:\\overline\{(?P<repeating>\d+)\})?)?")
_NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_(?:\w|\{\w+\}))?'*")
_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
_COMMAND = re.compile(r"\\([A-Za-z]+) ?")
_MIXED = re.compile(r"\\frac(?:\{\d+\}|\d)(?:\{\d+\}|\d)(?![\d^!])")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_STARTS_FACTOR = re.compile(r"[\dA-Za-z.(\[{\\]")


def as_number(plain: str) -> Fraction | None:
    """The number that a plain text is: digits with a sign, decimals, or a fraction of integers. None: no number."""
    match = _SIMPLE.fullmatch(plain)
    if match is None:
        return None
    sign, number, top, bottom = match.groups()
    try:
        value = Fraction(number or f"{top}/{bottom}")
    except ZeroDivisionError:
        return None
    return -value if sign == "-" else value


class Unreadable(Exception):
    """Not a formula of the four operations, whole powers and square roots of numbers."""


class Broken(Unreadable):
    """Not a formula at all: the text ends, or a bracket closes, where a value should stand."""


class Ambiguous(Broken):
    """Two readers would read two values: `1/2x` is a half x to one, and one over 2x to another."""


_DIVISOR = rf"\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\)|\\sqrt\{{[^{{}}]*\}}|\\(?:{'|'.join(sorted(GREEK))})(?![A-Za-z]) ?"
_AMBIGUOUS = re.compile(
    rf"/-?(?:{_DIVISOR})(?:\^(?:\d|\{{[^{{}}]*\}}))?(?=[\dA-Za-z(\[{{]|\\(?!rfloor|rceil|degree|text|\}}))"
)


def is_ambiguous(plain: str) -> bool:
    """Whether a product follows a slash, as in `1/2x`. Ask it if `read` gives up before it comes to the slash."""
    return bool(_AMBIGUOUS.search(plain))


def read(plain: str) -> Quotient:
    """The exact value of a formula.

    Args:
        plain: Text from `notation.plain`, without unit.

    Raises:
        Unreadable: the text holds anything else, or divides by zero. `Broken`: nobody could read it. `Ambiguous`: two
            readers would read it in two ways.
        TooLarge: the value would take too much work to write out.
    """
    reader = _Reader(plain)
    try:
        value = reader.total()
    except ZeroDivisionError:
        raise Unreadable("division by zero") from None
    if reader.place < len(plain):
        raise Unreadable(plain[reader.place :])
    return value


class _Reader:
    """Reads a text from `place` on; `next` is the character there, "" at the end."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.depth, self.exact = text, 0, 0, Arithmetic()

    def next(self) -> str:
        return self.text[self.place : self.place + 1]

    def takes(self, character: str) -> bool:
        found = self.next() == character
        self.place += found
        return found

    def nested(self, part: Callable[[], Quotient]) -> Quotient:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLarge("nested too deep")
        value = part()
        self.depth -= 1
        return value

    def total(self) -> Quotient:
        value = self.signed_term()
        while self.next() in ("+", "-"):
            value = self.exact.add(value, self.signed_term())
        return value

    def signed_term(self) -> Quotient:
        negative = False
        while self.next() in ("+", "-"):
            negative ^= self.next() == "-"
            self.place += 1
        value = self.term()
        return self.exact.multiply(self.exact.number(-1), value) if negative else value

    def term(self) -> Quotient:
        value = self.factor()
        while True:
            if self.takes("*"):
                sign = -1 if self.takes("-") else 1
                value = self.exact.multiply(value, self.exact.multiply(self.exact.number(sign), self.factor()))
            elif self.takes("/"):
                value = self.exact.multiply(value, self.exact.invert(self.factor()))
                if _STARTS_FACTOR.match(self.next()):
                    raise Ambiguous("1/2x may be a half x or one over 2x")
            elif _STARTS_FACTOR.match(self.next()):
                value = self.exact.multiply(value, self.factor())
            else:
                return value

    def factor(self) -> Quotient:
        value = self.atom()
        raised = False
        while True:
            if self.takes("!"):
                whole = value.rational()
                if whole is None or whole.denominator != 1 or whole < 0:
                    raise Unreadable("factorial of no whole number")
                value = self.exact.number(factorial(whole.numerator))
            elif self.takes("^"):
                if raised:
                    raise Unreadable("power of a power without brackets")
                raised = True
                value = self.raised(value)
            else:
                return value

    def raised(self, base: Quotient) -> Quotient:
        # an exponent without braces is read to its last digit, as 2^10 is meant to be 1024
        number = self.number() if self.next().isdigit() else None
        exponent = (number or self.nested(self.argument)).rational()
        if exponent is None:
            raise Unreadable("power that is no number")
        if exponent.denominator == 1:
            return self.exact.power(base, exponent.numerator)
        root = base.rational()
        if exponent.denominator != 2 or root is None:
            raise Unreadable("root of more than a number")
        return self.exact.power(self.root_of(root), exponent.numerator)

    def root_of(self, value: Fraction | None) -> Quotient:
        root = None if value is None else self.exact.square_root(value)
        if root is None:
            raise Unreadable("root of more than a small number")
        return root

    def number(self) -> Quotient:
        match = _NUMBER.match(self.text, self.place)
        if match is None or match.group() in ("", "."):
            raise Unreadable("no number")
        self.place = match.end()
        if self.next() == "_":
            raise Unreadable("a number in a base")
        whole, decimals, repeating = (match[name] or "" for name in ("whole", "decimals", "repeating"))
        if len(whole) + len(decimals) + len(repeating) > 2000:
            raise TooLarge("too many digits")
        value = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
        if repeating:
            value += Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(decimals))
        if whole and match["decimals"] is None and _MIXED.match(self.text, self.place):
            start = self.place
            part = self.atom().rational()
            if part is not None and part < 1:
                value += part  # 2\frac12 is two and a half
            else:
                self.place = start
        return self.exact.number(value)

    def atom(self) -> Quotient:
        character = self.next()
        if character.isdigit() or character == ".":
            return self.number()
        if character in _CLOSING:
            self.place += 1
            value = self.nested(self.total)
            if not self.takes(_CLOSING[character]):
                raise Unreadable("brackets that do not match")
            return value
        command = _COMMAND.match(self.text, self.place)
        if command and command[1] not in GREEK:
            self.place = command.end()
            return self.nested(lambda: self.command(command[1]))
        return self.name()

    def command(self, command: str) -> Quotient:
        if command in ("frac", "binom"):
            top, bottom = self.argument(), self.argument()
            if command == "frac":
                return self.exact.multiply(top, self.exact.invert(bottom))
            n, k = top.rational(), bottom.rational()
            if n is None or k is None or n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
                raise Unreadable("binomial of no whole numbers")
            below = factorial(k.numerator) * factorial((n - k).numerator)
            return self.exact.number(factorial(n.numerator) // below)
        if command == "sqrt" and self.next() != "[":
            return self.root_of(self.argument().rational())
        raise Unreadable(command)

    def argument(self) -> Quotient:
        r"""The argument of a command: a group in braces, a single digit (`\frac12`), or an atom."""
        if self.next().isdigit():
            self.place += 1
            return self.exact.number(int(self.text[self.place - 1]))
        return self.atom()

    def name(self) -> Quotient:
        match = _NAME.match(self.text, self.place)
        if match is None and self.next() in ("", ")", "]", "}"):
            raise Broken("no value")
        if match is None:
            raise Unreadable("no value")
        self.place = match.end()
        name = _SUBSCRIPT.sub(r"_\1", match.group())
        if self.takes(" "):
            pass  # this blank parts a command from the letter after it
        elif name[0] in "fgh" and self.next() == "(":
            # f(3) is a value of f, not f times 3: with its argument it is a generator of its own
            end = self.text.find(")", self.place) + 1
            if end == 0 or "(" in self.text[self.place + 1 : end]:
                raise Unreadable("function of a bracket")
            name, self.place = name + self.text[self.place : end], end
        return self.exact.generator(name)
