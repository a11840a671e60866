"""Read a formula in plain notation by recursive descent. Nothing is evaluated as code.

The reader knows the notation of formulas. An `Evaluator` of `harness.grading.formula_values` knows
the values of letters and computes every step.
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

# `\infty` is left out, because letters cancel: `\infty-\infty` would be 0.
LETTER_COMMANDS = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi
    rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi
    Omega pi ell degree
    """.split()
)
"""Commands that are letters. The degree sign is a letter too, with the value pi/180."""
FUNCTIONS = frozenset(
    """
    sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan arccot arcsec arccsc arcsinh
    arccosh arctanh log ln lg exp
    """.split()
)
_NUMBER = re.compile(
    r"(?P<integer>\d*)(?:\.(?P<decimals>\d*)(?:\\overline\{(?P<repeating>\d+)\})?)?"
)
r"""A number: `12`, `0.5`, `.5`, `0.1\overline{6}`. Each of its parts may be missing."""
_NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_(?:\d+|\w|\{\w+\}))?'*")
r"""A letter with its index and primes: `x`, `\alpha`, `a_{1}`, `f'`."""
_CALL_ARGUMENT = re.compile(r"\((?:(?P<number>-?\d+)|[A-Za-z]|\\[A-Za-z]+ ?)\)")
r"""Matches the argument of an unknown function: `(2)` in `f(2)`, `(x)`, `(\theta)`."""
_SUBSCRIPT = re.compile(r"_\{(\w+)\}")
"""Matches `_{12}` in `a_{12}`. Without the braces it is the same letter."""
_COMMAND = re.compile(r"\\([A-Za-z]+) ?")
r"""A command with the blank that may end it: `\sqrt`, `\pi `."""
_MIXED_NUMBER = re.compile(r"\\frac(?:\{(\d+)\}|(\d)) ?(?:\{(\d+)\}|(\d))(?![\d^!])")
r"""The fraction of a mixed number: `\frac12` in `3\frac12`, but not in `3\frac12!`."""
_CLOSING_BRACKET_BY_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING_COMMAND_BY_OPENING = {"lfloor": "\\rfloor", "lceil": "\\rceil"}
"""The command that closes each pair of rounding brackets, by the command that opens it."""
_FACTOR_START = re.compile(r"[\dA-Za-z.(\[{]|\\(?!rfloor|rceil)")
r"""The beginning of a factor, before which a sign of multiplication is missing: `(` in `2(x+1)`."""
_ARGUMENT_START = re.compile(
    rf"[\dA-Za-z.]|\\(?!(?:{'|'.join([*FUNCTIONS, 'rfloor', 'rceil'])})(?![A-Za-z]))"
)
r"""The beginning of a factor in the argument of a function: `x` in `\sin 2x`, but not `\cos` in
`\sin x\cos x`."""


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
    """The reader cannot read the formula, or the evaluator has no value for it."""


def read(formula: str, evaluator: Any) -> Value:
    """Read the value of a formula in plain notation, without unit, at the point of an evaluator.

    Raises:
        Unreadable: The text is not a formula, or is ambiguous: `1/2x` may be half of x, or one over
            2x.
        TooLarge: The value would take too much work to write out.
        ZeroDivisionError: The formula divides by zero.
    """
    reader = _Reader(formula, evaluator)
    value = reader.read_sum()
    if reader.position < len(formula):
        raise Unreadable(formula[reader.position :])
    return value


