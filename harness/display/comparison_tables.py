"""The table of a comparison: its rows, title and columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas

from harness.analysis.result_tables import Leaderboard, list_rows
from harness.analysis.sample_scores import NUMBER
from harness.constants import Row
from harness.display.comparison_columns import (
    ACCURACY_COLUMN,
    ADJUSTED_P_COLUMN,
    ANSWERED_COLUMN,
    DIFFERENCE_COLUMN,
    FLIP_COLUMN,
    VERDICT_COLUMN,
    text_column,
)
from harness.display.comparison_remarks import explain_comparison
from harness.display.printed_tables import Column, Table
from harness.display.value_texts import describe_clusters, format_mean, plural

_TITLE_COLUMNS = ("model", "layout", "problems", "repeats")
"""Columns that are left out if all rows agree: their value is in the title instead. All others
remain even then, as conditions, fillers and splits usually have several values."""


def make_comparison_table(board: Leaderboard) -> Table:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = rows_of_conditions(board, board.comparison)
    all_rows = list_rows(board.comparison)
    accuracy_column = replace(ACCURACY_COLUMN, heading=f"{board.score or 'acc.'} %")
    if board.score == NUMBER:
        accuracy_column = replace(ACCURACY_COLUMN, heading="score", format=format_mean)
    # a terminal of 80 columns is too narrow for flips and answered samples together
    last_column = ANSWERED_COLUMN if any(map(_depends_on_format, rows)) else FLIP_COLUMN
    number_columns = [
        accuracy_column,
        DIFFERENCE_COLUMN,
        ADJUSTED_P_COLUMN,
        VERDICT_COLUMN,
        last_column,
    ]
    names = ("model", "layout", *board.by, "condition", "problems", "repeats")
    explanation = explain_comparison(board, rows)
    return Table(
        ", ".join(_list_shared_values(board, all_rows)) or "Differences from the baseline",
        rows,
        [*list_text_columns(all_rows, names), *_fill_legends(number_columns, explanation.facts)],
        explanation.remarks,
        explanation.warnings,
    )


def _depends_on_format(row: Row) -> bool:
    """Whether differences among answered samples and among all samples are clearly not the same.

    Less than a tenth of the interval's length is too little to report.
    """
    if row["low"] is None:
        return False
    # It is None if no pair of samples has two answers. Then answers explain none of the difference.
    answered_difference = row["answered_difference"] or 0.0
    return bool(10 * abs(answered_difference - row["difference"]) > row["high"] - row["low"])


def rows_of_conditions(board: Leaderboard, frame: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those of reference conditions."""
    return [
        row for row in list_rows(frame) if row.get("condition") not in board.reference_conditions
    ]


def list_text_columns(rows: Sequence[Row], names: Iterable[str]) -> list[Column]:
    """The columns of text with these names, without those that are left out: _TITLE_COLUMNS."""
    return [
        text_column(name)
        for name in names
        if name not in _TITLE_COLUMNS or len(_distinct_values(rows, name)) > 1
    ]


def _list_shared_values(board: Leaderboard, rows: Sequence[Row]) -> Iterator[str]:
    """The values of _TITLE_COLUMNS on which all rows agree, as texts."""
    for name in _TITLE_COLUMNS:
        values = _distinct_values(rows, name)
        if len(values) == 1:
            yield _describe_shared_value(board, name, values.pop())


def _describe_shared_value(board: Leaderboard, name: str, value: Any) -> str:
    """A value with its noun."""
    if name == "repeats":
        return f"{value} {plural('sample', value)} each"
    if name != "problems":
        return str(value)
    problems_text = f"{value} {plural('problem', value)}"
    # in a split table, the clusters are those of all problems together
    if board.by:
        return problems_text
    return f"{problems_text}{describe_clusters(value, board.cluster_count, board.copy_count)}"


def _distinct_values(rows: Sequence[Row], name: str) -> set[Any]:
    """The values of a column; rows without a value agree with any other."""
    return {row[name] for row in rows} - {None}


def _fill_legends(columns: Sequence[Column], facts: Mapping[str, Any]) -> Iterator[Column]:
    """The columns with the facts in their legends.

    A legend whose facts are missing is left out: where nothing is tested, no legend is about tests.
    """
    for column in columns:
        try:
            # `format_map` reads only the facts that the legend names, so all others may be missing
            legend = column.legend.format_map(facts)
        except KeyError:
            legend = ""
        yield replace(column, legend=legend)
