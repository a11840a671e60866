"""The accuracy bars of the study's composite figure: one group of bars for each model, one bar for each condition."""

from __future__ import annotations

import textwrap

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.choices import Width
from harness.display.figures import style
from harness.display.visible import visible
from harness.display.words import LEVEL

_ALONE = (
    "Each interval is of one accuracy by itself. Whether two conditions differ is a paired question: intervals that "
    "overlap do not answer it, the forest plot does."
)


def draw_accuracy_bars(table: pandas.DataFrame, *, title: str, width: Width = "page") -> Figure:
    """A figure of `plot_accuracy_bars` with a legend above, and under it what its intervals cannot say.

    Args:
        table: See `plot_accuracy_bars`; rows of yardsticks are left out.
        title: Above it.
        width: `page` is 7 inches, `column` 3.3.
    """
    note = _ALONE + style.about_yardsticks(table)
    with style.drawing(width, 2.9 if width == "page" else 2.6, note) as figure:
        shown = style.without_contrasts(style.without_yardsticks(table))
        plot_accuracy_bars(figure.add_subplot(), shown, title=title, font_size=style.FONT[width] - 1)
    return figure


def plot_accuracy_bars(axes: Axes, table: pandas.DataFrame, *, title: str, font_size: float = 8) -> None:
    """Grouped bars of accuracies in percent, in the study's order of conditions.

    Several layouts become groups of their own. As in the study the axis starts at 30 where every bar is well above
    it, and the axis label then says so; else at zero.

    Args:
        axes: What to draw on.
        table: Rows with model, layout, condition, accuracy and its interval, accuracy_low to accuracy_high, as of
            `harness.analysis.compare` or `accuracy.accuracy_table`. Published accuracies have no interval (NaN)
            and are shown as they were given.
        title: Above the axes.
        font_size: Of the numbers on the bars, in points.
    """
    groups = list(style.split_settings(table))
    numbered = table.assign(group=table.groupby(["model", "layout"], sort=False, observed=True).ngroup())
    conditions = style.in_order(table["condition"])
    width = 0.8 / len(conditions)
    for place, condition in enumerate(conditions):
        rows = numbered[numbered["condition"] == condition]
        xs = rows["group"] + (place - (len(conditions) - 1) / 2) * width
        heights, lows, highs = (rows[f"accuracy{end}"].astype(float) for end in ("", "_low", "_high"))
        axes.bar(
            xs,
            heights,
            width * 0.92,
            yerr=[heights - lows, highs - heights],
            capsize=font_size / 3,
            color=style.colour(condition, conditions),
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
    low, high = float(table["accuracy"].min()), float(table["accuracy_high"].fillna(table["accuracy"]).max())
    bottom = 30.0 if low >= 40 else 0.0
    axes.set_ylim(bottom, min(104.0, high + 0.12 * max(high - bottom, 1.0)))
    inches = axes.get_window_extent().width / axes.figure.dpi
    letters = max(8, int(1.6 * 72 * inches / len(groups) / font_size))
    names = ["\n".join(textwrap.fill(part, letters) for part in name.split(", ")) for name in groups]
    axes.set_xticks(range(len(groups)), names)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    said = f", {LEVEL} score interval" if table["accuracy_high"].notna().any() else ""
    axes.set_ylabel(f"Accuracy (%){said}" + (f"\naxis starts at {bottom:.0f}" if bottom else ""))
    axes.set_title(visible(title, keep=""))
    style.tidy(axes, grid="y")
