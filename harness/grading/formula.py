"""Reads a formula in plain notation by recursive descent. Nothing is evaluated as code.

The reader knows how formulas are written, and computes on its way with a `Point` of
`harness.grading.values`, which knows what they are worth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

DEEPEST = 40
"""Brackets within brackets that are read."""


Value = Any
"""A Fraction, or mpmath's mpf or mpc once it was rounded."""

# \infty is not among them: a letter cancels, and \infty-\infty would be 0
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega pi ell degree".split()
)
"""Commands that are letters. A degree sign is one too, with the value pi/180."""
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan arccot arcsec arccsc arcsinh arccosh arctanh "
    "log ln lg exp".split()
)
_NUMBER = re.compile(r"(?P<whole>\d*)(?:\.(?P<decimals>\d*)(?:\\overline\{(?P<repeating>\d+)\})?)?")
_NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_(?:\d+|\w|\{\w+\}))?'*")
_CALL = re.compile(r"\((?:-?\d+|[A-Za-z]|\\[A-Za-z]+ ?)\)")
_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
_COMMAND = re.compile(r"\\([A-Za-z]+) ?")
_MIXED = re.compile(r"\\frac(?:\{(\d+)\}|(\d)) ?(?:\{(\d+)\}|(\d))(?![\d^!])")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ROUNDINGS = {"lfloor": "\\rfloor", "lceil": "\\rceil"}
_STARTS_FACTOR = re.compile(r"[\dA-Za-z.(\[{]|\\(?!rfloor|rceil)")
_STARTS_ARGUMENT = re.compile(
    rf"[\dA-Za-z.]|\\(?!(?:{'|'.join([*FUNCTIONS, 'rfloor', 'rceil'])})(?![A-Za-z]))"
)


class TooLarge(Exception):
    """The value would take too much work to write out."""


@contextmanager
def blame_gold_answer() -> Iterator[None]:
    """Let the reason of `TooLarge` say that it is about the gold answer."""
    try:
        yield
    except TooLarge as error:
        raise TooLarge(f"gold answer: {error}") from None


class Unreadable(Exception):
    """The formula, or its value, is beyond the reader or the numbers that it was given."""


def read(plain: str, point: Any) -> Value:
    """The value of a formula in plain notation, without unit, at a point.

    Raises:
        Unreadable: the text holds anything else, or two readers would read two values: `1/2x` is a
            half x to one, and one over 2x to another.
        TooLarge: the value would take too much work to write out.
        ZeroDivisionError: it divides by zero.
    """
    reader = _Reader(plain, point)
    value = reader.total()
    if reader.place < len(plain):
        raise Unreadable(plain[reader.place :])
    return value


