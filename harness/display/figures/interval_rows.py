"""Rows with intervals: accuracies, and differences from the baseline (the forest plot)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.constants import ALPHA, PASSED
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT, INCHES
from harness.display.format_values import (
    LEVEL,
    NONE,
    interval,
    number,
    p_value,
    points,
    signed,
    visible,
)

ROW_HEIGHT, NAME_WIDTH = 0.19, 1.2
"""The height of a row and the width of the names to the left of the axes, in inches."""
COLUMN_WIDTHS = {"%": 0.4, "points": 0.4, "interval": 0.83, "adj. p": 0.52, "verdict": 0.75}
"""The columns of text to the right of the axes, in their order, with their widths in inches."""


_read_effect = itemgetter("difference", "low", "high")
"""The difference of a row and the ends of its interval."""


class FigureRow(NamedTuple):
    """One row of a figure. A row without a look is a heading.

    Attributes:
        name: The text to the left of the axes.
        cells: The texts to the right of the axes, by column.
        look: Colour and marker.
        value: The position of the mark.
        low: The lower end of the interval; NaN for none.
        high: The upper end.
        filled: Whether the mark is filled; else it is white.
        outer: The ends of the line behind a pooled effect, which is a diamond from low to high.
    """

    name: str
    cells: Mapping[str, str] = {}
    look: figure_style.Look | None = None
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    filled: bool = True
    outer: tuple[float, float] | None = None


def draw_accuracies(table: pandas.DataFrame, *, title: str) -> Figure:
    """A row for each model, layout and condition, in the table's order.

    The axis contains the intervals, not zero.

    Args:
        table: From `harness.analysis.compare` or `count_correct.accuracy_table`. Rows of reference
            conditions and contrasts are left out.
        title: The text above the figure.
    """
    table = figure_style.without_contrasts(figure_style.without_reference_conditions(table))
    looks = figure_style.looks(table["condition"])
    rows = []
    for setting, conditions in figure_style.split_settings(table).items():
        rows.append(FigureRow(f"{setting} (n = {conditions['problems'].iloc[0]})"))
        for row in conditions.to_dict("records"):
            value, low, high = row["accuracy"], row["accuracy_low"], row["accuracy_high"]
            name = figure_style.short_label(row["condition"])
            cells = {"%": number(value), "interval": interval(low, high)}
            rows.append(FigureRow(name, cells, looks[row["condition"]], value, low, high))
    note = (
        f"Lines: {LEVEL} score intervals of single accuracies. Their overlap does not show whether "
        "two conditions differ, because samples are paired by problem: see the forest plot."
    )
    figure, axes = draw_rows(rows, note=note, title=visible(title, keep=""))
    axes.set_xlabel("Accuracy (%)")
    return figure


def draw_forest(table: pandas.DataFrame, *, pooled: pandas.DataFrame | None = None) -> Figure:
    """The difference of each repeat run (A/A) and of each condition, with the margin shaded.

    Args:
        table: From `harness.analysis.compare`. Rows of reference conditions are left out.
        pooled: From `pool_models.pool`: diamonds below, one for each contrast.
    """
    table = figure_style.without_reference_conditions(table)
    looks = figure_style.looks(table["condition"])
    margin = float(table["margin"].iloc[0])
    rows: list[FigureRow] = []
    for setting, conditions in figure_style.split_settings(table).items():
        rows += _make_setting_rows(setting, conditions, looks)
    note = (
        f"n problems, k samples of each. Lines: {LEVEL} intervals, not adjusted. "
        "Filled: p < 0.05, adjusted (Holm). "
        f"Shaded: the margin of {points(margin)}."
    )
    if table["aa_difference"].notna().any():
        note += " A/A: the difference of the repeat runs minus the first; completions that differ."
    if pooled is not None and len(pooled):
        rows += _make_pooled_rows(pooled, looks)
        note += (
            " Diamonds: these models and new problems; "
            "the line behind them: new models and new problems."
        )
    figure, axes = draw_rows(rows, note=note)
    axes.axvspan(-margin, margin, color="#eeeeee", zorder=0)
    baselines = table.loc[table["role"] == "baseline", "condition"].unique()
    names = " / ".join(map(figure_style.short_label, baselines))
    _mark_zero(axes, f"Difference in accuracy from {names} (points)")
    return figure


def draw_instructions(table: pandas.DataFrame) -> Figure:
    """Each contrast under each instruction, and below them the mean.

    Args:
        table: From `other_texts_and_instructions.instructions_table`.
    """
    rows = []
    for setting, contrasts in figure_style.split_settings(table).items():
        looks = figure_style.looks(contrasts["condition"])
        for row in contrasts.to_dict("records"):
            name = figure_style.short_label(row["condition"])
            rows.append(FigureRow(f"{setting}: {name} (n = {row['problems']})"))
            look = looks[row["condition"]]
            config_effect, *effects = row["effects"]
            rows.append(_make_difference_row("the config's", look, config_effect))
            for index, effect in enumerate(effects, start=1):
                rows.append(_make_difference_row(f"w{index:02}", look, effect))
            outer = row["new_low"], row["new_high"]
            mean = _make_difference_row("mean", look, _read_effect(row), outer=outer)
            cells = {**mean.cells, "interval": interval(*outer, sign=True)}
            rows.append(mean._replace(cells=cells))
    note = (
        "Difference from the baseline under the same instruction. w01, w02, ...: the instructions "
        f"of `across`. Lines: {LEVEL} intervals, not adjusted. Diamonds: the mean for these "
        "instructions and new problems; the line behind them, and the interval in numbers: for new "
        "instructions and new problems."
    )
    figure, axes = draw_rows(rows, note=note)
    _mark_zero(axes, "Difference in accuracy (points)")
    return figure


def draw_causes(table: pandas.DataFrame) -> Figure:
    """The effects of a filler's parts: a row for the filler, and for each of its interventions.

    They are differences from the position gap.

    Args:
        table: From `filler_parts.causes_table`.
    """
    looks = figure_style.looks(table["filler"])
    rows = []
    for filler in table["filler"].unique():
        effects = table[table["filler"] == filler]
        name = figure_style.short_label(filler)
        rows.append(FigureRow(f"{name} (n = {effects['problems'].iloc[0]})"))
        for row in effects.to_dict("records"):
            name = row["condition"]
            if not row["valid_attention"]:
                name += " (!)"
            rows.append(
                _make_difference_row(
                    name,
                    looks[filler],
                    _read_effect(row),
                    {"adj. p": p_value(row["p_adjusted"])},
                    filled=row["p_adjusted"] < ALPHA,
                )
            )
    note = (
        "Accuracy minus that of the position gap. (!): scale or bias alone, whose attention weights "
        "do not add up to 1. This is not valid attention. "
        f"Lines: {LEVEL} intervals, not adjusted. Filled: adjusted p < {ALPHA}."
    )
    figure, axes = draw_rows(rows, note=note)
    _mark_zero(axes, "Difference in accuracy from the position gap (points)")
    return figure


def _make_setting_rows(
    setting: str, table: pandas.DataFrame, looks: Mapping[str, figure_style.Look]
) -> Iterator[FigureRow]:
    """The rows of one model and layout: its name, repeat runs, then contrasts."""
    (baseline,) = table[table["role"] == "baseline"].to_dict("records")
    yield FigureRow(f"{setting} (n = {baseline['problems']}, k = {baseline['repeats']})")
    for row in table[table["aa_difference"].notna()].to_dict("records"):
        cells = {"points": signed(row["aa_difference"])}
        if not pandas.isna(row["aa_samples"]):
            cells["interval"] = f"{row['aa_changed']} of {row['aa_samples']}"
        name = f"{figure_style.short_label(row['condition'])} (A/A)"
        yield FigureRow(name, cells, looks[row["condition"]], row["aa_difference"], filled=False)
    for row in table[table["role"] != "baseline"].to_dict("records"):
        verdict = row["role"] if pandas.isna(row["verdict"]) else row["verdict"]
        yield _make_difference_row(
            figure_style.short_label(row["condition"]),
            looks[row["condition"]],
            _read_effect(row),
            {"adj. p": p_value(row["p_adjusted"]), "verdict": verdict},
            filled=verdict in PASSED,
        )


def _make_pooled_rows(
    pooled: pandas.DataFrame, looks: Mapping[str, figure_style.Look]
) -> Iterator[FigureRow]:
    """The rows of the contrasts of all models together, by layout."""
    layouts = pooled.groupby("layout", sort=False)
    for layout, contrasts in layouts:
        name = "all models"
        if len(layouts) > 1:
            name += f", {layout}"
        yield FigureRow(name)
        for row in contrasts.to_dict("records"):
            yield _make_difference_row(
                figure_style.short_label(row["condition"]),
                looks[row["condition"]],
                _read_effect(row),
                {"adj. p": NONE, "verdict": "exploratory"},
                outer=(row["new_low"], row["new_high"]),
            )


def _make_difference_row(
    name: str,
    look: figure_style.Look,
    effect: Sequence[float],
    cells: Mapping[str, str] = {},
    **marks: Any,
) -> FigureRow:
    """The row of a difference and the ends of its interval, in points."""
    value, low, high = effect
    numbers = {"points": signed(value), "interval": interval(low, high, sign=True)}
    return FigureRow(name, {**numbers, **cells}, look, value, low, high, **marks)


def _mark_zero(axes: Axes, label: str) -> None:
    axes.axvline(0, color=figure_style.MUTED, linewidth=0.6, zorder=1)
    axes.set_xlabel(label)


def draw_rows(rows: Sequence[FigureRow], *, note: str, title: str = "") -> tuple[Figure, Axes]:
    """A figure with one row below the other, and its axes.

    Args:
        rows: The rows from the top down.
        note: The meaning of the marks.
        title: The text above the rows, to the left.
    """
    used_columns = set[str]().union(*(row.cells for row in rows))
    columns = {}
    right = 0.1
    for name, width in COLUMN_WIDTHS.items():
        if name in used_columns:
            columns[name] = right
            right += width
    header = FigureRow(title, dict(zip(columns, columns, strict=True)))
    note_height = 1.35 * (FONT - 1) / 72 * (figure_style.wrap(note).count("\n") + 1)
    rows_height = ROW_HEIGHT * len(rows)
    # matplotlib places the note 1 % of the height above the lower edge.
    height = (0.42 + note_height + rows_height + 0.2) / 0.99
    with figure_style.drawing(height, note, managed=False) as figure:
        axes = figure.add_axes(
            (
                NAME_WIDTH / INCHES,
                1 - (rows_height + 0.2) / height,
                1 - (NAME_WIDTH + right) / INCHES,
                rows_height / height,
            )
        )
        for y, row in enumerate([header, *rows], start=-1):
            _write_row(axes, y, row, columns)
            _draw_marks(axes, y, row)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks([])
        figure_style.tidy(axes, grid="x", hidden=("top", "right", "left"))
    return figure, axes


def _write_row(axes: Axes, y: int, row: FigureRow, columns: Mapping[str, float]) -> None:
    """The name to the left of the axes and the cells to the right, at a distance in inches."""
    text: dict[str, Any] = {
        "xycoords": axes.get_yaxis_transform(),
        "textcoords": "offset points",
        "va": "center",
        "fontsize": FONT - 0.5,
    }
    is_header = y < 0
    colour = figure_style.MUTED if is_header else figure_style.INK
    for name, inches in columns.items():
        cell = row.cells.get(name, "")
        axes.annotate(cell, (1, y), xytext=(72 * inches, 0), color=colour, **text)
    inches, alignment = -0.06, "right"
    if row.look is None:
        inches, alignment = 0.03 - NAME_WIDTH, "left"
    axes.annotate(
        row.name, (0, y), xytext=(72 * inches, 0), ha=alignment, color=figure_style.INK, **text
    )


def _draw_marks(axes: Axes, y: int, row: FigureRow) -> None:
    """A mark with the line of its interval, or a diamond with a line behind; none for a heading."""
    if row.look is None:
        return
    colour = row.look.colour
    if row.outer is not None:
        axes.plot(row.outer, [y, y], color=figure_style.INK, linewidth=0.8, solid_capstyle="butt")
        axes.fill(
            [row.low, row.value, row.high, row.value],
            [y, y - 0.32, y, y + 0.32],
            facecolor=colour,
            edgecolor=figure_style.INK,
            linewidth=0.8,
            zorder=4,
        )
        return
    if not np.isnan(row.low):
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt")
    axes.plot(
        [row.value],
        [y],
        row.look.marker,
        color=colour,
        markerfacecolor=colour if row.filled else "white",
        markersize=0.62 * FONT,
        zorder=4,
    )
