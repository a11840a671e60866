"""The forest plot: differences from the baseline with their intervals."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas
from matplotlib.figure import Figure

from harness.constants import NOT_SHOWN, SIGNIFICANT_VERDICTS, Row
from harness.display.comparison_remarks import find_families
from harness.display.figures.figure_rows import FigureRow, draw_rows
from harness.display.figures.figure_style import (
    Style,
    choose_styles,
    split_settings,
    wrapped_label,
)
from harness.display.value_texts import LEVEL_TEXT, format_estimate, format_interval, format_margin


def draw_forest(table: pandas.DataFrame, text_rows: Sequence[Row] = ()) -> Figure:
    """The difference of each repeat run (A/A) and of each condition, with the margin shaded.

    Args:
        table: From `harness.analysis.compare`. Rows of reference conditions are left out.
        text_rows: Rows of `other_texts.text_table`, whose ranges stand behind the conditions.
    """
    table = table[table["role"] != "reference"]
    style_by_condition = choose_styles(table["condition"])
    margin = float(table["margin"].iloc[0])
    rows: list[FigureRow] = []
    for setting_name, setting_table in split_settings(table):
        rows += _make_setting_rows(setting_name, setting_table, style_by_condition, text_rows)
    note = (
        f"n problems, k samples of each. Lines: {LEVEL_TEXT} intervals, not adjusted. "
        "Filled: p < 0.05, adjusted (Holm). "
        f"Shaded: the margin of {format_margin(margin)}."
    )
    if table["aa_difference"].notna().any():
        note += " A/A: the difference of the repeat runs minus the first; completions that differ."
    if family_names := dict.fromkeys(chain.from_iterable(row.bands for row in rows)):
        note += (
            f" Grey bands: {LEVEL_TEXT} range of one more text of the filler's length "
            f"({', then '.join(family_names)})."
        )
    # models can have different baselines
    baselines = table.loc[table["role"] == "baseline", "condition"].unique()
    baseline_labels = " / ".join(map(wrapped_label, baselines))
    figure = draw_rows(rows, note, f"Difference in accuracy from {baseline_labels} (points)")
    figure.axes[0].axvspan(-margin, margin, color="#eeeeee", zorder=0)
    return figure


def _make_setting_rows(
    setting_name: str,
    table: pandas.DataFrame,
    style_by_condition: Mapping[str, Style],
    text_rows: Sequence[Row],
) -> Iterator[FigureRow]:
    """The rows of one model and layout: a heading, the repeat runs (A/A), then the contrasts."""
    # a setting has exactly one baseline
    (baseline,) = table[table["role"] == "baseline"].to_dict("records")
    yield FigureRow(f"{setting_name} (n = {baseline['problems']}, k = {baseline['repeats']})")
    for row in table[table["aa_difference"].notna()].to_dict("records"):
        cells = {"points": format_estimate(row["aa_difference"], row["low"], row["high"])}
        if not pandas.isna(row["aa_samples"]):
            # a repeat run has no interval, so its column shows the number of changed completions
            cells["interval"] = f"{row['aa_changed']} of {row['aa_samples']}"
        yield FigureRow(
            f"{wrapped_label(row['condition'])} (A/A)",
            cells,
            style_by_condition[row["condition"]],
            row["aa_difference"],
            is_filled=False,
        )
    for row in table[table["role"] != "baseline"].to_dict("records"):
        family_rows = find_families(text_rows, row)
        yield _make_contrast_row(row, style_by_condition[row["condition"]], family_rows)


def _make_contrast_row(
    row: Mapping[Any, Any], style: Style, family_rows: Sequence[Row]
) -> FigureRow:
    """The row of a contrast: the difference with its interval, before the ranges of other texts.

    The mark is filled if the difference is significant.

    Args:
        row: The row of the comparison.
        style: Colour and marker of its condition.
        family_rows: The rows of `text_table` for this contrast.
    """
    # without a verdict the role says why there is none
    verdict = row["role"] if pandas.isna(row["verdict"]) else row["verdict"]
    value = row["difference"]
    low = row["low"]
    high = row["high"]
    cells = {
        "points": format_estimate(value, low, high),
        "interval": format_interval(low, high, has_sign=True),
        "verdict": verdict,
    }
    bands = {
        family_row["kind"]: (family_row["range_low"], family_row["range_high"])
        for family_row in family_rows
        if family_row["place"] != NOT_SHOWN
    }
    return FigureRow(
        wrapped_label(row["condition"]),
        cells,
        style,
        value,
        low,
        high,
        is_filled=verdict in SIGNIFICANT_VERDICTS,
        bands=bands,
    )
