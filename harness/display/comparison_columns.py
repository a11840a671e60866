"""The columns of the comparison: the key of each in the data, its heading, format and legend.

Braces in a legend are facts of the table: see `format_table.Table`. Columns of other tables stand in `side_tables`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from harness.constants import ALPHA
from harness.display.format_table import Column
from harness.display.format_values import (
    LEVEL,
    MINUS,
    NONE,
    difference,
    flips,
    label,
    number,
    p_value,
    signed,
    verdict,
)


def word(name: str) -> Column:
    """A column of words. Conditions are shown by their labels, the primary one with a star, but sorted by name."""
    if name == "condition":
        return Column("condition primary", name, _starred, numeric=False)
    return Column(name, name, lambda value: NONE if value is None else str(value), numeric=False)


def _starred(name: Any, primary: Any) -> str:
    return f"{label(name)} *" if primary else label(name)


def _bare(value: Any, role: Any) -> str:
    return f"({signed(value)})" if role == "exploratory" else signed(value)


ACCURACY = Column("accuracy", "acc. %", number)
DIFFERENCE = Column(
    "difference low high",
    f"difference [{LEVEL}]",
    difference,
    "from {baseline} in points, paired by problem; the interval is not adjusted for several tests, p is",
)
P = Column("p_adjusted", "p adj.", p_value, "sign-flip test, adjusted by Holm over {family}")
ANSWERS = Column(
    "answered_difference answered_low answered_high",
    f"answered [{LEVEL}]",
    difference,
    "the part of it among answered samples: pairs that both have a graded answer; the rest is format",
)
VERDICT = Column(
    "verdict role within_margin margin by_format",
    "verdict",
    verdict,
    f"of {{prompts}}. better, worse: adjusted p < {ALPHA:g}; equivalent: the {100 * (1 - 2 * ALPHA):g} % interval, not "
    f"adjusted for several, lies between {MINUS}{{margin:g}} and +{{margin:g}} points, of at least {{fewest}}; else "
    "inconclusive: the data neither show an effect nor rule one out; (format): among answered samples nothing shows",
    numeric=False,
    strong=True,
)
FLIPS = Column("wrong_to_right right_to_wrong", "+ / -", flips, "flips, {flips}")
BARE = Column("difference role", "", _bare, strong=True)
"""A difference in the leaderboard, headed by its condition: bold if its test was passed, in brackets if exploratory."""

MEDIATORS = (
    Column("no_box", "no box %", number),
    Column("truncated", "cut off", number),
    Column("refused", "unread", number),
    Column("timed_out", "late", number),
    Column("completion_tokens", "tokens", partial(number, digits=0)),
    Column("looping", "loops", number),
)
"""The first four are how ungraded samples end."""
