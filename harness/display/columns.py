"""Every column that a table shows: its key in the data, heading, format and legend, each declared once.

What a column of the data means is declared where it is computed, in `harness.analysis`; where a shown column is that
column alone, its legend is that meaning. Braces in a legend are facts of the table: see `table.Table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from harness.analysis import causes, controls, other_prompts, pooled, sweeps
from harness.constants import ALPHA
from harness.display.table import Column
from harness.display.wording import (
    LEVEL,
    MINUS,
    NONE,
    accuracy,
    count,
    difference,
    flips,
    interval,
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


def _by_grader(right: Any, change: Any) -> str:
    return number(right) + ("" if change is None else f" {signed(change)}")


def _meant(meanings: Mapping[str, str], *columns: tuple[str, str, Callable[..., str]]) -> tuple[Column, ...]:
    return tuple(Column(key, heading, write, meanings.get(key.split()[0], "")) for key, heading, write in columns)


ACCURACY = Column("accuracy", "acc. %", number)
DIFFERENCE = Column(
    "difference low high",
    f"difference [{LEVEL}]",
    difference,
    "from {baseline} in points, paired by problem; the interval is not adjusted for several tests, p is",
)
P = Column("p_adjusted", "p adj.", p_value, "sign-flip test, adjusted by Holm over {family}")
ANSWERS = Column(
    "answer_difference answer_low answer_high",
    f"by answer [{LEVEL}]",
    difference,
    "the part of it from pairs of samples that both have a graded answer; the rest is format",
)
VERDICT = Column(
    "verdict role within_margin margin by_format",
    "verdict",
    verdict,
    f"of {{prompts}}. better, worse: adjusted p < {ALPHA:g}; equivalent: the {100 * (1 - 2 * ALPHA):g} % interval, not "
    f"adjusted for several, lies between {MINUS}{{margin:g}} and +{{margin:g}} points, of at least {{fewest}}; else "
    "inconclusive: the data neither show an effect nor rule one out; (format): by answer nothing shows",
    numeric=False,
    strong=True,
)
FLIPS = Column("wrong_to_right right_to_wrong", "+ / -", flips, "flips, {flips}")
BARE = Column("difference role", "", _bare, strong=True)
"""A difference in the leaderboard, headed by its condition: bold if its test was passed, in brackets if exploratory."""

TEXTS = _meant(
    other_prompts.TEXTS,
    ("texts kind", "against", "{} {}".format),
    ("least most", "their accuracies", interval),
    ("difference new_low new_high", f"less their mean [{LEVEL}]", difference),
    ("new_p", "p", p_value),
)
WORDINGS = _meant(
    other_prompts.WORDINGS,
    ("wordings", "instructions", count),
    ("least most", "from, to", partial(interval, sign=True)),
    ("better worse", "better, worse in", "{}, {}".format),
    ("difference new_low new_high", f"mean [{LEVEL}]", difference),
    ("new_p", "p", p_value),
)
POOLED = _meant(
    pooled.COLUMNS,
    ("difference low high", f"these models [{LEVEL}]", difference),
    ("p", "p", p_value),
    ("new_low new_high", "new models", lambda low, high: interval(low, high, sign=True) or NONE),
)
SWEEPS = _meant(
    sweeps.COLUMNS,
    ("lengths", "tokens", lambda lengths: str(lengths).replace(" ", ", ")),
    ("difference low high", f"all lengths [{LEVEL}]", difference),
    ("longest_less_shortest longest_low longest_high", "longest less shortest", difference),
    ("p_adjusted", "p adj.", p_value),
    ("best", "best", str),
)
CAUSES = _meant(
    causes.COLUMNS,
    ("layers", "layers", lambda layers: layers or NONE),
    ("valid_attention", "weights add up to 1", lambda valid: "yes" if valid else "no"),
    ("difference low high", f"less the gap [{LEVEL}]", difference),
    ("p_adjusted", "p adj.", p_value),
)
MEDIATORS = _meant(
    controls.MEDIATORS,
    ("no_box", "no box %", number),
    ("truncated", "cut off", number),
    ("refused", "unread", number),
    ("timed_out", "late", number),
    ("completion_tokens", "tokens", partial(number, digits=0)),
    ("looping", "loops", number),
)
GRADERS = tuple(
    Column(f"{name} {name}_difference", heading, _by_grader, legend)
    for name, heading, legend in (
        ("math_verify", "math_verify", ""),
        ("exact_match_boxed", "boxed", "lm-eval's exact_match on the last box"),
        ("authors_rule", "authors'", "the study's rule: the answer may be a substring of the gold"),
        ("authors_rule_strict", "strict", "the same without substrings"),
    )
)
REFERENCE = _meant(
    {},
    (
        "accuracy accuracy_low accuracy_high",
        f"ours % [{LEVEL}]",
        lambda *ours: "not run" if ours[0] is None else accuracy(*ours),
    ),
    ("authors_rule", "authors'", number),
    ("reference", "theirs", number),
    ("difference low high", "our difference", difference),
    ("reference_difference", "their difference", signed),
)
