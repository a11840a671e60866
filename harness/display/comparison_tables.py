"""The table of a comparison: its rows, title and columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas

from harness.analysis.result_tables import Leaderboard, records
from harness.analysis.sample_scores import NUMBER
from harness.constants import Row
from harness.display import comparison_columns
from harness.display.comparison_columns import text_column
from harness.display.comparison_remarks import explain_comparison
from harness.display.printed_tables import Column, Table
from harness.display.value_texts import describe_clusters, mean, plural

_TITLE_NOUNS = {
    "model": "",
    "layout": "",
    "problems": "problem",
    "repeats": "sample",
}
"""Columns that the title replaces if all rows agree. A column of counts has the noun it counts."""


def show_comparison(board: Leaderboard) -> Table:
    """One row per condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = rows_of_conditions(board, board.comparison)
    clusters = (0, 0) if board.by else (board.clusters, board.copies)
    names = ("model", "layout", *board.by, "condition", "problems", "repeats")
    # the title names what all rows share
    shared_values, word_columns = split_shared_values(records(board.comparison), names, clusters)
    title = ", ".join(shared_values) or "Differences from the baseline"
    accuracy = replace(comparison_columns.ACCURACY, heading=f"{board.score or 'acc.'} %")
    if board.score == NUMBER:
        accuracy = replace(accuracy, heading="score", format=mean)
    columns = [
        accuracy,
        comparison_columns.DIFFERENCE,
        comparison_columns.ADJUSTED_P,
        comparison_columns.VERDICT,
    ]
    # a terminal of 80 columns is too narrow for flips and answered samples together
    if any(_depends_on_format(row) for row in rows):
        columns.append(comparison_columns.ANSWERED)
    else:
        columns.append(comparison_columns.FLIP_COLUMN)
    facts, warnings, remarks = explain_comparison(board, rows)
    columns = [*word_columns, *_fill_legends(columns, facts)]
    return Table(title, rows, columns, remarks, warnings)


def _depends_on_format(row: Row) -> bool:
    """Whether the difference among answered samples is another than that among all samples.

    A tenth of the interval's length is too little to report.
    """
    if row["low"] is None:
        return False
    # Without a pair of answered samples, answers explain none of the difference. So it counts as 0.
    answered_difference = 0.0 if row["answered_difference"] is None else row["answered_difference"]
    return bool(10 * abs(answered_difference - row["difference"]) > row["high"] - row["low"])


def rows_of_conditions(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows of a table of the leaderboard, without those of reference conditions."""
    return [row for row in records(table) if row.get("condition") not in board.reference_conditions]


def split_shared_values(
    rows: Sequence[Row], names: Sequence[str], clusters: tuple[int, int] = (0, 0)
) -> tuple[list[str], list[Column]]:
    """The values that all rows share, as texts, and the columns of text in which rows differ.

    Columns of conditions, fillers and splits count as differing, as they usually have several
    values.
    """
    texts, columns = [], []
    for name in names:
        values = {row[name] for row in rows} - {None}
        if name not in _TITLE_NOUNS or len(values) > 1:
            columns.append(text_column(name))
        elif values:
            (value,) = values
            noun = _TITLE_NOUNS[name]
            text = f"{value} {plural(noun, value)}" if noun else str(value)
            if name == "problems":
                text += describe_clusters(value, *clusters)
            elif name == "repeats":
                text += " each"
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
