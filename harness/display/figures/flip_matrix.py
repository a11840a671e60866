"""The flips matrix: for each condition, how many problems are right or wrong under it and under the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.choices import Width
from harness.display.figures import style
from harness.display.words import count

ACROSS: dict[Width, int] = {"page": 5, "column": 3}
"""The most matrices in a row."""

Counts = tuple[float, float, float, float]
"""Problems right under both, lost, gained, and wrong under both; fractions with several samples a problem."""


def draw_flip_matrix(table: pandas.DataFrame, *, width: Width = "page") -> Figure:
    """A matrix for each model, layout and condition, and for the baseline against itself where it was run twice.

    Args:
        table: As of `harness.analysis.compare`; rows of yardsticks are left out.
        width: `page` is 7 inches, `column` 3.3.
    """
    groups = {name: _matrices(rows) for name, rows in style.split_settings(table).items()}
    most = max(len(matrices) for matrices in groups.values())
    across = math.ceil(most / math.ceil(most / ACROSS[width]))  # as even as can be
    down = math.ceil(most / across)
    scale = max(max(lost, gained) for group in groups.values() for _, (_, lost, gained, _) in group) or 1.0
    size = style.FONT[width]
    side = min(1.5 if width == "page" else 1.1, (style.INCHES[width] - 0.3) / across)
    named = 0.2 if len(groups) > 1 else 0.0
    height = 0.62 + len(groups) * (named + down * (0.86 * side + 0.2))
    with style.drawing(width, height, _note(table)) as figure:
        bands = figure.subfigures(len(groups), 1, squeeze=False)[:, 0]
        for band, (name, matrices) in zip(bands, groups.items(), strict=True):
            if named:
                band.suptitle(name, x=0.01, ha="left", fontsize=size)
            grid = band.add_gridspec(down, across)
            for place, (title, counts) in enumerate(matrices):
                axes = band.add_subplot(grid[divmod(place, across)])
                axes.set_title(title, pad=3)
                first = place % across == 0
                _draw(axes, counts, scale, size, named=first)
                if first:
                    axes.set_ylabel(style.label(table["baseline"].iloc[0]))
    return figure


def _matrices(rows: pandas.DataFrame) -> list[tuple[str, Counts]]:
    """The title and the counts of each matrix of one model and layout."""
    found = [(style.label(row["condition"]), _counts(row)) for row in style.compared(rows).to_dict("records")]
    twice = rows[(rows["verdict"] == "baseline") & rows["aa_p"].notna()].to_dict("records")
    return found + [(f"{style.label(row['condition'])} again", _counts(row, again=True)) for row in twice]


def _counts(row: Mapping[Any, Any], *, again: bool = False) -> Counts:
    """The counts in a row of `analysis.compare`; with `again` those of the baseline's second run against its first."""
    prefix = "aa_" if again else ""
    gained, lost = float(row[f"{prefix}wrong_to_right"]), float(row[f"{prefix}right_to_wrong"])
    n = int(row["n"])
    right = n * float(row["accuracy"]) / 100  # under the condition, or under the baseline's first run
    stays = right - (lost if again else gained)
    return stays, lost, gained, n - stays - lost - gained


def _draw(axes: Axes, counts: Counts, scale: float, size: float, *, named: bool) -> None:
    _, lost, gained, _ = counts
    fills = (
        ("#999999", 0.25),
        (style.LOST, 0.1 + 0.55 * lost / scale),
        (style.GAINED, 0.1 + 0.55 * gained / scale),
        ("#999999", 0.25),
    )
    for place, (number, fill) in enumerate(zip(counts, fills, strict=True)):
        y, x = divmod(place, 2)
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5))
        centred: Any = {"ha": "center", "va": "center"}
        axes.text(x + 0.5, y + 0.42, count(number), fontsize=size + 1.5, color=style.INK, **centred)
        share = f"{100 * number / sum(counts):.1f} %"
        axes.text(x + 0.5, y + 0.74, share, fontsize=size - 1.5, color=style.MUTED, **centred)
    axes.set_xlim(0, 2)
    axes.set_ylim(2, 0)
    axes.set_aspect("equal", anchor="N")  # room for the name is kept above the cells
    axes.set_xticks([0.5, 1.5], ["right", "wrong"])
    axes.set_yticks([0.5, 1.5], ["right", "wrong"] if named else ["", ""])
    axes.tick_params(length=0, pad=1)
    axes.xaxis.set_ticks_position("top")
    axes.spines[:].set_visible(False)


def _note(table: pandas.DataFrame) -> str:
    several = bool((table["k"] > 1).any())
    counted = "Problems, averaged over all pairs of a sample of either condition" if several else "Problems"
    return (
        f"{counted}: rows by the baseline, columns by the condition above. Blue: wrong to right; orange: the reverse. "
        "Their difference, not their number, is the effect; whether it is more than chance is in the forest plot."
        + style.about_yardsticks(table)
    )
