"""Texts of numbers, verdicts and hidden characters in tables, figures, the report and messages.

Minus signs and dashes are typographic; `printed_tables.render` replaces them in plain text.
"""

import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from harness.constants import ALPHA, NOT_SHOWN, SIGNIFICANT_VERDICTS, Row

EN_DASH = "\N{EN DASH}"
"""Text of a missing value, and between the ends of an accuracy's interval."""
MINUS = "\N{MINUS SIGN}"
LABEL_BY_CONDITION = {
    "wo": "w/o",
    "mless": "w/ Mless",
    "mful": "w/ Mful",
    "random": "Random sentence",
    "mless+gap": "Position gap",
}
"""The labels of conditions in the study."""
LEVEL_TEXT = f"{100 * (1 - ALPHA):g} %"
"""Level of the intervals in tables and figures."""
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of characters that a terminal or a browser would obey rather than show:
control, format (directions, widths), half surrogate pairs, private and unassigned characters, and
separators of lines and paragraphs."""


def label(condition: Any) -> str:
    """The label of a condition, or of a contrast, which has the name that configs write."""
    return LABEL_BY_CONDITION.get(str(condition), str(condition))


def format_number(value: Any, decimals: int = 1) -> str:
    """A number without a sign."""
    return EN_DASH if _is_missing(value) else f"{value:.{decimals}f}"


def format_signed_number(value: Any, decimals: int = 1) -> str:
    """A number with its sign. Zero after rounding has none."""
    if _is_missing(value):
        return EN_DASH
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def format_interval(low: Any, high: Any, *, has_sign: bool = False) -> str:
    """An interval in brackets; empty if an end is missing."""
    if _is_missing(low, high):
        return ""
    write_end = format_signed_number if has_sign else format_number
    decimals = count_decimals(low, high)
    return f"[{write_end(low, decimals)}, {write_end(high, decimals)}]"


def count_decimals(low: Any, high: Any) -> int:
    """The digits after the point of an interval: the shorter the interval, the more.

    Two below a length of half a point, none from 10 points on, otherwise one.
    """
    if _is_missing(low, high) or 0.5 <= high - low < 10:
        return 1
    return 2 if high - low < 0.5 else 0


def format_accuracy(value: Any, low: Any, high: Any) -> str:
    """An accuracy in percent with its interval if there is one, as `44.6 [34-53]`."""
    if _is_missing(low):
        return format_number(value)
    return f"{format_number(value)} [{format_number(low, 0)}{EN_DASH}{format_number(high, 0)}]"


def format_mean(value: Any, low: Any, high: Any) -> str:
    """A mean of numbers of any unit with its interval."""
    return (
        f"{format_number(value, max(1, count_decimals(low, high)))} {format_interval(low, high)}"
    ).rstrip()


def format_estimate(value: Any, low: Any, high: Any) -> str:
    """A difference with the digits of its interval, and at least one."""
    return format_signed_number(value, max(1, count_decimals(low, high)))


def format_difference(value: Any, low: Any, high: Any) -> str:
    """A difference, or a log-probability, with its interval."""
    return (
        f"{format_estimate(value, low, high)} {format_interval(low, high, has_sign=True)}".rstrip()
    )


def format_count(value: Any) -> str:
    """A number of problems, with a digit after the point only if it is a mean over samples."""
    if _is_missing(value) or math.isclose(value, round(value), abs_tol=1e-9):
        return format_number(value, 0)
    return format_number(value)


def format_flips(gains: Any, losses: Any) -> str:
    """Flips from wrong to right and from right to wrong."""
    if _is_missing(gains, losses):
        return EN_DASH
    return f"{format_count(gains)}/{format_count(losses)}"


def define_flips(rows: Iterable[Row]) -> str:
    """The definition of flips for rows of a comparison: a mean if any has several samples."""
    mean_text = ", mean over pairs of samples" if any(row["repeats"] > 1 for row in rows) else ""
    return f"problems that change from wrong to right, and from right to wrong{mean_text}"


def describe_repeat(row: Row) -> str:
    """The changes in a repeat run (A/A) of both conditions of a contrast."""
    change_text = (
        f"{format_count(row['aa_flips'])} problems flip, and the difference changes by "
        f"{format_estimate(row['aa_difference'], row['low'], row['high'])} points"
    )
    if _is_missing(row["aa_samples"]):
        return change_text
    return f"{row['aa_changed']} of {row['aa_samples']} completions differ, {change_text}"


def format_p_value(value: Any) -> str:
    """A p-value with three digits, or with more if three would move it to the other side of alpha.

    Very small values are written as `< 0.001`.
    """
    if _is_missing(value):
        return EN_DASH
    if value < 0.001:
        return "< 0.001"
    # 0.0499996 is significant, so it must not be printed as 0.050, which is not
    decimals = 3
    while (float(f"{value:.{decimals}f}") < ALPHA) != (value < ALPHA):
        decimals += 1
    return f"{value:.{decimals}f}"


def format_verdict(
    verdict_word: Any, role: Any, within_margin: Any, margin: Any, by_format: Any, place: Any = None
) -> str:
    """The verdict, with the filler's place among other texts if it is shown.

    A significant difference has a remark if it may be due to the format of answers alone, or if it
    is within the margin. A contrast without a verdict has its role instead, and the baseline a
    dash.
    """
    if verdict_word is None:
        return EN_DASH if role == "baseline" else str(role)
    remarks = []
    if verdict_word in SIGNIFICANT_VERDICTS:
        if by_format:
            remarks.append("format")
        if within_margin:
            remarks.append(f"< {margin:g}")
    if place not in (None, NOT_SHOWN):
        remarks.append(place)
    return f"{verdict_word} ({', '.join(remarks)})" if remarks else str(verdict_word)


def format_margin(margin: float) -> str:
    """A margin with its unit."""
    return f"{margin:g} {plural('point', margin)}"


def replace_accuracy(text: str, score_name: str | None) -> str:
    """A text with the name of another score, if there is one, for the word accuracy."""
    return re.sub("accuracy", score_name, text, flags=re.IGNORECASE) if score_name else text


def plural(noun: str, amount: float) -> str:
    """The noun, in the plural unless the amount is 1."""
    return noun if amount == 1 else f"{noun}s"


def describe_clusters(problem_count: int, cluster_count: int, copy_count: int) -> str:
    """The words about clusters after a number of problems; empty if each problem is a cluster.

    The number of clusters is 0 if the data has no clusters.
    """
    if cluster_count in (0, problem_count):
        return ""
    copies_text = f", {copy_count} of them copies of others," if copy_count else ""
    return f"{copies_text} in {cluster_count} clusters"


def _is_missing(*values: Any) -> bool:
    """Whether any of the values is None or NaN."""
    return any(value is None or math.isnan(value) for value in values)


def name_character(character: str) -> str:
    """A character by its number, as `<U+202E>`."""
    return f"<U+{ord(character):04X}>"


def visible(text: object, *, kept_characters: str = "") -> str:
    """The text with hidden characters spelt out, except those in `kept_characters`."""
    text = str(text)
    # nearly every text is printable, and this check is fast
    if text.isprintable():
        return text
    for character in {*text} - {*kept_characters}:
        if unicodedata.category(character) in HIDDEN_CATEGORIES:
            text = text.replace(character, name_character(character))
    return text
