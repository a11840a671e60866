"""Compares two formulas with functions or roots by their values at a few points.

sympy only parses and evaluates. Nothing is simplified, solved or expanded, so a hostile formula can make it do little.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from typing import Any

from harness.grading.exact import TooLarge
from harness.grading.formula import GREEK, is_ambiguous

LONGEST_FORMULA, MOST_COMMANDS, DEEPEST_FORMULA = 300, 20, 6
"""The most that the parser gets: its time doubles with each level of brackets."""
DIGITS, AGREEMENT = 40, 1e-25
POINTS = ((7, 10), (-137, 100), (293, 100), (-31, 100))
"""Values for the letters, of both signs: |x| is not x, and the root of x^2 is not x either."""

_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln exp frac sqrt lfloor rfloor lceil rceil".split()
)
_KNOWN = re.compile(r"(?:\\[A-Za-z]+ ?|[0-9A-Za-z+\-*/^_(){}\[\]|.])*")
_COMMAND = re.compile(r"\\([A-Za-z]+)")


def same_values(answer: str, target: str) -> bool:
    """Whether two formulas agree to 25 digits, for letters of both signs.

    Raises:
        TooLarge: the answer is too long for the parser, or nested too deep.
    """
    if not _known(answer) or not _known(target) or is_ambiguous(answer) or is_ambiguous(target):
        return False
    if len(answer) > LONGEST_FORMULA or len(_COMMAND.findall(answer)) > MOST_COMMANDS:
        raise TooLarge("formula too long")
    if _depth(answer) > DEEPEST_FORMULA:
        raise TooLarge("formula nested too deep")
    expected = _parsed_target(target)
    found = _parsed(answer) if expected is not None else None
    if expected is None or found is None:
        return False
    symbols = sorted(expected.free_symbols | found.free_symbols, key=str)
    return all(_agree(expected, found, symbols, start) for start in range(len(POINTS) if symbols else 1))


def _known(plain: str) -> bool:
    """Whether a text holds only the characters and commands above. sympy never gets anything else."""
    return bool(_KNOWN.fullmatch(plain)) and set(_COMMAND.findall(plain)) <= _FUNCTIONS | GREEK


def _depth(plain: str) -> int:
    depths = accumulate((character in "([{") - (character in ")]}") for character in plain)
    return max(depths, default=0)


def _agree(expected: Any, found: Any, symbols: list[Any], start: int) -> bool:
    import sympy  # type: ignore[import-untyped]

    # each letter gets a value of its own, close to the point of this round
    values = {
        symbol: sympy.Rational(*POINTS[(start + place) % len(POINTS)]) + sympy.Rational(place, 1009)
        for place, symbol in enumerate(symbols)
    }
    try:
        left, right = (sympy.N(side.subs(values), DIGITS) for side in (expected, found))
    except (ArithmeticError, TypeError, ValueError):
        return False  # sympy has no value for it, as for a power beyond its numbers
    if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
        # a point outside the domain of both says nothing; one outside the domain of only one tells them apart
        return bool(symbols) and left == right
    scale = max(abs(left), abs(right), 1)
    return bool(abs(left - right) <= AGREEMENT * scale)


def _parsed(plain: str) -> Any | None:
    """The formula as a sympy expression. None: the parser finds no single value in the text.

    Source: latex2sympy2_extended, the parser of math_verify 0.9, https://github.com/huggingface/Math-Verify. It is
    called directly, because `math_verify.parse` also tries sympy's `parse_expr`, which is an `eval`.
    """
    import sympy
    from latex2sympy2_extended.latex2sympy2 import latex2sympy  # type: ignore[import-untyped]

    try:
        expression = latex2sympy(
            plain.replace("*", "\\cdot "), is_real=False, convert_degrees=False, normalization_config=None
        )
    except MemoryError:
        raise
    except Exception:  # the parser raises a bare Exception for all that it does not understand
        return None
    return expression if isinstance(expression, sympy.Expr) else None


_parsed_target = lru_cache(maxsize=1024)(_parsed)
