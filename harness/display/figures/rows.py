"""Rows of dots with intervals: a name to the left of each, its numbers to the right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.figures import style

HEIGHT = 0.19
"""Of a row, in inches."""
LEFT = 1.2
"""Room for names, in inches."""


class Row(NamedTuple):
    """Its name, what draws it (nothing draws a heading), and what stands to the right of it, by column."""

    name: str
    draw: Callable[[Axes, int], None] | None = None
    cells: Mapping[str, str] = {}


def draw_rows(
    rows: Sequence[Row], *, columns: Mapping[str, float], right: float, note: str, title: str = ""
) -> tuple[Figure, Axes]:
    """A figure with one row below the other, and its axes.

    Args:
        rows: From the top down.
        columns: The headings of what stands to the right, and how far from the axes, in inches.
        right: Room for these, in inches.
        note: What the marks mean.
        title: Above the rows, to the left.
    """
    inches, size = style.INCHES, style.FONT
    note = style.wrap(note, inches, size)
    below = 0.42 + 1.35 * (size - 1) / 72 * (note.count("\n") + 1)
    height = below + HEIGHT * len(rows) + 0.2
    with style.drawing(height, note, managed=False) as figure:
        across = (LEFT / inches, 1 - (LEFT + right) / inches)
        axes = figure.add_axes((across[0], below / height, across[1], HEIGHT * len(rows) / height))
        _write(axes, [Row(title, cells=dict(zip(columns, columns, strict=True))), *rows], columns)
        for y, row in enumerate(rows):
            if row.draw is not None:
                row.draw(axes, y)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks([])
        style.tidy(axes, grid="x", hidden=("top", "right", "left"))
    return figure, axes


def draw_estimate(
    axes: Axes, y: float, look: style.Look, low: float, value: float, high: float, *, filled: bool, size: float
) -> None:
    """A condition's mark on the line of its interval; one that is not filled is white."""
    axes.plot([low, high], [y, y], color=look.colour, linewidth=1.2, solid_capstyle="butt")
    draw_marks(axes, y, [value], look, size * 0.62, filled=filled)


def draw_marks(
    axes: Axes, y: float, xs: Sequence[float], look: style.Look, size: float, *, filled: bool = True
) -> None:
    """Marks of one look in a row."""
    inner = look.colour if filled else "white"
    kind: dict[str, Any] = {"marker": look.marker, "markersize": size, "color": look.colour, "markerfacecolor": inner}
    axes.plot(xs, [y] * len(xs), linestyle="none", zorder=4, **kind)


def _write(axes: Axes, lines: Sequence[Row], columns: Mapping[str, float]) -> None:
    """The headings, then the names to the left of the axes and the cells to the right."""

    def put(y: float, inches: float, text: str, *, edge: int = 1, ha: str = "left", colour: str = style.INK) -> None:
        axes.annotate(
            text,
            (edge, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(72 * inches, 0),
            textcoords="offset points",
            ha=ha,
            va="center",
            fontsize=style.FONT - 0.5,
            color=colour,
        )

    for y, line in enumerate(lines, start=-1):
        if line.draw is None:
            put(y, 0.03 - LEFT, line.name, edge=0)
        else:
            put(y, -0.06, line.name, edge=0, ha="right")
        for name, inches in columns.items():
            put(y, inches, line.cells.get(name, ""), colour=style.MUTED if y < 0 else style.INK)
