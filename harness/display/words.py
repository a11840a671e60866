"""How numbers and verdicts are worded, wherever people read them: tables, figures, the report, `mless flips`.

Minus signs and dashes are print's; a writer of plain text has its own for them (`table_formats`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.analysis.intervals import fewest_problems
from harness.analysis.power import ALPHA

NONE = "\N{EN DASH}"
"""Where there is nothing to show."""
MINUS = "\N{MINUS SIGN}"
PASSED = ("better", "worse")
"""Verdicts whose test was passed: the only ones in bold."""
LABELS = {"wo": "w/o", "mless": "w/ Mless", "mful": "w/ Mful", "random": "Random sentence"}
"""The study's labels of its conditions."""
LEVEL = f"{100 * (1 - ALPHA):g} %"
"""Of the intervals that are shown."""
NOISE = {
    True: "under greedy decoding this measures only what the engine does not repeat exactly",
    False: "drawn with other seeds, this is one instance of what chance alone does, and no bound on it",
}
"""What a second run of the baseline says, by whether it was greedy."""


def label(condition: Any) -> str:
    """What people call a condition."""
    return LABELS.get(str(condition), str(condition))


def number(value: Any, digits: int = 1) -> str:
    """A number that has no sign."""
    return NONE if _missing(value) else f"{value:.{digits}f}"


def signed(value: Any) -> str:
    """A number with its sign; what is rounded to zero has none."""
    if _missing(value):
        return NONE
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def interval(low: Any, high: Any, *, sign: bool = False) -> str:
    """An interval in brackets; nothing where there is none."""
    if _missing(low) or _missing(high):
        return ""
    write = signed if sign else number
    return f"[{write(low)}, {write(high)}]"


def accuracy(row: Mapping[str, Any]) -> str:
    """An accuracy in percent with its interval."""
    return f"{number(row['accuracy'])} {interval(row['accuracy_low'], row['accuracy_high'])}"


def difference(row: Mapping[str, Any]) -> str:
    """A difference in points with its interval, from its value, `low` and `high`."""
    return f"{signed(row['difference'])} {interval(row['low'], row['high'], sign=True)}".rstrip()


def count(value: Any) -> str:
    """A number of problems; a mean over samples, which need not be whole, has a digit after the point then."""
    whole = _missing(value) or math.isclose(value, round(value), abs_tol=1e-9)
    return number(value, 0 if whole else 1)


def flips(row: Mapping[str, Any], of: str = "") -> str:
    """Problems from wrong to right and from right to wrong; `aa_`: of the baseline against itself."""
    up, down = row[f"{of}wrong_to_right"], row[f"{of}right_to_wrong"]
    return NONE if _missing(up) or _missing(down) else f"{count(up)} / {count(down)}"


def p_value(value: Any) -> str:
    """A p-value with three digits after the point, and more where rounding would put it on alpha's other side."""
    if _missing(value):
        return NONE
    if value < 0.001:
        return "< 0.001"
    texts = (f"{value:.{digits}f}" for digits in range(3, 18))
    return next((text for text in texts if (float(text) < ALPHA) == (value < ALPHA)), repr(value))


def points(margin: float) -> str:
    """A margin with its unit."""
    return f"{margin:g} {plural('point', margin)}"


def plural(noun: str, amount: float) -> str:
    """The noun as it stands after the amount."""
    return noun if amount == 1 else f"{noun}s"


def verdict(row: Mapping[str, Any]) -> str:
    """The verdict in a word; with the margin where a real difference is smaller than that."""
    if row["verdict"] == "baseline":
        return NONE
    if row["verdict"] in PASSED and row["within_margin"]:
        return f"{row['verdict']} (< {row['margin']:g})"
    return str(row["verdict"])


def verdicts(margin: float) -> str:
    """What the words of verdicts mean."""
    return (
        f"better, worse: adjusted p < {ALPHA:g}; equivalent: the {100 * (1 - 2 * ALPHA):g} % interval lies between "
        f"{MINUS}{margin:g} and +{margin:g} points, of at least {fewest_problems(margin / 100)} problems; otherwise "
        "inconclusive"
    )


def judgement(row: Mapping[str, Any]) -> str:
    """The verdict in a sentence, with the margin that it speaks of."""
    if row["verdict"] == "equivalent":
        return f"equivalent within {points(row['margin'])}"
    if row["verdict"] in PASSED and row["within_margin"]:
        return f"{row['verdict']}, though by less than {points(row['margin'])}"
    return str(row["verdict"])


def _missing(value: Any) -> bool:
    return value is None or math.isnan(value)
