"""The accuracy bars of the study's composite figure: one group of bars for each model, one bar for each condition."""

from __future__ import annotations

import textwrap

import pandas
from matplotlib.axes import Axes

from harness.display.figures import style
from harness.display.numbers import LEVEL
from harness.display.visible import visible

COLOURS = {"wo": "#6a4c93", "mless": "#1b9e8a", "mful": "#7cc4ea"}
"""The study's purple, teal and light blue."""


def plot_accuracy_bars(
    axes: Axes, table: pandas.DataFrame, *, title: str, y_limits: tuple[float, float] | None = None, font_size: float
) -> None:
    """Grouped bars of accuracies in percent, in the table's order of conditions. The axis label says where they start.

    Several layouts become groups of their own.

    Args:
        axes: What to draw on.
        table: Rows with model, layout, condition, accuracy and its interval, accuracy_low to accuracy_high, as of
            `outcomes.accuracy_table`. Published accuracies have no interval (NaN) and are shown as they were given.
        title: Above the axes.
        y_limits: Ends of the axis, which reaches farther where a bar or its interval does; 0 to 100 by default.
        font_size: Of the numbers on the bars, in points.
    """
    groups = list(style.split_settings(table))
    numbered = table.assign(group=table.groupby(["model", "layout"], sort=False, observed=True).ngroup())
    looks = style.looks(table["condition"])
    width = 0.8 / len(looks)
    for place, (condition, look) in enumerate(looks.items()):
        rows = numbered[numbered["condition"] == condition]
        xs = rows["group"] + (place - (len(looks) - 1) / 2) * width
        heights, lows, highs = (rows[f"accuracy{end}"].astype(float) for end in ("", "_low", "_high"))
        axes.bar(
            xs,
            heights,
            width * 0.92,
            yerr=[heights - lows, highs - heights],
            capsize=font_size / 3,
            color=COLOURS.get(condition, look.colour),
            edgecolor=style.INK,
            linewidth=0.6,
            error_kw={"elinewidth": 0.9, "ecolor": style.INK, "capthick": 0.9},
            label=style.label(condition),
        )
        for x, height, high in zip(xs, heights, highs, strict=True):
            measured = high == high  # a published number stands alone
            axes.annotate(
                f"{height:.1f}" if measured else f"{height:g}",
                (x, high if measured else height),
                xytext=(0, 2.5),
                textcoords="offset points",
                ha="center",
                fontsize=font_size,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )
    low, high = y_limits or (0.0, 100.0)
    low = low if low < table["accuracy"].min() else 0.0
    axes.set_ylim(low, max(high, table["accuracy_high"].fillna(table["accuracy"]).max() + 3))
    inches = axes.get_window_extent().width / axes.figure.dpi
    letters = max(8, int(1.6 * 72 * inches / len(groups) / font_size))
    names = ["\n".join(textwrap.fill(part, letters) for part in name.split(", ")) for name in groups]
    axes.set_xticks(range(len(groups)), names)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    said = f", {LEVEL} score interval" if table["accuracy_high"].notna().any() else ""
    axes.set_ylabel(f"Accuracy (%){said}" + (f"\naxis starts at {low:g}" if low else ""))
    axes.set_title(visible(title, keep=""))
    style.tidy(axes, grid="y")
