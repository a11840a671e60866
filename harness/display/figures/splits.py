"""Differences from the baseline by level or subject: where an effect comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.choices import Width
from harness.display.figures import style
from harness.display.figures.rows import draw_estimate
from harness.display.visible import visible
from harness.display.words import PASSED


def draw_split_differences(table: pandas.DataFrame, *, by: str, width: Width = "page", alpha: float = 0.05) -> Figure:
    """A panel for each model and layout, a row for each level or subject, a dot with its interval for each condition.

    Args:
        table: As of `harness.analysis.compare(..., by=[by])`; rows of yardsticks are left out.
        by: The column that it is split by.
        width: `page` is 7 inches, `column` 3.3.
        alpha: The level that the table was made with; it is only named.
    """
    compared = style.compared(table)
    looks = style.looks(style.without_yardsticks(table)["condition"])
    looks = {name: looks[name] for name in compared["condition"].unique()}
    counts = table.groupby(by, observed=True)["n"].first()
    panels = style.split_settings(table)
    down, across = style.panel_grid(len(panels), width)
    height = 0.95 + down * (0.35 + len(counts) * (0.09 + 0.095 * len(looks)))
    with style.drawing(width, height, _note(compared, by, alpha) + style.about_yardsticks(table)) as figure:
        axes = style.add_panels(figure, len(panels), width, sharex=True, sharey=True)
        for panel, (name, rows) in zip(axes, panels.items(), strict=True):
            panel.set_title(name)
            style.shade_margin(panel, float(rows["margin"].iloc[0]))
            _draw(panel, style.compared(rows), by, list(counts.index), looks, style.FONT[width])
        names = [f"level {value}" if by == "level" else visible(value, keep="") for value in counts.index]
        axes[0].set_yticks(range(len(counts)), [f"{name} ({n})" for name, n in zip(names, counts, strict=True)])
        for panel in axes[-across:]:
            panel.set_xlabel(f"Difference from {style.label(table['baseline'].iloc[0])} (points)")
            panel.tick_params(labelbottom=True)
    return figure


def _draw(
    axes: Axes, rows: pandas.DataFrame, by: str, values: Sequence[object], looks: Mapping[str, style.Look], size: float
) -> None:
    step = 0.7 / len(looks)
    for place, (condition, look) in enumerate(looks.items()):
        for row in rows[rows["condition"] == condition].to_dict("records"):
            y = values.index(row[by]) + (place - (len(looks) - 1) / 2) * step
            ends = {"low": row["low"], "value": row["difference"], "high": row["high"]}
            draw_estimate(axes, y, look, **ends, filled=row["verdict"] in PASSED, size=size)
        axes.plot([], [], color=look.colour, marker=look.marker, linestyle="none", label=style.label(condition))
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    style.tidy(axes, grid="x", hidden=("top", "right", "left"))


def _note(compared: pandas.DataFrame, by: str, alpha: float) -> str:
    passed = int(compared["verdict"].isin(PASSED).sum())
    found = {0: "none passes", 1: "one passes"}.get(passed, f"{passed} pass")
    return (
        f"Lines: {100 * (1 - alpha):g} % score intervals; shaded: the margin; in brackets: problems. Of "
        f"{len(compared)} tests by {by}, {found} at adjusted p < {alpha:g} ({style.adjustment(compared)})"
        + ("; those are filled." if passed else ".")
    )
