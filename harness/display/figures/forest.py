"""The forest plot: every condition's paired difference from the baseline, across models and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.verdicts import APART
from harness.choices import Width
from harness.display.figures import style
from harness.display.words import PASSED, interval, p_value, plural, points, signed

ROW = 0.19
"""Height of a row, in inches."""
SIDES: dict[Width, tuple[float, float]] = {"page": (1.2, 2.6), "column": (1.0, 1.05)}
"""Room to the left and right of the axes for names and numbers, in inches."""
PLACES: dict[Width, dict[str, tuple[str, float]]] = {
    "page": {
        "difference": ("points", 0.1),
        "interval": ("interval", 0.5),
        "p": ("adj. p", 1.33),
        "verdict": ("verdict", 1.85),
    },
    "column": {"difference": ("points", 0.06), "verdict": ("verdict", 0.42)},
}
"""What stands to the right of the axes: its heading, and how far from them, in inches."""


class _Line(NamedTuple):
    """One row of the plot: its name, what draws it (nothing draws a heading), and what stands to the right of it."""

    name: str
    draw: Callable[[Axes, int], None] | None = None
    cells: Mapping[str, str] = {}


def draw_forest(
    table: pandas.DataFrame, *, pooled: pandas.DataFrame | None = None, width: Width = "page", alpha: float = 0.05
) -> Figure:
    """Differences from the baseline with both intervals, the margin shaded, and the verdict in words.

    Args:
        table: As of `harness.analysis.compare`. Its baseline rows give the baseline against itself (A/A), where it
            was run twice; yardsticks of a kind become ticks in one row.
        pooled: As of `analysis.pooled.pool`: diamonds below, one for each contrast.
        width: `page` is 7 inches, `column` 3.3.
        alpha: The level that the table was made with; it is only named.
    """
    inches, size = style.INCHES[width], style.FONT[width]
    lines = _lines(table, size) + _pooled_lines(table, pooled, size)
    margin = float(table["margin"].iloc[0])
    note = style.wrap(_note(table, pooled, margin, alpha), inches, size)
    below = 0.42 + 1.35 * (size - 1) / 72 * (note.count("\n") + 1)
    height = below + ROW * len(lines) + 0.2
    left, right = SIDES[width]
    with style.drawing(width, height, note, managed=False) as figure:
        axes = figure.add_axes((left / inches, below / height, 1 - (left + right) / inches, ROW * len(lines) / height))
        style.shade_margin(axes, margin)
        for y, line in enumerate(lines):
            if line.draw is not None:
                line.draw(axes, y)
        _write(axes, lines, width)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks([])
        names = table.loc[table["verdict"] == "baseline", "condition"].unique()
        baseline = " / ".join(map(style.label, names))
        axes.set_xlabel(f"Difference {'in accuracy ' if width == 'page' else ''}from {baseline} (points)")
        style.tidy(axes, grid="x", hidden=("top", "right", "left"))
    return figure


def _lines(table: pandas.DataFrame, size: float) -> list[_Line]:
    conditions = style.in_order(table["condition"])
    reach = style.without_yardsticks(table)[["margin", "low", "high", "aa_difference"]].astype(float).abs().max().max()
    lines = []
    for name, rows in style.split_settings(table).items():
        (base,) = rows[rows["verdict"] == "baseline"].to_dict("records")
        lines.append(_Line(f"{name} (n = {base['n']}, k = {base['k']})"))
        for row in style.compared(rows).to_dict("records"):
            cells = {
                "difference": signed(row["difference"]),
                "interval": interval(row["low"], row["high"], sign=True),
                "p": p_value(row["p_adjusted"]),
                "verdict": str(row["verdict"]),
            }
            draw = partial(_draw_difference, row=row, colour=style.colour(row["condition"], conditions), size=size)
            lines.append(_Line(style.label(row["condition"]), draw, cells))
        for kind in ("rewording", "other filler"):
            moves = rows[rows["verdict"] == kind]["difference"].astype(float)
            if len(moves):
                draw = partial(_draw_ticks, moves=moves, edge=2 * reach, size=size)
                lines.append(_Line(f"{len(moves)} {plural(kind, len(moves))}", draw))
        again = base["aa_difference"]
        if again == again:
            draw = partial(_draw_marks, xs=[again], marker="D", size=size * 0.5)
            cells = {"difference": signed(again), "verdict": "noise"}
            lines.append(_Line(f"{style.label(base['condition'])} again (A/A)", draw, cells))
    return lines


def _pooled_lines(table: pandas.DataFrame, pooled: pandas.DataFrame | None, size: float) -> list[_Line]:
    if pooled is None or pooled.empty:
        return []
    conditions, several = style.in_order(table["condition"]), pooled["layout"].nunique() > 1
    lines = []
    for layout, rows in pooled.groupby("layout", sort=False):
        lines.append(_Line("all models together" + (f", {layout}" if several else "")))
        order = style.in_order(rows["condition"])
        for row in sorted(rows.to_dict("records"), key=lambda row: order.index(row["condition"])):
            cells = {
                "difference": signed(row["difference"]),
                "interval": interval(row["low"], row["high"], sign=True),
                "p": p_value(row["p_adjusted"]),
                "verdict": str(row["verdict"]),
            }
            draw = partial(_draw_diamond, row=row, colour=style.colour(row["condition"], conditions))
            lines.append(_Line(style.label(row["condition"]), draw, cells))
    return lines


def _draw_diamond(axes: Axes, y: int, row: Mapping[Any, Any], colour: str) -> None:
    """A diamond as long as the interval for these models, on a line as long as that for new ones."""
    if row["new_low"] == row["new_low"]:
        axes.plot([row["new_low"], row["new_high"]], [y, y], color=style.INK, linewidth=0.8, solid_capstyle="butt")
    xs, ys = [row["low"], row["difference"], row["high"], row["difference"]], [y, y - 0.32, y, y + 0.32]
    axes.fill(xs, ys, facecolor=colour, edgecolor=style.INK, linewidth=0.8, zorder=4)


def _draw_difference(axes: Axes, y: int, row: Mapping[Any, Any], colour: str, size: float) -> None:
    for kind, shade, thickness in (("", style.INK, 0.8), ("equivalence_", colour, 3.2)):
        ends = [row[f"{kind}low"], row[f"{kind}high"]]
        axes.plot(ends, [y, y], color=shade, linewidth=thickness, solid_capstyle="butt")
    axes.plot(
        row["difference"],
        y,
        marker="o",
        markersize=size * 0.62,
        color=style.INK if row["verdict"] in PASSED else "white",
        markeredgecolor=style.INK,
        markeredgewidth=0.8,
        zorder=4,
        linestyle="none",
    )


def _draw_ticks(axes: Axes, y: int, moves: pandas.Series[float], edge: float, size: float) -> None:
    """A tick for each up to the edge: one that wrecks the prompt must not squeeze all else."""
    _draw_marks(axes, y, moves[moves.abs() <= edge], "|", size)
    for side, marker in ((-1, "<"), (1, ">")):
        if (side * moves).max() > edge:
            _draw_marks(axes, y, [side * edge], marker, size * 0.6)


def _draw_marks(axes: Axes, y: int, xs: Sequence[float] | pandas.Series[float], marker: str, size: float) -> None:
    axes.plot(xs, [y] * len(xs), marker=marker, markersize=size, color=style.MUTED, zorder=4, linestyle="none")


def _write(axes: Axes, lines: list[_Line], width: Width) -> None:
    """Names to the left of the axes, numbers and verdicts to the right; places in inches from the edge of the axes."""

    def put(inches: float, y: float, text: str, *, edge: int = 1, ha: str = "left", colour: str = style.INK) -> None:
        axes.annotate(
            text,
            (edge, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(72 * inches, 0),
            textcoords="offset points",
            ha=ha,
            va="center",
            fontsize=style.FONT[width] - 0.5,
            color=colour,
        )

    for head, inches in PLACES[width].values():
        put(inches, -1, head, colour=style.MUTED)
    for y, line in enumerate(lines):
        if line.draw is None:
            put(0.03 - SIDES[width][0], y, line.name, edge=0)
        else:
            put(-0.06, y, line.name, edge=0, ha="right")
        for name, (_, inches) in PLACES[width].items():
            put(inches, y, line.cells.get(name, ""))


def _note(table: pandas.DataFrame, pooled: pandas.DataFrame | None, margin: float, alpha: float) -> str:
    sentences = [
        f"Thin: {100 * (1 - alpha):g} % score interval, adjusted as p is; thick: {100 * (1 - 2 * alpha):g} %, from "
        f"which equivalence is read. Shaded: the margin of {points(margin)}. Filled dots: adjusted p < {alpha:g} "
        f"({style.adjustment(table)}).",
    ]
    if pooled is not None and len(pooled):
        sentences.append("Wide diamonds: all models together on new problems; the line behind: new models too.")
    if table["aa_difference"].notna().any():
        sentences.append("Small diamonds: the baseline run a second time less the first.")
    for kind, meaning in (
        ("rewording", "harmless rewordings of the instruction, without filler"),
        ("other filler", "other fillers of the same length, sentences and random tokens"),
    ):
        moves = table[table["verdict"] == kind]["difference"]
        if len(moves):
            sentences.append(
                f"Ticks: {meaning}, {signed(moves.min())} to {signed(moves.max())} points; arrows: farther out."
            )
    if (table["verdict"] == APART).any():
        sentences.append("A rewording that breaks the format is left out.")
    return " ".join(sentences)
