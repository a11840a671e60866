"""The report's tables: what `statistics.compare` and the leaderboard say, as cells that can be shown and sorted.

Nothing is computed here. A cell keeps the number that it shows, by which it is sorted; `strong` is kept for verdicts
whose test was passed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.leaderboard import LABELS, records
from harness.statistics import COLUMNS

if TYPE_CHECKING:
    import pandas

NONE = "\N{EN DASH}"
WORDS = ("model", "layout", "condition")
_PASSED = ("better", "worse")
_WHOLE = ("n", "k", "wrong_to_right", "right_to_wrong", "problems_up", "problems_down")

MEDIATORS = {
    "model": "model",
    "layout": "layout",
    "condition": "condition",
    "samples": "samples",
    "no_box": "no box %",
    "truncated": "truncated %",
    "refused": "refused %",
    "timed_out": "timed out %",
    "completion_tokens": "tokens",
    "looping": "looping %",
    "format_changed": "format moved %",
    "format_difference": "by format",
    "answer_difference": "by answer",
}
"""Headings of the table of what else changed."""

AUDIT = {
    "model": "model",
    "layout": "layout",
    "condition": "condition",
    "ours": "ours %",
    "math_verify": "math_verify %",
    "exact_match": "exact_match %",
    "exact_match_boxed": "exact_match, boxed %",
    "authors_rule": "authors' rule %",
    "authors_rule_strict": "authors' rule, strict %",
    "first_box": "first box %",
    "boxes_after_first": "boxes after first",
}
"""Headings of the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a cell shows, what it is sorted by, and whether it is a verdict that passed its test."""

    text: str
    key: float | str
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's heading, and what it means."""

    header: str
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a caption, and sentences that belong below it."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def meanings(self) -> list[tuple[str, str]]:
        """Headings that need a word, with it."""
        return [(column.header, column.meaning) for column in self.columns if column.meaning]


def comparison_table(
    compared: pandas.DataFrame, caption: str, *, by: Sequence[str] = (), notes: Sequence[str] = ()
) -> Table:
    """The table of `statistics.compare`: accuracies, differences with intervals, adjusted p-values, verdicts."""
    repeated = bool((compared["k"] > 1).any())
    twice = bool(compared["aa_p"].notna().any())
    ranked = bool(compared["null_p"].notna().any())
    level = "interval of level 1 - alpha"
    words = [Column(header=name, numeric=False) for name in ("model", "layout", *by, "condition")]
    numbers = [
        ("accuracy %", "accuracy", f"{COLUMNS['accuracy']}, with its score interval ({level})"),
        ("difference", "difference", f"{COLUMNS['difference']}, with its score interval ({level})"),
        ("p adjusted", "p_adjusted", f"{COLUMNS['p_adjusted']} of tests; each test is {COLUMNS['test']}"),
        ("verdict", "verdict", COLUMNS["verdict"]),
        ("wrong to right", "wrong_to_right", COLUMNS["wrong_to_right"]),
        ("right to wrong", "right_to_wrong", COLUMNS["right_to_wrong"]),
        *([("A/A difference", "aa_difference", COLUMNS["aa_difference"])] if twice else []),
        *([("A/A flips %", "aa_discordance", COLUMNS["aa_discordance"])] if twice else []),
        *([("rank p", "null_p", COLUMNS["null_p"])] if ranked else []),
        ("n", "n", COLUMNS["n"]),
        ("k", "k", COLUMNS["k"]),
        ("SE", "standard_error", COLUMNS["standard_error"]),
        *([("pass@k %", "pass_at_k", COLUMNS["pass_at_k"])] if repeated else []),
        *([("maj@k %", "majority", COLUMNS["majority"])] if repeated else []),
        *([("up", "problems_up", COLUMNS["problems_up"])] if repeated else []),
        *([("down", "problems_down", COLUMNS["problems_down"])] if repeated else []),
    ]
    heads = [Column(header=header, meaning=meaning, numeric=name != "verdict") for header, name, meaning in numbers]
    rows = []
    for row in records(compared):
        cells = [word(row, column.header) for column in words]
        rows.append((*cells, *(_compared(row, name) for _, name, _ in numbers)))
    return Table(caption=caption, columns=(*words, *heads), rows=tuple(rows), notes=tuple(notes))


def plain_table(
    frame: pandas.DataFrame, caption: str, *, headers: Mapping[str, str], notes: Sequence[str] = ()
) -> Table:
    """A table of the leaderboard, with those of its columns that have a heading."""
    names = [name for name in headers if name in frame.columns]
    rows = []
    for row in records(frame):
        cells = []
        for name in names:
            if name in WORDS:
                cells.append(word(row, name))
            elif row[name] is None:
                cells.append(Cell(text=NONE, key=math.nan))
            else:
                cells.append(Cell(text=_number(row, name), key=float(row[name])))
        rows.append(tuple(cells))
    columns = tuple(Column(header=headers[name], numeric=name not in WORDS) for name in names)
    return Table(caption=caption, columns=columns, rows=tuple(rows), notes=tuple(notes))


def word(row: Mapping[str, Any], name: str) -> Cell:
    """A cell of words; a condition by its label."""
    value = row[name]
    if name == "condition":
        return Cell(text=LABELS.get(str(value), str(value)), key=str(value))
    return Cell(text=NONE if value is None else str(value), key="" if value is None else str(value))


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, as print has it."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else "\N{MINUS SIGN}") + text


def interval(low: float | None, high: float | None, *, sign: bool = False) -> str:
    """An interval in brackets; nothing where there is none."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    ends = (signed(end) if sign else f"{end:.1f}" for end in (low, high))
    return f" [{', '.join(ends)}]"


def count(value: float) -> str:
    """A number of problems; a mean over samples can have a fraction."""
    return f"{value:.1f}".removesuffix(".0")


def p_value(value: float) -> str:
    """A p-value with three digits after the point."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _compared(row: Mapping[str, Any], name: str) -> Cell:
    value = row[name]
    if name == "verdict":
        return Cell(text=str(value), key=str(value), strong=value in _PASSED)
    if value is None:
        return Cell(text=NONE, key=math.nan)
    number = float(value)
    if name == "accuracy":
        text = f"{number:.1f}{interval(row['accuracy_low'], row['accuracy_high'])}"
    elif name == "difference":
        text = f"{signed(number)}{interval(row['low'], row['high'], sign=True)}"
    elif name == "aa_difference":
        text = signed(number)
    elif name in ("p_adjusted", "null_p"):
        text = p_value(number)
    else:
        text = count(number) if name in _WHOLE else f"{number:.1f}"
    return Cell(text=text, key=number)


def _number(row: Mapping[str, Any], name: str) -> str:
    """A number; a grader's accuracy is followed by how many samples it takes from ours and adds to it."""
    value = row[name]
    if f"{name}_only_ours" in row:
        return f"{value:.1f} (\N{MINUS SIGN}{row[f'{name}_only_ours']} +{row[f'{name}_only_theirs']})"
    if name in ("format_difference", "answer_difference"):
        return signed(value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)
