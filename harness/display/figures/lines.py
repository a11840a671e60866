"""Sweeps: lines of differences over the length of the filler."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.sweeps import SweptFiller, find_sweeps
from harness.constants import PASSED
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT
from harness.display.format_values import LEVEL
from harness.experiment.conditions import Condition


def draw_dose(table: pandas.DataFrame, conditions: Mapping[str, Condition]) -> Figure:
    """Differences from the baseline against the filler's length.

    There is a panel for each model and layout, and a line for each filler.

    Args:
        table: From `harness.analysis.compare`, with the reference conditions.
        conditions: The conditions of the configs, by name.
    """
    doses = find_sweeps(conditions)
    condition_looks = figure_style.looks(conditions)
    looks = {}
    for filler, lengths in doses.items():
        # the look of its first condition, so that the study's fillers look as in all other figures
        has_length = [name for length, name in lengths.items() if length]
        looks[filler] = condition_looks[min(has_length, key=[*conditions].index)]
    names = _name_fillers(doses)
    settings = figure_style.split_settings(table)
    baseline = figure_style.wrapped_label(table["baseline"].iloc[0])
    step = 0.012 * max(max(lengths) for lengths in doses.values())
    note = (
        f"Lines: {LEVEL} intervals, not adjusted. Filled: adjusted p < 0.05. Intervals that would "
        "cover each other are moved apart a little."
    )
    with figure_style.drawing(0.6 + 2.1 * len(settings), note) as figure:
        panels = figure.subplots(len(settings), squeeze=False, sharex=True, sharey=True)
        for axes, (setting, rows) in zip(panels.ravel(), settings.items(), strict=True):
            axes.set_title(setting)
            axes.set_ylabel(f"Difference from {baseline} (points)")
            figure_style.tidy(axes, grid="y")
            axes.axhline(0, color=figure_style.MUTED, linewidth=0.6, zorder=1)
            differences = figure_style.without_reference_conditions(rows).set_index("condition")
            # The baseline is the point with no filler and has no difference from itself.
            differences = differences.fillna({"difference": 0.0})
            for index, (filler, lengths) in enumerate(doses.items()):
                points = differences.reindex(list(lengths.values())).assign(x=list(lengths))
                points = points.dropna(subset="role")
                shift = step * (index - (len(doses) - 1) / 2)
                points["x"] += np.where(points["x"] > 0, shift, 0)
                _draw_filler(axes, points, looks[filler], names[filler])
        figure.axes[-1].set_xlabel("Tokens of filler")
    return figure


def _name_fillers(fillers: Iterable[SweptFiller]) -> dict[SweptFiller, str]:
    """The name of each filler in the legend, with its placement and words where they differ."""
    differ = len({(filler.placement, filler.words) for filler in fillers}) > 1
    names = {}
    for filler in fillers:
        fields = [filler.filler]
        if differ:
            fields += [field for field in (filler.placement, filler.words) if field]
        names[filler] = figure_style.wrapped_label(", ".join(map(figure_style.spell, fields)))
    return names


def _draw_filler(axes: Axes, points: pandas.DataFrame, look: figure_style.Look, name: str) -> None:
    """The line of one filler, with interval and mark at each length but that of the baseline."""
    line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1}
    axes.plot(points["x"], points["difference"], **line)
    compared = points[points["role"] != "baseline"]
    axes.vlines(compared["x"], compared["low"], compared["high"], color=look.colour, linewidth=0.9)
    for is_filled, rows in compared.groupby(compared["verdict"].isin(PASSED)):
        axes.plot(
            rows["x"],
            rows["difference"],
            look.marker,
            color=look.colour,
            markerfacecolor=look.colour if is_filled else "white",
            markersize=0.6 * FONT,
        )
    axes.plot([], [], marker=look.marker, label=name, **line)
