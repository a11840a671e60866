"""The table of a comparison: its rows, title and columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas

from harness.analysis.result_tables import Leaderboard, records
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
from harness.display.value_texts import describe_clusters, mean, plural

_TITLE_COLUMNS = ("model", "layout", "problems", "repeats")
"""Columns that are left out if all rows agree: their value is in the title instead."""


def show_comparison(board: Leaderboard) -> Table:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = rows_of_conditions(board, board.comparison)
    cluster_counts = (0, 0) if board.by else (board.cluster_count, board.copy_count)
    names = ("model", "layout", *board.by, "condition", "problems", "repeats")
    shared_texts, text_columns = split_shared_values(
        records(board.comparison), names, cluster_counts
    )
    accuracy_column = replace(ACCURACY_COLUMN, heading=f"{board.score or 'acc.'} %")
    if board.score == NUMBER:
        accuracy_column = replace(ACCURACY_COLUMN, heading="score", format=mean)
    # a terminal of 80 columns is too narrow for flips and answered samples together
    last_column = ANSWERED_COLUMN if any(map(_depends_on_format, rows)) else FLIP_COLUMN
    number_columns = [
        accuracy_column,
        DIFFERENCE_COLUMN,
        ADJUSTED_P_COLUMN,
        VERDICT_COLUMN,
        last_column,
    ]
    facts, warnings, remarks = explain_comparison(board, rows)
    columns = [*text_columns, *_fill_legends(number_columns, facts)]
    return Table(
        ", ".join(shared_texts) or "Differences from the baseline",
        rows,
        columns,
        remarks,
        warnings,
    )


def _depends_on_format(row: Row) -> bool:
    """Whether the difference among answered samples differs from that among all samples.

    A tenth of the interval's length is too little to report.
    """
    if row["low"] is None:
        return False
    # Without a pair of answered samples, answers explain none of the difference. So it counts as 0.
    answered_difference = 0.0 if row["answered_difference"] is None else row["answered_difference"]
    return bool(10 * abs(answered_difference - row["difference"]) > row["high"] - row["low"])


def rows_of_conditions(board: Leaderboard, frame: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those of reference conditions."""
    return [row for row in records(frame) if row.get("condition") not in board.reference_conditions]


def split_shared_values(
    rows: Sequence[Row], names: Sequence[str], cluster_counts: tuple[int, int] = (0, 0)
) -> tuple[list[str], list[Column]]:
    """The values that all rows share, as texts, and the columns of text in which rows differ.

    Args:
        rows: The rows.
        names: The columns of text. Conditions, fillers and splits remain columns even if all rows
            agree, as they usually have several values.
        cluster_counts: The numbers of clusters and of copies among the problems.
    """
    texts, columns = [], []
    for name in names:
        distinct_values = {row[name] for row in rows} - {None}
        if name not in _TITLE_COLUMNS or len(distinct_values) > 1:
            columns.append(text_column(name))
        elif distinct_values:
            (value,) = distinct_values
            text = str(value)
            if name == "problems":
                text = (
                    f"{value} {plural('problem', value)}{describe_clusters(value, *cluster_counts)}"
                )
            elif name == "repeats":
                text = f"{value} {plural('sample', value)} each"
            texts.append(text)
    return texts, columns


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
