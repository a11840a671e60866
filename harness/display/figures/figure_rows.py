"""A figure of rows below each other: names, marks with their intervals, and columns of text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.figures.figure_style import (
    FONT_POINTS,
    INK,
    LINE_HEIGHT,
    MUTED,
    Style,
    drawing,
    tidy,
)

ROW_HEIGHT = 0.19
"""The height of a row with one line of text, in inches."""
BAND_HEIGHT = 0.15
"""The height of the bands of a row, in inches."""
BAND_COLOURS = ("#b8b8b8", "#d4d4d4")
"""Greys, because hues are for conditions; the margin is lighter."""
CELL_OFFSETS_INCHES = {"points": 0.1, "interval": 0.5, "verdict": 1.34}
"""The columns of text to the right of the axes, with their distances from the axes in inches."""


class FigureRow(NamedTuple):
    """One row of a figure. A row without a style is a heading.

    Attributes:
        name: The text to the left of the axes.
        cells: The texts to the right of the axes, by column.
        style: Colour and marker.
        value: The position of the mark.
        low: The lower end of the interval; NaN if there is no interval.
        high: The upper end of the interval.
        is_filled: Whether the mark is filled; if not, it is white.
        bands: Ends of grey bands behind the mark, by name, one below the other.
    """

    name: str
    cells: Mapping[str, str] = {}
    style: Style | None = None
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    is_filled: bool = True
    bands: Mapping[str, tuple[float, float]] = {}

    @property
    def height(self) -> float:
        """The height of the row in inches. Only names have several lines."""
        return ROW_HEIGHT + LINE_HEIGHT * self.name.count("\n")


def draw_rows(rows: Sequence[FigureRow], note: str, x_label: str) -> Figure:
    """A figure with one row below the other.

    Args:
        rows: The rows from the top down.
        note: The meaning of the marks.
        x_label: The quantity and its unit.
    """
    header = FigureRow("", {name: name for name in CELL_OFFSETS_INCHES})
    height = sum(row.height for row in rows)
    # 0.84 inches for the header above the rows, and the axis and a line of the note below them
    with drawing(height + 0.84, note) as figure:
        axes = figure.subplots()
        _write_row(axes, -ROW_HEIGHT / 2, header, MUTED)
        top = 0.0
        for row in rows:
            y = top + row.height / 2
            _write_row(axes, y, row, INK)
            _draw_marks(axes, y, row)
            top += row.height
        # downwards, so that the first row is at the top; the header's row lies above the axes
        axes.set_ylim(height, 0)
        axes.set_yticks([])
        axes.set_xlabel(x_label)
        axes.axvline(0, color=MUTED, linewidth=0.6, zorder=1)
        tidy(axes, grid="x", hidden_sides=("top", "right", "left"))
    return figure


def _write_row(axes: Axes, y: float, row: FigureRow, colour: str) -> None:
    """The name to the left of the axes and the cells to the right, at a distance in inches."""
    text_style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": colour}
    # x is a share of the width of the axes, and y a position of the data
    row_transform = axes.get_yaxis_transform()
    for name, offset_inches in CELL_OFFSETS_INCHES.items():
        # an offset in points, of which an inch has 72
        axes.annotate(
            row.cells.get(name, ""), (1, y), (72 * offset_inches, 0), row_transform, **text_style
        )
    if row.style:
        axes.annotate(row.name, (0, y), (-4, 0), row_transform, ha="right", **text_style)
    else:
        axes.annotate(
            row.name,
            (0, y),
            (2, 0),
            ("figure fraction", "data"),
            # a heading reaches into the axes, whose lines would strike it through
            backgroundcolor="white",
            in_layout=False,
            **text_style,
        )


def _draw_marks(axes: Axes, y: float, row: FigureRow) -> None:
    """A mark with the line of its interval before its bands; nothing for a heading."""
    if row.style is None:
        return
    for index, (low, high) in enumerate(row.bands.values()):
        # y grows downwards: the bands fill BAND_HEIGHT around it with equal shares
        top = y + BAND_HEIGHT * (index / len(row.bands) - 0.5)
        bottom = top + BAND_HEIGHT / len(row.bands)
        band_colour = BAND_COLOURS[index % len(BAND_COLOURS)]
        axes.fill_between([low, high], top, bottom, color=band_colour, linewidth=0, zorder=0.5)
    colour = row.style.colour
    if not np.isnan(row.low):
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt")
    axes.plot(
        [row.value],
        [y],
        row.style.marker,
        color=colour,
        markerfacecolor=colour if row.is_filled else "white",
        markersize=0.62 * FONT_POINTS,
        zorder=4,
    )
