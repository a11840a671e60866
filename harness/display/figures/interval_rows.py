"""Rows with intervals: the accuracies of conditions, and their differences from the baseline (the forest plot)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.constants import ALPHA, PASSED
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT, INCHES
from harness.display.format_values import LEVEL, interval, number, p_value, points, signed, visible

ROW_HEIGHT, ROW_NAMES = 0.19, 1.2
"""Of a figure of rows, in inches: the height of a row, and the room for names."""


class FigureRow(NamedTuple):
    """One row of a figure. A row without a look is a heading.

    Attributes:
        name: To the left of the axes.
        cells: To the right of the axes, by column.
        look: Colour and marker.
        value: Where the mark is.
        low: Where the interval begins; NaN for none.
        high: Where it ends.
        filled: Whether the mark is filled; else it is white.
        outer: Of a pooled effect, which is a diamond from low to high: the ends of the line behind it.
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
    """A row for each model, layout and condition, in the table's order. The axis holds the intervals, not zero.

    Args:
        table: Rows with model, layout, condition, problems, accuracy and its interval, accuracy_low to accuracy_high,
            as of `harness.analysis.compare` or `count_correct.accuracy_table`; rows of reference conditions and
            contrasts are left out.
        title: Above it.
    """
    shown = figure_style.without_contrasts(figure_style.without_reference_conditions(table))
    looks = figure_style.looks(shown["condition"])
    rows = []
    for name, mine in figure_style.split_settings(shown).items():
        rows.append(FigureRow(f"{name} (n = {mine['problems'].iloc[0]})"))
        for row in mine.to_dict("records"):
            low, value, high = row["accuracy_low"], row["accuracy"], row["accuracy_high"]
            cells = {"%": number(value), "interval": interval(low, high)}
            rows.append(
                FigureRow(
                    figure_style.short_label(row["condition"]),
                    cells,
                    looks[row["condition"]],
                    value,
                    low,
                    high,
                )
            )
    note = (
        f"Lines: {LEVEL} score intervals, each of one accuracy by itself. Whether two conditions differ is a paired "
        "question: overlap does not answer it, the forest plot does."
    )
    columns = {"%": 0.1, "interval": 0.5}
    figure, axes = draw_rows(
        rows, columns=columns, right=1.3, note=note, title=visible(title, keep="")
    )
    axes.set_xlabel("Accuracy (%)")
    return figure


def draw_forest(table: pandas.DataFrame, *, pooled: pandas.DataFrame | None = None) -> Figure:
    """What changes when both sides are run again (A/A), then each difference, with the margin shaded.

    Args:
        table: As of `harness.analysis.compare`; rows of reference conditions are left out.
        pooled: As of `pool_models.pool`: diamonds below, one for each contrast.
    """
    table = figure_style.without_reference_conditions(table)
    looks, margin = figure_style.looks(table["condition"]), float(table["margin"].iloc[0])
    rows = [
        row
        for name, mine in figure_style.split_settings(table).items()
        for row in _setting(name, mine, looks)
    ]
    if pooled is not None and len(pooled):
        for layout, mine in pooled.groupby("layout", sort=False):
            rows.append(
                FigureRow(
                    "all models together"
                    + (f", {layout}" if pooled["layout"].nunique() > 1 else "")
                )
            )
            for row in mine.assign(p_adjusted=np.nan, verdict=None, role="exploratory").to_dict(
                "records"
            ):
                rows.append(_contrast(row, looks, outer=(row["new_low"], row["new_high"])))
    note = (
        f"n problems, k samples of each. Lines: {LEVEL} intervals, not adjusted. Filled: p < 0.05, adjusted (Holm). "
        f"Shaded: the margin of {points(margin)}."
    )
    if table["aa_difference"].notna().any():
        note += " A/A: both sides run again, less the first time; how many completions differ."
    if pooled is not None and len(pooled):
        note += " Diamonds with a line behind: all models together on new problems; the line: new models too."
    columns = {"points": 0.1, "interval": 0.5, "adj. p": 1.33, "verdict": 1.85}
    figure, axes = draw_rows(rows, columns=columns, right=2.6, note=note)
    axes.axvspan(-margin, margin, color="#eeeeee", zorder=0)
    baselines = map(
        figure_style.short_label, table.loc[table["role"] == "baseline", "condition"].unique()
    )
    _mark_zero(axes, f"Difference in accuracy from {' / '.join(baselines)} (points)")
    return figure


def draw_instructions(table: pandas.DataFrame) -> Figure:
    """Each contrast under each instruction, and below them the mean.

    Args:
        table: As of `other_texts_and_instructions.instructions_table`.
    """
    rows = []
    for name, mine in figure_style.split_settings(table).items():
        looks = figure_style.looks(mine["condition"])
        for row in mine.to_dict("records"):
            rows.append(
                FigureRow(
                    f"{name}: {figure_style.short_label(row['condition'])} (n = {row['problems']})"
                )
            )
            look = looks[row["condition"]]
            for index, effect in enumerate(row["effects"]):
                rows.append(
                    _difference_row(f"w{index:02}" if index else "the run's own", look, effect)
                )
            new = row["new_low"], row["new_high"]
            cells = {"interval": interval(*new, sign=True)}
            rows.append(_difference_row("mean", look, _read_difference(row), cells, outer=new))
    note = (
        "Difference from the baseline under the same instruction; w01 and so on: the config's `across`. Lines: "
        f"{LEVEL} intervals, not adjusted. Diamonds: the mean of these instructions on new problems; the line "
        "behind, and its numbers: new instructions of this kind too."
    )
    figure, axes = draw_rows(rows, columns={"points": 0.1, "interval": 0.5}, right=1.3, note=note)
    _mark_zero(axes, "Difference in accuracy (points)")
    return figure


