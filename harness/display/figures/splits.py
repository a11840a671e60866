"""Differences from the baseline by level or subject: where an effect comes from."""

from __future__ import annotations

from collections.abc import Sequence

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.choices import Width
from harness.display.figures import style
from harness.display.visible import visible
from harness.display.words import PASSED

MARKERS = ("o", "s", "^", "D", "v", "P")
"""Conditions differ in shape, too."""


def draw_split_differences(table: pandas.DataFrame, *, by: str, width: Width = "page", alpha: float = 0.05) -> Figure:
    """A panel for each model and layout, a row for each level or subject, a dot with its interval for each condition.

    Args:
        table: As of `harness.analysis.compare(..., by=[by])`; rows of yardsticks are left out.
        by: The column that it is split by.
        width: `page` is 7 inches, `column` 3.3.
        alpha: The level that the table was made with; it is only named.
    """
    compared = style.compared(table)
    conditions = style.in_order(compared["condition"])
    counts = table.groupby(by, observed=True)["n"].first()
    panels = style.split_settings(table)
    down, across = style.panel_grid(len(panels), width)
    height = 0.95 + down * (0.35 + len(counts) * (0.09 + 0.095 * len(conditions)))
    with style.drawing(width, height, _note(compared, by, alpha) + style.about_yardsticks(table)) as figure:
        axes = style.add_panels(figure, len(panels), width, sharex=True, sharey=True)
        for panel, (name, rows) in zip(axes, panels.items(), strict=True):
            panel.set_title(name)
            style.shade_margin(panel, float(rows["margin"].iloc[0]))
            _draw(panel, style.compared(rows), by, list(counts.index), conditions, style.FONT[width])
        names = [f"level {value}" if by == "level" else visible(value, keep="") for value in counts.index]
        axes[0].set_yticks(range(len(counts)), [f"{name} ({n})" for name, n in zip(names, counts, strict=True)])
        for panel in axes[-across:]:
            panel.set_xlabel(f"Difference from {style.label(table['baseline'].iloc[0])} (points)")
            panel.tick_params(labelbottom=True)
    return figure


def _draw(
    axes: Axes, rows: pandas.DataFrame, by: str, values: Sequence[object], conditions: Sequence[str], size: float
) -> None:
    step = 0.7 / len(conditions)
    for place, condition in enumerate(conditions):
        mine = rows[rows["condition"] == condition]
        ys = [values.index(value) + (place - (len(conditions) - 1) / 2) * step for value in mine[by]]
        differences, lows, highs = (mine[name].astype(float) for name in ("difference", "low", "high"))
        axes.hlines(ys, lows, highs, color=style.INK, linewidth=0.7, zorder=2)
        axes.scatter(
            differences,
            ys,
            marker=MARKERS[place % len(MARKERS)],
            s=size * 2.2,
            c=style.colour(condition, conditions),
            edgecolors=style.INK,
            linewidths=[1.4 if verdict in PASSED else 0.5 for verdict in mine["verdict"]],
            zorder=3,
            label=style.label(condition),
        )
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    style.tidy(axes, grid="x", hidden=("top", "right", "left"))


def _note(compared: pandas.DataFrame, by: str, alpha: float) -> str:
    passed = int(compared["verdict"].isin(PASSED).sum())
    found = {0: "none passes", 1: "one passes"}.get(passed, f"{passed} pass")
    return (
        f"Lines: {100 * (1 - alpha):g} % score intervals; shaded: the margin; in brackets: problems. Of "
        f"{len(compared)} tests by {by}, {found} at adjusted p < {alpha:g} ({style.adjustment(compared)})"
        + ("; those have a thick edge." if passed else ".")
    )
