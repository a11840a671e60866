"""Differences from the baseline by level or subject: where an effect comes from, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.choices import Width
from harness.display.figures.style import (
    GRID,
    INCHES,
    INK,
    MUTED,
    about_edits,
    add_note,
    adjustment,
    colour,
    in_order,
    label,
    legend_columns,
    rows_of,
    settings,
    styled,
    without_edits,
)
from harness.display.visible import visible

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS: dict[Width, int] = {"page": 3, "column": 1}
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Conditions differ in shape, too."""


def draw_split_differences(table: pandas.DataFrame, *, by: str, width: Width = "page", alpha: float = 0.05) -> Figure:
    """A panel for each model and layout, a row for each level or subject, a dot with its interval for each condition.

    Args:
        table: As of `harness.analysis.compare(..., by=[by])`; rows of the prompt null are left out.
        by: The column that it is split by.
        width: `page` is 7 inches, `column` 3.3.
        alpha: The level that the table was made with; it is only named.
    """
    from matplotlib.figure import Figure

    shown = without_edits(table)
    compared = shown[shown["verdict"] != "baseline"]
    conditions = in_order(compared["condition"])
    values = sorted(dict.fromkeys(table[by]))
    panels = settings(table)
    across = min(len(panels), ACROSS[width])
    down = -(-len(panels) // across)
    with styled(width) as size:
        height = 0.95 + down * (0.35 + len(values) * (0.09 + 0.095 * len(conditions)))
        figure = Figure(figsize=(INCHES[width], height), layout="constrained")
        axes = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
        for panel, (setting, name) in zip(axes, panels.items(), strict=False):
            _draw(panel, rows_of(compared, setting), by, values, conditions, size)
            panel.set_title(name)
        for panel in axes[len(panels) :]:
            panel.set_visible(False)
        counts = table.groupby(by, observed=True)["n"].first()
        names = [f"level {value}" if by == "level" else visible(value, keep="") for value in values]
        axes[0].set_yticks(range(len(values)), [f"{n} ({counts[v]})" for n, v in zip(names, values, strict=True)])
        for panel in axes[max(0, len(panels) - across) : len(panels)]:
            panel.set_xlabel(f"Difference from {label(shown['baseline'].iloc[0])} (points)")
            panel.tick_params(labelbottom=True)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=legend_columns(names, width))
        add_note(figure, _note(compared, by, alpha) + about_edits(table), size)
    return figure


def _draw(
    axes: Axes, rows: pandas.DataFrame, by: str, values: list[object], conditions: list[str], size: float
) -> None:
    margin = float(rows["margin"].iloc[0])
    axes.axvspan(-margin, margin, color="#eeeeee", zorder=0)
    axes.axvline(0, color=MUTED, linewidth=0.6, zorder=1)
    step = 0.7 / len(conditions)
    for place, condition in enumerate(conditions):
        mine = rows[rows["condition"] == condition]
        ys = [values.index(value) + (place - (len(conditions) - 1) / 2) * step for value in mine[by]]
        axes.hlines(ys, mine["low"].astype(float), mine["high"].astype(float), color=INK, linewidth=0.7, zorder=2)
        passed = mine["verdict"].isin(["better", "worse"]).to_numpy()
        axes.scatter(
            mine["difference"].astype(float),
            ys,
            marker=MARKERS[place % len(MARKERS)],
            s=size * 2.2,
            c=colour(condition, conditions),
            edgecolors=INK,
            linewidths=[1.4 if one else 0.5 for one in passed],
            zorder=3,
            label=label(condition),
        )
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(axis="x", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _note(compared: pandas.DataFrame, by: str, alpha: float) -> str:
    passed = int(compared["verdict"].isin(["better", "worse"]).sum())
    found = {0: "none passes", 1: "one passes"}.get(passed, f"{passed} pass")
    return (
        f"Lines: {100 * (1 - alpha):g} % score intervals; shaded: the margin; in brackets: problems. Of "
        f"{len(compared)} tests by {by}, {found} at adjusted p < {alpha:g} ({adjustment(compared)})"
        + ("; those have a thick edge." if passed else ".")
    )
