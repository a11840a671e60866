"""The report's table of comparisons: wider than `mless table` prints it, and every column explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.analysis.comparison import COLUMNS
from harness.analysis.leaderboard import records
from harness.display.grid import Field, Grid, Row, make_grid, number_field, verdict_field, word_field
from harness.display.words import LEVEL, count, difference, interval, number, p_value, signed, verdicts

if TYPE_CHECKING:
    import pandas


def comparison_table(compared: pandas.DataFrame, title: str, *, by: Sequence[str] = ()) -> Grid:
    """The table of `analysis.compare`: accuracies, differences with intervals, adjusted p-values, verdicts."""
    rows = records(compared)
    repeated = any(row["k"] > 1 for row in rows)
    twice = any(row["aa_p"] is not None for row in rows)
    ranked = any(row["null_p"] is not None for row in rows)
    ends = f"with its {LEVEL} score interval"
    fields = [
        *map(word_field, ("model", "layout", *by, "condition")),
        number_field("accuracy %", "accuracy", _accuracy, f"{COLUMNS['accuracy']}, {ends}"),
        number_field("difference", "difference", difference, f"{COLUMNS['difference']}, {ends}"),
        _number("p adjusted", "p_adjusted", p_value, f"{COLUMNS['p_adjusted']} of tests; test: {COLUMNS['test']}"),
        verdict_field(verdicts(rows[0]["margin"])),
        _number("wrong to right", "wrong_to_right", count),
        _number("right to wrong", "right_to_wrong", count),
        *([_number("A/A difference", "aa_difference", signed)] if twice else []),
        *([_number("A/A flips %", "aa_discordance", number)] if twice else []),
        *([_number("rank p", "null_p", p_value)] if ranked else []),
        _number("n", "n", count),
        _number("k", "k", count),
        _number("SE", "standard_error", number),
        *([_number("up", "problems_up", count)] if repeated else []),
        *([_number("down", "problems_down", count)] if repeated else []),
    ]
    return make_grid(title, fields, rows)


def _number(header: str, name: str, write: Callable[[float | None], str], meaning: str = "") -> Field:
    return number_field(header, name, lambda row: write(row[name]), meaning or COLUMNS[name])


def _accuracy(row: Row) -> str:
    return f"{number(row['accuracy'])} {interval(row['accuracy_low'], row['accuracy_high'])}"