class _Reader:
    """Reads a text from `place` on; `next` is the character there, "" at the end."""

    def __init__(self, text: str, point: Any) -> None:
        self.text, self.point = text, point
        self.place, self.depth = 0, 0
        self.bars_open = (
            0  # since the last bracket: within them a bar closes where it could also open
        )

    def next(self) -> str:
        return self.text[self.place : self.place + 1]

    def takes(self, expected: str) -> bool:
        found = self.text.startswith(expected, self.place)
        self.place += found * len(expected)
        return found

    def finds(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self.text, self.place)

    def nested(self, part: Callable[[], Value], *, bars: int = 0) -> Value:
        outside, self.bars_open = self.bars_open, bars
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLarge("nested too deep")
        value = part()
        self.depth -= 1
        self.bars_open = outside
        return value

    def starts_factor(self) -> bool:
        return bool(self.finds(_STARTS_FACTOR)) or (self.next() == "|" and not self.bars_open)

    def total(self) -> Value:
        value = self.signed(self.term)
        while self.next() in ("+", "-"):
            value = self.point.plus(value, self.signed(self.term))
        return value

    def signed(self, part: Callable[[], Value]) -> Value:
        negative = False
        while self.next() in ("+", "-"):
            negative ^= self.next() == "-"
            self.place += 1
        value = part()
        return self.point.times(Fraction(-1), value) if negative else value

    def term(self) -> Value:
        value = self.factor()
        while True:
            if self.takes("*"):
                value = self.point.times(value, self.signed(self.factor))
            elif self.takes("/"):
                value = self.point.times(value, 1 / self.signed(self.factor))
                if self.starts_factor():
                    raise Unreadable("1/2x may be a half x or one over 2x")
            elif self.starts_factor():
                value = self.point.times(value, self.factor())
            else:
                return value

    def factor(self) -> Value:
        value = self.atom()
        while self.next() in ("!", "^"):
            if self.takes("!"):
                value = self.point.function("!", value)
            else:
                self.place += 1
                value = self.point.power(value, self.nested(self.exponent))
        return value

    def exponent(self) -> Value:
        """What follows `^`: without braces a number to its last digit, as 2^10 is meant to be
        1024."""
        value = self.signed(
            lambda: self.number(mixed=False) if self.next().isdecimal() else self.argument()
        )
        return self.point.power(value, self.nested(self.exponent)) if self.takes("^") else value

    def number(self, *, mixed: bool = True) -> Value:
        match = self.finds(_NUMBER)
        if match is None or match.group() in ("", "."):
            raise Unreadable("no number")
        self.place = match.end()
        if self.next() == "_":
            raise Unreadable("a number in a base")
        whole, decimals, repeating = (
            match[name] or "" for name in ("whole", "decimals", "repeating")
        )
        value = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
        if repeating:
            value += Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(decimals))
        if mixed and whole and match["decimals"] is None and (part := self.finds(_MIXED)):
            top, bottom = (int(digits) for digits in part.groups() if digits)
            if top < bottom:
                value += Fraction(top, bottom)  # 2\frac12 is two and a half
                self.place = part.end()
        return self.point.checked(value)

    def atom(self) -> Value:
        character = self.next()
        if character.isdecimal() or character == ".":
            return self.number()
        if character in _CLOSING:
            return self.enclosed(character, _CLOSING[character])
        if character == "|":
            return self.point.function("abs", self.enclosed("|", "|", bars=1))
        command = self.finds(_COMMAND)
        if command and command[1] not in GREEK:
            self.place = command.end()
            return self.nested(lambda: self.command(command[1]), bars=self.bars_open)
        return self.name()

    def enclosed(self, opening: str, closing: str, *, bars: int = 0) -> Value:
        self.place += len(opening)
        value = self.nested(self.total, bars=bars)
        if not self.takes(closing):
            raise Unreadable("brackets that do not match")
        return value

    def command(self, command: str) -> Value:
        if command in ("frac", "binom"):
            top, bottom = self.argument(), self.argument()
            if command == "frac":
                return self.point.times(top, 1 / bottom)
            return self.point.function("binom", top, bottom)
        if command == "sqrt":
            degree = self.enclosed("[", "]") if self.next() == "[" else Fraction(2)
            letters = self.point.letters_read
            value = self.argument()
            return self.point.root(value, degree, of_number=self.point.letters_read == letters)
        if command in _ROUNDINGS:
            return self.point.function(command, self.enclosed("", _ROUNDINGS[command]))
        if command in FUNCTIONS:
            return self.function(command)
        raise Unreadable(command)

    def function(self, name: str) -> Value:
        r"""A function with its base or power, and its argument: `\log_2 8`, `\sin^2 x`,
        `\sin^{-1}(x)`."""
        bases = [self.nested(self.argument)] if name == "log" and self.takes("_") else []
        power = None
        inverse = f"arc{name}" in FUNCTIONS and self.takes("^{-1}")
        if self.takes("^"):
            power = self.nested(self.exponent)
        self.takes(" ")
        value = self.point.function(
            f"arc{name}" if inverse else name, self.function_argument(), *bases
        )
        return value if power is None else self.point.power(value, power)

    def function_argument(self) -> Value:
        """What a function is taken of: brackets, or all letters and numbers up to the next sign,
        bracket or function.

        Raises:
            Unreadable: that may not be its end, as in `\\sin x/2` and `\\sin 2(x+1)`.
        """
        if self.next() in (*_CLOSING, "|"):
            return self.atom()
        value = self.signed(self.factor)
        while self.finds(_STARTS_ARGUMENT):
            value = self.point.times(value, self.factor())
        if self.next() == "/" or (self.next() == "(" and self.text[self.place - 1].isdecimal()):
            raise Unreadable("sin x/2 may be the sine of x/2 or half the sine of x")
        return value

    def argument(self) -> Value:
        r"""The argument of a command: a group in braces, a single digit (`\frac12`), or an atom."""
        if self.next().isdecimal():
            self.place += 1
            value = Fraction(self.text[self.place - 1])
            self.takes(" ")
            return value
        return self.atom()

    def name(self) -> Value:
        match = self.finds(_NAME)
        if match is None:
            raise Unreadable("no value")
        self.place = match.end()
        name = _SUBSCRIPT.sub(r"_\1", match.group())
        if self.takes(" "):
            return self.point.letter(name)  # the blank parts a command from the letter after it
        # f(3) is a value of f, not f times 3: with its argument it is a letter of its own
        call = self.finds(_CALL)
        if call and (call.group()[1:-1].lstrip("-").isdecimal() or name[0] in "fghpqFGHPQ"):
            name, self.place = name + call.group(), call.end()
        elif name[0] in "fg" and self.next() in ("(", "^"):
            raise Unreadable("function of a bracket")
        return self.point.letter(name)
