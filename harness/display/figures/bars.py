"""The accuracy bars of the study's composite figure: one group a model, one bar a condition."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from harness.choices import Width
from harness.display.figures.style import (
    GRID,
    INCHES,
    INK,
    about_edits,
    add_note,
    colour,
    in_order,
    label,
    legend_columns,
    records,
    settings,
    styled,
    without_edits,
)
from harness.display.visible import visible
from harness.display.words import LEVEL

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALONE = (
    "Each interval is of one accuracy by itself. Whether two conditions differ is a paired question: intervals that "
    "overlap do not answer it, the forest plot does."
)


def draw_accuracy_bars(table: pandas.DataFrame, *, title: str, width: Width = "page") -> Figure:
    """A figure of `plot_accuracy_bars` with a legend above, and under it what its intervals cannot say.

    Args:
        table: See `plot_accuracy_bars`; rows of the prompt null are left out.
        title: Above it.
        width: `page` is 7 inches, `column` 3.3.
    """
    from matplotlib.figure import Figure

    shown = without_edits(table)
    with styled(width) as size:
        figure = Figure(figsize=(INCHES[width], 2.9 if width == "page" else 2.6), layout="constrained")
        plot_accuracy_bars(figure.add_subplot(), shown, title=title, font_size=size - 1)
        names = [label(name) for name in in_order(shown["condition"])]
        figure.legend(loc="outside upper center", ncols=legend_columns(names, width))
        add_note(figure, _ALONE + about_edits(table), size)
    return figure


def plot_accuracy_bars(axes: Axes, table: pandas.DataFrame, *, title: str, font_size: float = 8) -> None:
    """Grouped bars of accuracies in percent, in the study's order of conditions.

    Several layouts become groups of their own. As in the study the axis starts at 30 where every bar is well above
    it, and the axis label then says so; else at zero.

    Args:
        axes: Where to.
        table: Rows with model, layout, condition, accuracy and its interval, accuracy_low to accuracy_high, as of
            `harness.analysis.compare` or `accuracy.accuracy_table`. Published accuracies have no interval (NaN)
            and are shown as they were given.
        title: Above the axes.
        font_size: Of the numbers on the bars, in points.
    """
    groups = settings(table)
    conditions = in_order(table["condition"])
    width = 0.8 / len(conditions)
    for place, condition in enumerate(conditions):
        rows = {(row["model"], row["layout"]): row for row in records(table[table["condition"] == condition])}
        found = [(number, rows[group]) for number, group in enumerate(groups) if group in rows]
        xs = [number + (place - (len(conditions) - 1) / 2) * width for number, _ in found]
        heights = [float(row["accuracy"]) for _, row in found]
        lows, highs = ([float(row[f"accuracy_{end}"]) for _, row in found] for end in ("low", "high"))
        below = [height - low for height, low in zip(heights, lows, strict=True)]
        above = [high - height for height, high in zip(heights, highs, strict=True)]
        axes.bar(
            xs,
            heights,
            width * 0.92,
            yerr=[below, above],
            capsize=font_size / 3,
            color=colour(condition, conditions),
            edgecolor=INK,
            linewidth=0.6,
            error_kw={"elinewidth": 0.9, "ecolor": INK, "capthick": 0.9},
            label=label(condition),
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
    figure = axes.get_figure(root=True)
    assert figure is not None  # axes that are drawn on are part of one
    room = 72 * figure.get_figwidth() * axes.get_position().width / len(groups)  # points, for a group's name
    letters = max(8, int(1.6 * room / font_size))
    names = ["\n".join(textwrap.fill(part, letters) for part in name.split(", ")) for name in groups.values()]
    axes.set_xticks(range(len(groups)), names)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    said = f", {LEVEL} score interval" if table["accuracy_high"].notna().any() else ""
    axes.set_ylabel(f"Accuracy (%){said}" + (f"\naxis starts at {bottom:.0f}" if bottom else ""))
    axes.set_title(visible(title, keep=""))
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
