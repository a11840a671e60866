"""The forest plot: every condition's paired difference from the baseline, across models and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.controls import APART
from harness.display.figures import style
from harness.display.figures.rows import Row, draw_estimate, draw_marks, draw_rows
from harness.display.numbers import PASSED, interval, p_value, plural, points, signed

COLUMNS = {"points": 0.1, "interval": 0.5, "adj. p": 1.33, "verdict": 1.85}
"""What stands to the right of the axes, and how far from them, in inches."""
RIGHT = 2.6
"""Room for it, in inches."""


def draw_forest(table: pandas.DataFrame, *, pooled: pandas.DataFrame | None = None, alpha: float = 0.05) -> Figure:
    """What changes without any filler (A/A, rewordings, other fillers), then each difference, with the margin shaded.

    Args:
        table: As of `harness.analysis.compare`. Its baseline rows give the baseline against itself (A/A), where it
            was run twice; yardsticks of a kind become ticks in one row.
        pooled: As of `analysis.pooled.pool`: diamonds below, one for each contrast.
        alpha: The level that the table was made with; it is only named.
    """
    rows = _rows(table, style.FONT) + _pooled_rows(table, pooled)
    note = _note(table, pooled, alpha)
    figure, axes = draw_rows(rows, columns=COLUMNS, right=RIGHT, note=note)
    style.shade_margin(axes, float(table["margin"].iloc[0]))
    names = table.loc[table["verdict"] == "baseline", "condition"].unique()
    axes.set_xlabel(f"Difference in accuracy from {' / '.join(map(style.label, names))} (points)")
    return figure


def _rows(table: pandas.DataFrame, size: float) -> list[Row]:
    plain = style.without_yardsticks(table)
    looks = style.looks(plain["condition"])
    reach = plain[["margin", "low", "high", "aa_difference"]].astype(float).abs().max().max()
    rows = []
    for name, mine in style.split_settings(table).items():
        (base,) = mine[mine["verdict"] == "baseline"].to_dict("records")
        rows.append(Row(f"{name} (n = {base['n']}, k = {base['k']})"))
        again = base["aa_difference"]
        if again == again:
            draw = partial(draw_marks, xs=[again], look=looks[base["condition"]], size=size * 0.62, filled=False)
            rows.append(Row(f"{style.label(base['condition'])} again (A/A)", draw, {"points": signed(again)}))
        for kind in ("rewording", "other filler"):
            moves = mine[mine["verdict"] == kind]["difference"].astype(float)
            if len(moves):
                draw = partial(_draw_ticks, moves=moves, edge=1.3 * reach, size=size)
                rows.append(Row(f"{len(moves)} {plural(kind, len(moves))}", draw))
        for row in style.compared(mine).to_dict("records"):
            draw = partial(
                draw_estimate,
                look=looks[row["condition"]],
                low=row["low"],
                value=row["difference"],
                high=row["high"],
                filled=row["verdict"] in PASSED,
                size=size,
            )
            rows.append(Row(style.label(row["condition"]), draw, _cells(row)))
    return rows


def _cells(row: Mapping[Any, Any]) -> dict[str, str]:
    return {
        "points": signed(row["difference"]),
        "interval": interval(row["low"], row["high"], sign=True),
        "adj. p": p_value(row["p_adjusted"]),
        "verdict": str(row["verdict"]),
    }


def _pooled_rows(table: pandas.DataFrame, pooled: pandas.DataFrame | None) -> list[Row]:
    if pooled is None or pooled.empty:
        return []
    looks, several = style.looks(style.without_yardsticks(table)["condition"]), pooled["layout"].nunique() > 1
    rows = []
    for layout, mine in pooled.groupby("layout", sort=False):
        rows.append(Row("all models together" + (f", {layout}" if several else "")))
        for row in mine.to_dict("records"):
            draw = partial(_draw_diamond, row=row, colour=looks[row["condition"]].colour)
            rows.append(Row(style.label(row["condition"]), draw, _cells(row)))
    return rows


def _draw_diamond(axes: Axes, y: int, row: Mapping[Any, Any], colour: str) -> None:
    """A diamond as long as the interval for these models, on a line as long as that for new ones."""
    if row["new_low"] == row["new_low"]:
        axes.plot([row["new_low"], row["new_high"]], [y, y], color=style.INK, linewidth=0.8, solid_capstyle="butt")
    xs, ys = [row["low"], row["difference"], row["high"], row["difference"]], [y, y - 0.32, y, y + 0.32]
    axes.fill(xs, ys, facecolor=colour, edgecolor=style.INK, linewidth=0.8, zorder=4)


def _draw_ticks(axes: Axes, y: int, moves: pandas.Series[float], edge: float, size: float) -> None:
    """A tick for each up to the edge: one that wrecks the prompt must not squeeze all else."""
    draw_marks(axes, y, moves[moves.abs() <= edge].tolist(), style.Look(style.MUTED, "|", "-"), size)
    for side, marker in ((-1, "<"), (1, ">")):
        if (side * moves).max() > edge:
            draw_marks(axes, y, [side * edge], style.Look(style.MUTED, marker, "-"), size * 0.6)


def _note(table: pandas.DataFrame, pooled: pandas.DataFrame | None, alpha: float) -> str:
    margin = points(float(table["margin"].iloc[0]))
    sentences = [
        f"n problems, k samples of each. Lines: {100 * (1 - alpha):g} % score intervals, adjusted as p is. Filled: "
        f"adjusted p < {alpha:g} ({style.adjustment(table)}). Shaded: the margin of {margin}."
    ]
    if (table["verdict"] == "equivalent").any():
        sentences.append(f"Equivalent: two one-sided tests at {alpha:g} put the difference within the margin.")
    if pooled is not None and len(pooled):
        sentences.append("Diamonds: all models together on new problems; the line behind: new models too.")
    if table["aa_difference"].notna().any():
        sentences.append("A/A: the baseline run a second time less the first.")
    for kind, meaning in (
        ("rewording", "harmless rewordings of the instruction, without filler"),
        ("other filler", "other fillers of the same length"),
    ):
        moves = table[table["verdict"] == kind]["difference"]
        if len(moves):
            sentences.append(f"Ticks: {meaning}, {signed(moves.min())} to {signed(moves.max())} points.")
    if table["verdict"].isin(["rewording", "other filler"]).any():
        sentences.append("Arrows: farther out.")
    if (table["verdict"] == APART).any():
        sentences.append("A rewording that breaks the format is left out.")
    return " ".join(sentences)