class _Reader:
    """Reads a text from `position` on. Each `read_` method reads one rule of the grammar.

    Attributes:
        text: The formula.
        evaluator: Knows the values of letters, and computes every step.
        position: The index of the next character.
        depth: The number of rules that are nested around the next character.
        is_in_bars: Whether the next character is inside of bars, as in `|x+1|`. Opening and
            closing bars look alike, so inside of bars the next bar closes them. Brackets inside of
            bars may contain new bars: `|2(|x|+1)|`.
    """

    def __init__(self, text: str, evaluator: Any) -> None:
        self.text = text
        self.evaluator = evaluator
        self.position = 0
        self.depth = 0
        self.is_in_bars = False

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
        """Match a pattern at the position, without moving it."""
        return pattern.match(self.text, self.position)

    def read_nested(self, read_rule: Callable[[], Value], *, is_in_bars: bool = False) -> Value:
        """Read a rule one level deeper, and return to this level.

        Args:
            read_rule: The method that reads the rule.
            is_in_bars: Whether that level is inside of bars.

        Raises:
            TooLarge: The level is deeper than `DEEPEST_NESTING`, so recursion could fail.
        """
        was_in_bars = self.is_in_bars
        self.is_in_bars = is_in_bars
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise TooLarge("nested too deep")
        value = read_rule()
        self.depth -= 1
        self.is_in_bars = was_in_bars
        return value

    def starts_factor(self) -> bool:
        """Whether a factor comes next, so that a sign of multiplication is missing."""
        # inside of bars, a bar does not begin a factor but ends the value
        return bool(self.match(_FACTOR_START)) or (self.peek() == "|" and not self.is_in_bars)

    def read_sum(self) -> Value:
        """Read terms with plus and minus signs between them: `2x-3+y`."""
        value = self.read_signed(self.read_term)
        while self.peek() in ("+", "-"):
            value = self.evaluator.plus(value, self.read_signed(self.read_term))
        return value

    def read_signed(self, read_rule: Callable[[], Value]) -> Value:
        """Read a rule after any number of plus and minus signs: `--2`."""
        is_negative = False
        while self.peek() in ("+", "-"):
            # each minus sign changes the sign of the value
            if self.peek() == "-":
                is_negative = not is_negative
            self.position += 1
        value = read_rule()
        return self.evaluator.times(Fraction(-1), value) if is_negative else value

    def read_term(self) -> Value:
        """Read factors that are multiplied or divided: `2*x`, `2x`, `1/2`."""
        value = self.read_factor()
        while True:
            if self.accept("*"):
                value = self.evaluator.times(value, self.read_signed(self.read_factor))
            elif self.accept("/"):
                value = self.evaluator.times(value, 1 / self.read_signed(self.read_factor))
                if self.starts_factor():
                    raise Unreadable("1/2x may be a half x or one over 2x")
            # a missing sign means multiplication, as in 2x or (x+1)(x-1)
            elif self.starts_factor():
                value = self.evaluator.times(value, self.read_factor())
            else:
                return value

    def read_factor(self) -> Value:
        """Read a value with its powers and factorials: `x^2`, `3!`."""
        value = self.read_atom()
        while True:
            if self.accept("!"):
                value = self.evaluator.function("!", value)
            elif self.accept("^"):
                value = self.evaluator.power(value, self.read_nested(self.read_exponent))
            else:
                return value

    def read_exponent(self) -> Value:
        """Read what follows `^`. A second power comes first: `2^{-1}`, `2^3^2`."""
        value = self.read_signed(self.read_exponent_operand)
        if self.accept("^"):
            value = self.evaluator.power(value, self.read_nested(self.read_exponent))
        return value

    def read_exponent_operand(self) -> Value:
        """Read an operand. Without braces a number extends to its last digit: 2^10 is 1024."""
        if self.peek().isdecimal():
            return self.read_number(may_be_mixed=False)
        return self.read_argument()

    def read_number(self, *, may_be_mixed: bool = True) -> Value:
        """Read a number: `12`, `0.5`, `0.1\\overline{6}`, or `2\\frac12` if it may be mixed."""
        number_match = self.match(_NUMBER)
        if number_match is None or number_match.group() in ("", "."):
            raise Unreadable("no number")
        self.position = number_match.end()
        if self.peek() == "_":
            raise Unreadable("a number in a base")
        # 12.3 is 123 / 10, and `0.1\overline{6}` is 1 / 10 + 6 / 90: the repeating digits are
        # divided by as many nines, and by a power of ten for the decimals before them
        integer_digits, decimal_digits, repeating_digits = number_match.groups("")
        power_of_ten = 10 ** len(decimal_digits)
        value = Fraction(int("0" + integer_digits + decimal_digits), power_of_ten)
        if repeating_digits:
            nines = 10 ** len(repeating_digits) - 1
            value += Fraction(int(repeating_digits), nines * power_of_ten)
        # `2\frac12` is two and a half, but `2\frac32` is a product
        fraction_match = self.match(_MIXED_NUMBER)
        if fraction_match and may_be_mixed and number_match.group().isdecimal():
            numerator, denominator = (int(digits) for digits in fraction_match.groups() if digits)
            if numerator < denominator:
                value += Fraction(numerator, denominator)
                self.position = fraction_match.end()
        return self.evaluator.limit_size(value)

    def read_atom(self) -> Value:
        """Read a number, a letter, a command, or what stands in brackets or bars."""
        character = self.peek()
        if character.isdecimal() or character == ".":
            return self.read_number()
        if character in _CLOSING_BRACKET_BY_OPENING:
            return self.read_enclosed(character, _CLOSING_BRACKET_BY_OPENING[character])
        if character == "|":
            return self.evaluator.function("abs", self.read_enclosed("|", "|", is_in_bars=True))
        command_match = self.match(_COMMAND)
        if command_match and command_match[1] not in LETTER_COMMANDS:
            self.position = command_match.end()
            return self.read_nested(
                lambda: self.read_command(command_match[1]), is_in_bars=self.is_in_bars
            )
        return self.read_name()

    def read_enclosed(
        self, opening_bracket: str, closing_bracket: str, *, is_in_bars: bool = False
    ) -> Value:
        """Read a sum in brackets. The opening one comes next, or is "" if it was read before."""
        self.position += len(opening_bracket)
        value = self.read_nested(self.read_sum, is_in_bars=is_in_bars)
        if not self.accept(closing_bracket):
            raise Unreadable("brackets that do not match")
        return value

    def read_command(self, command: str) -> Value:
        """Read what follows a command, such as `{1}{2}` after `\\frac`."""
        if command in ("frac", "binom"):
            upper_value = self.read_argument()
            lower_value = self.read_argument()
            if command == "frac":
                return self.evaluator.times(upper_value, 1 / lower_value)
            return self.evaluator.function("binom", upper_value, lower_value)
        if command == "sqrt":
            # `\sqrt[3]{8}` has a degree, and `\sqrt{4}` is a square root
            root_degree = self.read_enclosed("[", "]") if self.peek() == "[" else Fraction(2)
            earlier_read_count = self.evaluator.letter_read_count
            value = self.read_argument()
            has_letters = self.evaluator.letter_read_count > earlier_read_count
            return self.evaluator.root(value, root_degree, has_letters=has_letters)
        if command in _CLOSING_COMMAND_BY_OPENING:
            return self.evaluator.function(
                command, self.read_enclosed("", _CLOSING_COMMAND_BY_OPENING[command])
            )
        if command in FUNCTIONS:
            return self.read_function(command)
        raise Unreadable(command)

    def read_function(self, name: str) -> Value:
        r"""Read a function after its name: `\log_2 8`, `\sin^2 x`, `\sin^{-1}(x)`."""
        optional_base = []
        if name == "log" and self.accept("_"):
            optional_base.append(self.read_nested(self.read_argument))
        # sin^{-1} is the inverse function by convention, and not the reciprocal
        if f"arc{name}" in FUNCTIONS and self.accept("^{-1}"):
            name = f"arc{name}"
        exponent = self.read_nested(self.read_exponent) if self.accept("^") else None
        self.accept(" ")
        value = self.evaluator.function(name, self.read_function_argument(), *optional_base)
        return value if exponent is None else self.evaluator.power(value, exponent)

    def read_function_argument(self) -> Value:
        """Read brackets, or all letters and numbers up to the next sign, bracket or function.

        Raises:
            Unreadable: The end of the argument is ambiguous, as in `\\sin x/2` and
                `\\sin 2(x+1)`.
        """
        if self.peek() in (*_CLOSING_BRACKET_BY_OPENING, "|"):
            return self.read_atom()
        value = self.read_signed(self.read_factor)
        while self.match(_ARGUMENT_START):
            value = self.evaluator.times(value, self.read_factor())
        # the brackets of `\sin 2(x+1)` may belong to the argument, those of `\sin x(x+1)` do not
        if self.peek() == "/" or (self.peek() == "(" and self.text[self.position - 1].isdecimal()):
            raise Unreadable("sin x/2 may be the sine of x/2 or half the sine of x")
        return value

    def read_argument(self) -> Value:
        r"""Read the argument of a command: a single digit (`\frac12`), a group, or an atom."""
        if self.peek().isdecimal():
            value = Fraction(self.peek())
            self.position += 1
            self.accept(" ")
            return value
        return self.read_atom()

    def read_name(self) -> Value:
        """Read a letter, perhaps with a subscript or arguments: `x`, `a_{1}`, `f(2)`."""
        name_match = self.match(_NAME)
        if name_match is None:
            raise Unreadable("no value")
        self.position = name_match.end()
        name = _SUBSCRIPT.sub(r"_\1", name_match.group())
        if self.accept(" "):
            # the blank ends a command such as `\pi `, so brackets after it are a factor
            return self.evaluator.letter(name)
        # `f(3)` is a value of the unknown function f and not f times 3, so it counts as a letter of
        # its own. So do `f(x)` and `a(3)`, but `a(x)` is a product.
        call_match = self.match(_CALL_ARGUMENT)
        is_function = name[0] in "fghpqFGHPQ"
        if call_match and (is_function or call_match["number"]):
            name += call_match.group()
            self.position = call_match.end()
        # `f(x+1)` may be a value too, but only equal arguments would give equal values
        elif name[0] in "fg" and self.peek() in ("(", "^"):
            raise Unreadable("function of a bracket")
        return self.evaluator.letter(name)
