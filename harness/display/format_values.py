"""How numbers, verdicts and hidden characters are written in tables, figures, the report and messages.

Minus signs and dashes are typographic; `format_table.render` replaces them in plain text. Characters that a terminal or
a browser would obey rather than show are spelt out.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from harness.constants import ALPHA, PASSED

NONE = "\N{EN DASH}"
"""Shown for a missing value."""
MINUS = "\N{MINUS SIGN}"
LABELS = {
    "wo": "w/o",
    "mless": "w/ Mless",
    "mful": "w/ Mful",
    "random": "Random sentence",
    "mless+gap": "Position gap",
}
"""The study's labels of its conditions."""
LEVEL = f"{100 * (1 - ALPHA):g} %"
"""Level of the intervals that are shown."""


def label(condition: Any) -> str:
    """The name of a condition for people. A contrast is called as configs write it."""
    return LABELS.get(str(condition), str(condition))


def number(value: Any, digits: int = 1) -> str:
    """A number without a sign."""
    return NONE if _missing(value) else f"{value:.{digits}f}"


def signed(value: Any, digits: int = 1) -> str:
    """A number with its sign. Zero after rounding has none."""
    if _missing(value):
        return NONE
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def interval(low: Any, high: Any, *, sign: bool = False) -> str:
    """An interval in brackets, in whole points from a length of 20 on; empty if an end is missing."""
    if _missing(low) or _missing(high):
        return ""
    write, digits = signed if sign else number, int(high - low < 20)
    return f"[{write(low, digits)}, {write(high, digits)}]"


def accuracy(value: Any, low: Any, high: Any) -> str:
    """An accuracy in percent with its interval."""
    return f"{number(value)} {interval(low, high)}"


def difference(value: Any, low: Any, high: Any) -> str:
    """A difference in points with its interval."""
    return f"{signed(value)} {interval(low, high, sign=True)}".rstrip()


def count(value: Any) -> str:
    """A number of problems. Means over samples need not be whole, and then have a digit after the point."""
    whole = _missing(value) or math.isclose(value, round(value), abs_tol=1e-9)
    return number(value, 0 if whole else 1)


def flips(up: Any, down: Any) -> str:
    """Flips from wrong to right and from right to wrong."""
    return NONE if _missing(up) or _missing(down) else f"{count(up)} / {count(down)}"


def define_flips(samples: int) -> str:
    """What flips are, wherever they are counted: the one count of tables, report and `mless show`."""
    several = ", mean over pairs of samples" if samples > 1 else ""
    return f"problems from wrong to right and from right to wrong{several}"


def describe_repeat(row: Mapping[str, Any]) -> str:
    """What changed when both sides of a contrast were run again (A/A)."""
    change = f"the difference changes by {signed(row['aa_difference'])} points"
    if _missing(row["aa_samples"]):
        return change
    return f"{row['aa_changed']} of {row['aa_samples']} completions differ, and {change}"


def p_value(value: Any) -> str:
    """A p-value with three digits, or more if rounding would move it across alpha."""
    if _missing(value):
        return NONE
    if value < 0.001:
        return "< 0.001"
    texts = (f"{value:.{digits}f}" for digits in range(3, 18))
    return next((text for text in texts if (float(text) < ALPHA) == (value < ALPHA)), repr(value))


def verdict(
    word: Any, role: Any, within_margin: Any = False, margin: Any = None, by_format: Any = False
) -> str:
    """The verdict in a word. A significant difference says if it is within the margin, or may be all format."""
    if word is None:
        return NONE if role == "baseline" else str(role)
    said = (["format"] if by_format else []) + ([f"< {margin:g}"] if within_margin else [])
    return f"{word} ({', '.join(said)})" if word in PASSED and said else str(word)


def points(margin: float) -> str:
    """A margin with its unit."""
    return f"{margin:g} {plural('point', margin)}"


def plural(noun: str, amount: float) -> str:
    """The noun in singular or plural, as the amount needs it."""
    return noun if amount == 1 else f"{noun}s"


def _missing(value: Any) -> bool:
    return value is None or math.isnan(value)


HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of control, format (directions, widths) and unassigned characters, half surrogate pairs, and
separators of lines and paragraphs."""


def name_character(character: str) -> str:
    """A character by its number, as `<U+202E>`."""
    return f"<U+{ord(character):04X}>"


def visible(text: object, *, keep: str = "\n\t") -> str:
    """The text with hidden characters spelt out, except those in `keep`. Keep none for text on a single line."""
    shown = str(text)
    if shown.isprintable():  # nearly always
        return shown
    return "".join(
        name_character(one) if unicodedata.category(one) in HIDDEN and one not in keep else one
        for one in shown
    )
