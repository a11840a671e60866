"""Read a formula in plain notation by recursive descent. Nothing is evaluated as code.

The reader knows the notation of formulas. A `Point` of `harness.grading.formula_values` knows the
values of letters and computes every step.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

DEEPEST_NESTING = 40
"""Most levels of nested brackets."""

Value = Any
"""A Fraction, or mpmath's mpf or mpc for a rounded value."""

# Without \infty: a letter cancels, and \infty-\infty would be 0.
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi "
    "rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi "
    "Omega pi ell degree".split()
)
"""Commands that are letters. The degree sign is a letter too, with the value pi/180."""
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan arccot arcsec arccsc arcsinh "
    "arccosh arctanh log ln lg exp".split()
)
# `12`, `0.5`, `.5`, `0.1\overline{6}`
_NUMBER = re.compile(
    r"(?P<integer>\d*)(?:\.(?P<decimals>\d*)(?:\\overline\{(?P<repeating>\d+)\})?)?"
)
# `x`, `\alpha`, `a_{1}`, `f'`
_NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_(?:\d+|\w|\{\w+\}))?'*")
# `(2)`, `(x)`, `(\theta)` after a name: `f(2)`
_CALL = re.compile(r"\((?:-?\d+|[A-Za-z]|\\[A-Za-z]+ ?)\)")
# `_{12}` in `a_{12}`
_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
# `\sqrt`, `\pi `
_COMMAND = re.compile(r"\\([A-Za-z]+) ?")
# `\frac12` in `3\frac12`; not in `3\frac12!`
_MIXED_NUMBER = re.compile(r"\\frac(?:\{(\d+)\}|(\d)) ?(?:\{(\d+)\}|(\d))(?![\d^!])")
_CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ROUNDINGS = {"lfloor": "\\rfloor", "lceil": "\\rceil"}
"""The command that closes each pair of rounding brackets, by the command that opens it."""
# the next factor in `2(x+1)` or `2\sqrt3`
_STARTS_FACTOR = re.compile(r"[\dA-Za-z.(\[{]|\\(?!rfloor|rceil)")
# `x` in `\sin x`, but not the `\cos` of `\sin x\cos x`
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
    """The reader cannot read the formula, or the point has no value for it."""


def read(formula: str, point: Any) -> Value:
    """Read the value of a formula in plain notation, without unit, at a point.

    Raises:
        Unreadable: The text is not a formula, or is ambiguous: `1/2x` may be half of x, or one over
            2x.
        TooLarge: The value would take too much work to write out.
        ZeroDivisionError: The formula divides by zero.
    """
    reader = _Reader(formula, point)
    value = reader.read_sum()
    if reader.position < len(formula):
        raise Unreadable(formula[reader.position :])
    return value


