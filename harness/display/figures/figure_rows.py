"""A figure of rows below each other: names, marks with their intervals, and columns of text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.figures import figure_style
from harness.display.figures.figure_row import (
    ROW_HEIGHT,
    FigureRow,
    explain_families,
    join_families,
)
from harness.display.figures.figure_style import FONT, INCHES, INK, MUTED

COLUMN_WIDTHS = {
    "%": 0.38,
    "points": 0.38,
    "median": 0.44,
    "interval": 0.76,
    "5 to 95 %": 0.8,
    "adj. p": 0.42,
    "verdict": 0.66,
}
"""The columns of text to the right of the axes, in their order, with their widths in inches."""


def draw_rows(rows: Sequence[FigureRow], *, note: str, title: str = "") -> tuple[Figure, Axes]:
    """A figure with one row below the other, and its axes.

    Args:
        rows: The rows from the top down. If they are many, the members of a family share a row.
        note: The meaning of the marks.
        title: The text above the rows, to the left.
    """
    rows = join_families(rows)
    note += explain_families(rows)
    used_columns = set[str]().union(*(row.cells for row in rows))
    columns = {}
    right = 0.1
    for name, width in COLUMN_WIDTHS.items():
        if name in used_columns:
            columns[name] = right
            right += width
    header = FigureRow(title, dict(zip(columns, columns, strict=True)))
    note_height = 1.35 * (FONT - 1) / 72 * (figure_style.wrap(note).count("\n") + 1)
    rows_height = sum(row.height for row in rows)
    letters = [len(line) for row in rows if row.look for line in row.name.split("\n")]
    name_width = 0.14 + 0.056 * max(letters)
    # matplotlib places the note 1 % of the height above the lower edge.
    height = (0.42 + note_height + rows_height + 0.2) / 0.99
    with figure_style.drawing(height, note, managed=False) as figure:
        axes = figure.add_axes(
            (
                name_width / INCHES,
                1 - (rows_height + 0.2) / height,
                1 - (name_width + right) / INCHES,
                rows_height / height,
            )
        )
        _write_row(axes, -ROW_HEIGHT / 2, header, columns, name_width)
        top = 0.0
        for row in rows:
            y = top + row.height / 2
            _write_row(axes, y, row, columns, name_width)
            _draw_marks(axes, y, row)
            top += row.height
        # the first row is at the top, and the header's row lies above the axes
        axes.set_ylim(rows_height, 0)
        axes.set_yticks([])
        figure_style.tidy(axes, grid="x", hidden=("top", "right", "left"))
    return figure, axes


def _write_row(
    axes: Axes, y: float, row: FigureRow, columns: Mapping[str, float], name_width: float
) -> None:
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
        inches, alignment = 0.03 - name_width, "left"
    axes.annotate(row.name, (0, y), xytext=(72 * inches, 0), ha=alignment, color=INK, **text)


def _draw_marks(axes: Axes, y: float, row: FigureRow) -> None:
    """A mark with the line of its interval, or a diamond with a line behind; none for a heading."""
    if row.look is None:
        return
    colour = row.look.colour
    if row.outer is not None:
        axes.plot(row.outer, [y, y], color=INK, linewidth=0.8, solid_capstyle="butt")
        axes.fill(
            [row.low, row.value, row.high, row.value],
            [y, y - 0.06, y, y + 0.06],
            facecolor=colour,
            edgecolor=INK,
            linewidth=0.8,
            zorder=4,
        )
        return
    if not np.isnan(row.low):
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt")
    if row.members:
        axes.plot(row.members, [y] * len(row.members), ".", color=colour, markersize=0.5 * FONT)
    axes.plot(
        [row.value],
        [y],
        row.look.marker,
        color=colour,
        markerfacecolor=colour if row.filled else "white",
        markersize=0.62 * FONT,
        zorder=4,
    )
