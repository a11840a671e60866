"""The columns of the comparison: the key of each in the data, its heading, format and legend.

Braces in a legend name facts that `comparison_tables` fills in. `side_tables` has the columns of
the other tables.
"""

from typing import Any

from harness.constants import ALPHA
from harness.display.printed_tables import Column
from harness.display.value_texts import (
    EN_DASH,
    LEVEL_TEXT,
    MINUS,
    format_accuracy,
    format_difference,
    format_flips,
    format_number,
    format_p_value,
    format_verdict,
    label,
)


def text_column(name: str) -> Column:
    """A column of text.

    Conditions are shown by their labels, the primary one with a star, but sorted by their names.
    """
    if name == "condition":
        return Column("condition primary", name, _mark_primary, is_numeric=False)
    return Column(name, name, show_text, is_numeric=False)


def show_text(value: Any) -> str:
    """A text, or the sign of a missing value."""
    return EN_DASH if value is None else str(value)


def _mark_primary(name: Any, is_primary: Any) -> str:
    """The label of a condition, with a star if its contrast is the primary one."""
    return f"{label(name)} *" if is_primary else label(name)


ACCURACY_COLUMN = Column(
    "accuracy accuracy_low accuracy_high",
    "acc. %",
    format_accuracy,
    f"with its {LEVEL_TEXT} interval",
)
DIFFERENCE_COLUMN = Column(
    "difference low high",
    f"difference [{LEVEL_TEXT}]",
    format_difference,
    "compared with {baseline}{unit}, paired by problem; the interval is not adjusted for "
    "several tests",
)
ADJUSTED_P_COLUMN = Column("p_adjusted", "p adj.", format_p_value, "sign-flip test{adjustment}")
ANSWERED_COLUMN = Column(
    "answered_difference answered_low answered_high",
    f"answered [{LEVEL_TEXT}]",
    format_difference,
    "difference among answered samples: over pairs of samples that both have a graded answer; "
    "the rest of the difference is format",
)
VERDICT_COLUMN = Column(
    "verdict role within_margin margin by_format other_texts",
    "verdict",
    format_verdict,
    f"better, worse: adjusted p < {ALPHA:g}; "
    f"equivalent: the {100 * (1 - 2 * ALPHA):g} % interval, not adjusted for several tests, "
    f"lies between {MINUS}{{margin:g}} and +{{margin:g}} points{{fewest}}; "
    "inconclusive: none of these, so there may be an effect; "
    "(format): the difference may be due to format or unfinished reasoning alone. "
    "Verdicts are for this prompt{examples}",
    is_numeric=False,
    is_bold=True,
)
FLIP_COLUMN = Column(
    "wrong_to_right right_to_wrong", "+/-", format_flips, "flips, {flips}", is_optional=True
)
COLUMN_BY_ENDING = {
    "no box": Column("no_box", "no box %", format_number),
    "cut off": Column("truncated", "truncated", format_number),
    "unfinished": Column("unfinished", "unfinished", format_number, is_optional=True),
    "refused": Column("refused", "refused", format_number),
    "timeout": Column("timed_out", "timeout", format_number),
}
"""The percentages of samples without a grade, by the way in which they ended."""