def draw_causes(table: pandas.DataFrame) -> Figure:
    """The parts of each filler against the position gap: a row for the filler as it is, and for each of its cells.

    Args:
        table: As of `filler_parts.causes_table`.
    """
    rows, looks = [], figure_style.looks(table["filler"])
    for filler in table["filler"].unique():
        mine = table[table["filler"] == filler]
        rows.append(
            FigureRow(f"{figure_style.short_label(filler)} (n = {mine['problems'].iloc[0]})")
        )
        for row in mine.to_dict("records"):
            cells = {"adj. p": p_value(row["p_adjusted"])}
            name = row["condition"] + ("" if row["valid_attention"] else " (!)")
            filled = row["p_adjusted"] < ALPHA
            rows.append(
                _difference_row(name, looks[filler], _read_difference(row), cells, filled=filled)
            )
    note = (
        "Accuracy less that of the position gap. (!): scale or bias alone, whose attention weights do not add up to 1. "
        f"This is not valid attention. Lines: {LEVEL} intervals, not adjusted. Filled: adjusted p < {ALPHA}."
    )
    columns = {"points": 0.1, "interval": 0.5, "adj. p": 1.33}
    figure, axes = draw_rows(rows, columns=columns, right=1.9, note=note)
    _mark_zero(axes, "Difference in accuracy from the position gap (points)")
    return figure


def _setting(
    name: str, table: pandas.DataFrame, looks: Mapping[str, figure_style.Look]
) -> Iterator[FigureRow]:
    """The rows of one model and layout."""
    (base,) = table[table["role"] == "baseline"].to_dict("records")
    yield FigureRow(f"{name} (n = {base['problems']}, k = {base['repeats']})")
    for row in table[table["aa_difference"].notna()].to_dict("records"):
        cells = {"points": signed(row["aa_difference"])}
        if not pandas.isna(row["aa_samples"]):
            cells["interval"] = f"{row['aa_changed']} of {row['aa_samples']}"
        name = f"{figure_style.short_label(row['condition'])} (A/A)"
        yield FigureRow(name, cells, looks[row["condition"]], row["aa_difference"], filled=False)
    for row in table[table["role"] != "baseline"].to_dict("records"):
        yield _contrast(row, looks, filled=row["verdict"] in PASSED)


def _contrast(
    row: Mapping[Any, Any], looks: Mapping[str, figure_style.Look], **marks: Any
) -> FigureRow:
    """The row of one contrast."""
    name = row["condition"]
    verdict = row["role"] if pandas.isna(row["verdict"]) else row["verdict"]
    cells = {"adj. p": p_value(row["p_adjusted"]), "verdict": verdict}
    return _difference_row(
        figure_style.short_label(name), looks[name], _read_difference(row), cells, **marks
    )


def _read_difference(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    return row["difference"], row["low"], row["high"]


def _difference_row(
    name: str,
    look: figure_style.Look,
    ends: tuple[float, float, float],
    cells: Mapping[str, str] = {},
    **marks: Any,
) -> FigureRow:
    """The row of a difference with the ends of its interval, in points."""
    value, low, high = ends
    numbers = {"points": signed(value), "interval": interval(low, high, sign=True)}
    return FigureRow(name, {**numbers, **cells}, look, value, low, high, **marks)


def _mark_zero(axes: Axes, label: str) -> None:
    axes.axvline(0, color=figure_style.MUTED, linewidth=0.6, zorder=1)
    axes.set_xlabel(label)


def draw_rows(
    rows: Sequence[FigureRow],
    *,
    columns: Mapping[str, float],
    right: float,
    note: str,
    title: str = "",
) -> tuple[Figure, Axes]:
    """A figure with one row below the other, and its axes.

    Args:
        rows: From the top down.
        columns: The headings of what stands to the right, and how far from the axes, in inches.
        right: Room for these, in inches.
        note: What the marks mean.
        title: Above the rows, to the left.
    """
    below = 0.42 + 1.35 * (FONT - 1) / 72 * (figure_style.wrap(note).count("\n") + 1)
    height = below + ROW_HEIGHT * len(rows) + 0.2
    with figure_style.drawing(height, note, managed=False) as figure:
        across = (ROW_NAMES / INCHES, 1 - (ROW_NAMES + right) / INCHES)
        axes = figure.add_axes(
            (across[0], below / height, across[1], ROW_HEIGHT * len(rows) / height)
        )
        for y, row in enumerate(
            [FigureRow(title, dict(zip(columns, columns, strict=True))), *rows], start=-1
        ):
            _draw_row(axes, y, row, columns)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks([])
        figure_style.tidy(axes, grid="x", hidden=("top", "right", "left"))
    return figure, axes


def _draw_row(axes: Axes, y: int, row: FigureRow, columns: Mapping[str, float]) -> None:
    """The name to the left of the axes, the marks, and the cells to the right."""

    def put(inches: float, text: str, *, edge: int = 1, ha: str = "left") -> None:
        axes.annotate(
            text,
            (edge, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(72 * inches, 0),
            textcoords="offset points",
            ha=ha,
            va="center",
            fontsize=FONT - 0.5,
            color=figure_style.MUTED if y < 0 and edge else figure_style.INK,
        )

    for name, inches in columns.items():
        put(inches, row.cells.get(name, ""))
    if row.look is None:
        put(0.03 - ROW_NAMES, row.name, edge=0)
        return
    put(-0.06, row.name, edge=0, ha="right")
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
    if row.low == row.low:
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt")
    inner = colour if row.filled else "white"
    axes.plot(
        [row.value],
        [y],
        row.look.marker,
        color=colour,
        markerfacecolor=inner,
        markersize=0.62 * FONT,
        zorder=4,
    )