class _Reader:
    """Reads a text from `position` on. Each `read_` method reads one rule of the grammar."""

    def __init__(self, text: str, point: Any) -> None:
        self.text, self.point = text, point
        self.position, self.depth = 0, 0
        # Bars opened since the last bracket. While one is open, the next bar closes it.
        self.open_bars = 0

    def peek(self) -> str:
        """The next character, "" at the end."""
        return self.text[self.position : self.position + 1]

    def accept(self, token: str) -> bool:
        """Skip a token if it comes next, and say whether it did."""
        is_next = self.text.startswith(token, self.position)
        if is_next:
            self.position += len(token)
        return is_next

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self.text, self.position)

    def nested(self, read_rule: Callable[[], Value], *, bars: int = 0) -> Value:
        """Read a rule one level deeper, where `bars` bars are open.

        Raises:
            TooLarge: The level is deeper than `DEEPEST_NESTING`, so recursion could fail.
        """
        outer_bars, self.open_bars = self.open_bars, bars
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise TooLarge("nested too deep")
        value = read_rule()
        self.depth -= 1
        self.open_bars = outer_bars
        return value

    def starts_factor(self) -> bool:
        return bool(self.match(_STARTS_FACTOR)) or (self.peek() == "|" and not self.open_bars)

    def read_sum(self) -> Value:
        value = self.read_signed(self.read_term)
        while self.peek() in ("+", "-"):
            value = self.point.plus(value, self.read_signed(self.read_term))
        return value

    def read_signed(self, read_rule: Callable[[], Value]) -> Value:
        is_negative = False
        while self.peek() in ("+", "-"):
            is_negative ^= self.peek() == "-"
            self.position += 1
        value = read_rule()
        return self.point.times(Fraction(-1), value) if is_negative else value

    def read_term(self) -> Value:
        value = self.read_factor()
        while True:
            if self.accept("*"):
                value = self.point.times(value, self.read_signed(self.read_factor))
            elif self.accept("/"):
                value = self.point.times(value, 1 / self.read_signed(self.read_factor))
                if self.starts_factor():
                    raise Unreadable("1/2x may be a half x or one over 2x")
            # a missing sign means multiplication, as in 2x or (x+1)(x-1)
            elif self.starts_factor():
                value = self.point.times(value, self.read_factor())
            else:
                return value

    def read_factor(self) -> Value:
        value = self.read_atom()
        while self.peek() in ("!", "^"):
            if self.accept("!"):
                value = self.point.function("!", value)
            else:
                self.position += 1
                value = self.point.power(value, self.nested(self.read_exponent))
        return value

    def read_exponent(self) -> Value:
        value = self.read_signed(self.read_exponent_operand)
        if self.accept("^"):
            value = self.point.power(value, self.nested(self.read_exponent))
        return value

    def read_exponent_operand(self) -> Value:
        """Read an operand. Without braces a number extends to its last digit: 2^10 is 1024."""
        return self.read_number(mixed=False) if self.peek().isdecimal() else self.read_argument()

    def read_number(self, *, mixed: bool = True) -> Value:
        match = self.match(_NUMBER)
        if match is None or match.group() in ("", "."):
            raise Unreadable("no number")
        self.position = match.end()
        if self.peek() == "_":
            raise Unreadable("a number in a base")
        # `0.1\overline{6}`: the repeating digits are a geometric series, here 6 / 90
        integer, decimals, repeating = match.groups("")
        value = Fraction(int("0" + integer + decimals), 10 ** len(decimals))
        if repeating:
            value += Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(decimals))
        fraction = self.match(_MIXED_NUMBER)
        if fraction and mixed and match.group().isdecimal():
            numerator, denominator = (int(digits) for digits in fraction.groups() if digits)
            if numerator < denominator:
                # 2\frac12 is a mixed number, two and a half
                value += Fraction(numerator, denominator)
                self.position = fraction.end()
        return self.point.checked(value)

    def read_atom(self) -> Value:
        character = self.peek()
        if character.isdecimal() or character == ".":
            return self.read_number()
        if character in _CLOSING_BRACKETS:
            return self.read_enclosed(character, _CLOSING_BRACKETS[character])
        if character == "|":
            return self.point.function("abs", self.read_enclosed("|", "|", bars=1))
        command = self.match(_COMMAND)
        if command and command[1] not in GREEK:
            self.position = command.end()
            return self.nested(lambda: self.read_command(command[1]), bars=self.open_bars)
        return self.read_name()

    def read_enclosed(self, opening: str, closing: str, *, bars: int = 0) -> Value:
        self.position += len(opening)
        value = self.nested(self.read_sum, bars=bars)
        if not self.accept(closing):
            raise Unreadable("brackets that do not match")
        return value

    def read_command(self, command: str) -> Value:
        if command in ("frac", "binom"):
            upper, lower = self.read_argument(), self.read_argument()
            if command == "frac":
                return self.point.times(upper, 1 / lower)
            return self.point.function("binom", upper, lower)
        if command == "sqrt":
            degree = self.read_enclosed("[", "]") if self.peek() == "[" else Fraction(2)
            letters_before = self.point.letters_read
            value = self.read_argument()
            # the root of a negative number is imaginary, and that of a negative letter has no value
            has_letters = self.point.letters_read > letters_before
            return self.point.root(value, degree, of_number=not has_letters)
        if command in _ROUNDINGS:
            return self.point.function(command, self.read_enclosed("", _ROUNDINGS[command]))
        if command in FUNCTIONS:
            return self.read_function(command)
        raise Unreadable(command)

    def read_function(self, name: str) -> Value:
        r"""Read a function after its name: `\log_2 8`, `\sin^2 x`, `\sin^{-1}(x)`."""
        bases = []
        if name == "log" and self.accept("_"):
            bases.append(self.nested(self.read_argument))
        # sin^{-1} is the inverse function by convention, and not the reciprocal
        if f"arc{name}" in FUNCTIONS and self.accept("^{-1}"):
            name = f"arc{name}"
        power = self.nested(self.read_exponent) if self.accept("^") else None
        self.accept(" ")
        value = self.point.function(name, self.read_function_argument(), *bases)
        return value if power is None else self.point.power(value, power)

    def read_function_argument(self) -> Value:
        """Read brackets, or all letters and numbers up to the next sign, bracket or function.

        Raises:
            Unreadable: The end of the argument is ambiguous, as in `\\sin x/2` and
                `\\sin 2(x+1)`.
        """
        if self.peek() in (*_CLOSING_BRACKETS, "|"):
            return self.read_atom()
        value = self.read_signed(self.read_factor)
        while self.match(_STARTS_ARGUMENT):
            value = self.point.times(value, self.read_factor())
        if self.peek() == "/" or (self.peek() == "(" and self.text[self.position - 1].isdecimal()):
            raise Unreadable("sin x/2 may be the sine of x/2 or half the sine of x")
        return value

    def read_argument(self) -> Value:
        r"""Read the argument of a command: a single digit (`\frac12`), a group, or an atom."""
        if self.peek().isdecimal():
            self.position += 1
            value = Fraction(self.text[self.position - 1])
            self.accept(" ")
            return value
        return self.read_atom()

    def read_name(self) -> Value:
        match = self.match(_NAME)
        if match is None:
            raise Unreadable("no value")
        self.position = match.end()
        name = _SUBSCRIPT.sub(r"_\1", match.group())
        if self.accept(" "):
            # the blank separates a command from the next letter, so what follows is not an argument
            return self.point.letter(name)
        # f(3) is a value of f, not f times 3, so it counts as a letter.
        call = self.match(_CALL)
        if call and (call.group()[1:-1].lstrip("-").isdecimal() or name[0] in "fghpqFGHPQ"):
            name += call.group()
            self.position = call.end()
        elif name[0] in "fg" and self.peek() in ("(", "^"):
            raise Unreadable("function of a bracket")
        return self.point.letter(name)
