"""Lines over x with their bands or intervals: sweeps, shares by length, the curves of the probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.sweeps import find_sweeps
from harness.constants import PASSED
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT
from harness.display.format_values import LEVEL, name_character, visible
from harness.experiment.conditions import Condition


def draw_curve(
    axes: Axes, points: pandas.DataFrame, look: figure_style.Look, label: str, **marks: Any
) -> None:
    """A curve: solid, with its band, where at least half of the prompts reach; dotted where fewer do.

    Args:
        axes: What to draw on.
        points: Columns x, mean, low, high, count and prompts, in the order of x. The line breaks at positions left out.
        look: The curve's.
        label: Its name in the legend.
        marks: Further settings of the solid line.
    """
    points = points.set_index("x")
    points = points.reindex(range(points.index[0], points.index[-1] + 1))
    reached = 2 * points["count"] >= points["prompts"]
    axes.plot(
        points.index,
        points["mean"],
        color=look.colour,
        linewidth=0.5,
        linestyle=":",
        label=f"_{label}",
    )
    solid = points["mean"].where(reached)
    axes.plot(points.index, solid, color=look.colour, linestyle=look.dashes, label=label, **marks)
    axes.fill_between(
        points.index,
        points["low"],
        points["high"],
        where=reached,
        color=look.colour,
        alpha=0.2,
        linewidth=0,
    )


def draw_dose(table: pandas.DataFrame, conditions: Mapping[str, Condition]) -> Figure:
    """Differences from the baseline against the filler's length: a panel for each model and layout, a line a filler.

    Args:
        table: As of `harness.analysis.compare`, with the reference conditions.
        conditions: The config's, by name.
    """
    doses = find_sweeps(conditions)
    several = len({(filler.placement, filler.words) for filler in doses}) > 1
    looks, settings = figure_style.looks(doses), figure_style.split_settings(table)
    baseline = figure_style.short_label(table["baseline"].iloc[0])
    step = 0.012 * max(count for lengths in doses.values() for count in lengths)
    note = f"Points less {baseline}; lines: {LEVEL} intervals, not adjusted; filled: adjusted p < 0.05."
    note += " Lengths are moved apart a little where lines would cover each other."
    with figure_style.panels(settings, note, 2.1, sharex=True, sharey=True) as (figure, axes):
        for panel, rows in zip(axes, settings.values(), strict=True):
            panel.axhline(0, color=figure_style.MUTED, linewidth=0.6, zorder=1)
            differences = figure_style.without_reference_conditions(rows).set_index("condition")
            differences = differences.fillna({"difference": 0.0})  # the baseline has none
            for number, (filler, lengths) in enumerate(doses.items()):
                mine = (
                    differences.reindex(list(lengths.values()))
                    .assign(count=list(lengths))
                    .dropna(subset="role")
                )
                shift = step * (number - (len(doses) - 1) / 2)
                mine["x"] = mine["count"] + np.where(mine["count"] > 0, shift, 0)
                words = (
                    (filler.filler, filler.placement, filler.words) if several else (filler.filler,)
                )
                legend = figure_style.short_label(", ".join(_spell(word) for word in words if word))
                _draw_filler(panel, mine, looks[str(filler)], legend)
            panel.set_xlabel("Tokens of filler")
        for panel in axes[::3]:
            panel.set_ylabel(f"Difference from {baseline} (points)")
    return figure


def _spell(filler: str) -> str:
    """A filler in the legend; blanks and breaks, which cannot be seen, by name."""
    return visible(filler, keep="") if filler.strip() else " ".join(map(name_character, filler))


def _draw_filler(panel: Axes, rows: pandas.DataFrame, look: figure_style.Look, name: str) -> None:
    """The line of one filler through its lengths, with the interval and the mark of each but the baseline."""
    line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1}
    size = 0.6 * FONT
    panel.plot(rows["x"], rows["difference"], **line)
    shown = rows[rows["role"] != "baseline"]
    panel.vlines(shown["x"], shown["low"], shown["high"], color=look.colour, linewidth=0.9)
    for passed, mine in shown.groupby(shown["verdict"].isin(PASSED)):
        inner = look.colour if passed else "white"
        panel.plot(
            mine["x"],
            mine["difference"],
            look.marker,
            color=look.colour,
            markerfacecolor=inner,
            markersize=size,
        )
    panel.plot([], [], marker=look.marker, label=name, **line)


def length_shares(frame: pandas.DataFrame) -> pandas.DataFrame:
    """For each model, layout, condition and length that occurs, the share of completions that are no longer, percent.

    Args:
        frame: One row per sample, with completion_tokens and characters; only the first replicate is taken. If any
            completion's tokens were not counted, all are measured in characters.

    Returns:
        Columns model, layout, condition, unit, length, samples, share.
    """
    first = frame[frame["replicate"] == 0]
    counted = first["completion_tokens"].notna().all()
    lengths = first["completion_tokens" if counted else "characters"].astype(int)
    keys = ["model", "layout", "condition"]
    shares = (
        first[keys].astype(str).assign(unit="tokens" if counted else "characters", length=lengths)
    )
    groups = shares.groupby(keys, sort=False)
    shares["samples"] = groups["length"].transform("size")
    shares["share"] = 100 * groups["length"].rank(method="max", pct=True)
    shares = shares.assign(group=groups.ngroup()).sort_values(["group", "length"]).drop_duplicates()
    return shares.drop(columns="group").reset_index(drop=True)


def draw_completion_lengths(shares: pandas.DataFrame) -> Figure:
    """A panel for each model and layout, a line for each condition, a mark at its median.

    Args:
        shares: As of `length_shares`.
    """
    looks, settings = figure_style.looks(shares["condition"]), figure_style.split_settings(shares)
    counts = " or ".join(f"{count:,}" for count in sorted(shares["samples"].unique()))
    note = f"{counts} completions a line; marks: medians, above in the order of the legend."
    with figure_style.panels(settings, note, 1.9, sharex=True, sharey=True) as (figure, grid):
        for axes, (name, rows) in zip(grid, settings.items(), strict=True):
            medians = []
            for condition in (one for one in looks if (rows["condition"] == one).any()):
                look, mine = looks[condition], rows[rows["condition"] == condition]
                medians.append(int(mine["length"][mine["share"] >= 50].iloc[0]))
                axes.step(
                    [mine["length"].iloc[0], *mine["length"]],
                    [0, *mine["share"]],
                    where="post",
                    color=look.colour,
                    linestyle=look.dashes,
                    linewidth=1.3,
                    label=figure_style.short_label(condition),
                )
                axes.plot(
                    medians[-1],
                    50,
                    look.marker,
                    markersize=5,
                    color=look.colour,
                    markeredgecolor="white",
                )
            axes.set_title(f"{name}\nmedian {' / '.join(f'{median:,}' for median in medians)}")
            axes.set_xlabel(f"Length of a completion ({shares['unit'].iloc[0]})")
            axes.grid(axis="x", color=figure_style.GRID, linewidth=0.5)
        grid[0].set_ylim(0, 101)
        grid[0].set_ylabel("Completions no longer (%)")
    return figure
