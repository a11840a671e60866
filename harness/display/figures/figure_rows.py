"""A figure of rows below each other: names, marks with their intervals, and columns of text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT, INCHES, INK, MUTED, Look

ROW_HEIGHT, NAME_WIDTH = 0.19, 1.2
"""The height of a row and the width of the names to the left of the axes, in inches."""
COLUMN_WIDTHS = {"%": 0.4, "points": 0.4, "interval": 0.83, "adj. p": 0.52, "verdict": 0.75}
"""The columns of text to the right of the axes, in their order, with their widths in inches."""


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
    look: Look | None = None
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    filled: bool = True
    outer: tuple[float, float] | None = None


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
        # the first row is at the top, and the header's row lies above the axes
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
    colour = MUTED if is_header else INK
    for name, inches in columns.items():
        cell = row.cells.get(name, "")
        # an offset in points, of which an inch has 72
        axes.annotate(cell, (1, y), xytext=(72 * inches, 0), color=colour, **text)
    inches, alignment = -0.06, "right"
    if row.look is None:
        inches, alignment = 0.03 - NAME_WIDTH, "left"
    axes.annotate(row.name, (0, y), xytext=(72 * inches, 0), ha=alignment, color=INK, **text)


def _draw_marks(axes: Axes, y: int, row: FigureRow) -> None:
    """A mark with the line of its interval, or a diamond with a line behind; none for a heading."""
    if row.look is None:
        return
    colour = row.look.colour
    if row.outer is not None:
        axes.plot(row.outer, [y, y], color=INK, linewidth=0.8, solid_capstyle="butt")
        axes.fill(
            [row.low, row.value, row.high, row.value],
            [y, y - 0.32, y, y + 0.32],
            facecolor=colour,
            edgecolor=INK,
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
