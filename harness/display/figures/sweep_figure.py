"""Lines of differences over the length of the filler."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.constants import SIGNIFICANT_VERDICTS
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT_POINTS
from harness.display.value_texts import LEVEL
from harness.experiment.conditions import Condition


def find_sweeps(conditions: Mapping[str, Condition]) -> dict[tuple[str, ...], dict[int, str]]:
    """For each filler with two lengths or more, the condition of each length, in their order.

    A filler is its description, placement and the other changes. Length 0, the last, is a condition
    without a filler that has the same other changes, if there is one. A condition that states no
    number of tokens has no length.
    """
    lengths: dict[tuple[str, ...], dict[int, str]] = {}
    without_filler: dict[str, str] = {}
    for name, condition in conditions.items():
        if condition.filler is None:
            without_filler.setdefault(condition.other_changes, name)
        elif condition.filler_tokens:
            columns = condition.describe()
            filler = (columns["filler"], columns["placement"], condition.other_changes)
            # a later condition of the same length has the same prompt, so the first stands for both
            lengths.setdefault(filler, {}).setdefault(condition.filler_tokens, name)
    sweeps = {filler: names for filler, names in lengths.items() if len(names) > 1}
    for (*_, changes), names in sweeps.items():
        if changes in without_filler:
            names[0] = without_filler[changes]
    return sweeps


def draw_dose(table: pandas.DataFrame, conditions: Mapping[str, Condition]) -> Figure:
    """Differences from the baseline against the filler's length.

    There is a panel for each model and layout, and a line for each filler.

    Args:
        table: From `harness.analysis.compare`, with the reference conditions.
        conditions: The conditions of the configs, by name.
    """
    sweeps = find_sweeps(conditions)
    looks = figure_style.looks(conditions)
    settings = figure_style.split_settings(table)
    baseline = figure_style.wrapped_label(table["baseline"].iloc[0])
    step = 0.012 * max(map(max, sweeps.values()))
    # the legend states placement and other changes only if they differ between fillers
    show_all_fields = len({filler[1:] for filler in sweeps}) > 1
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
            for index, (filler, names) in enumerate(sweeps.items()):
                points = differences.reindex([*names.values()]).assign(x=[*names])
                points = points.dropna(subset="role").sort_values("x")
                shift = step * (index - (len(sweeps) - 1) / 2)
                points["x"] += shift * (points["x"] > 0)
                fields = filler if show_all_fields else filler[:1]
                legend = ", ".join(figure_style.spell(field) for field in fields if field)
                # the look of its first condition, so that the study's fillers look as in all
                # other figures
                look = looks[next(iter(names.values()))]
                _draw_filler_line(axes, points, look, figure_style.wrapped_label(legend))
        figure.axes[-1].set_xlabel("Tokens of filler")
    return figure


def _draw_filler_line(
    axes: Axes, points: pandas.DataFrame, look: figure_style.Look, name: str
) -> None:
    """The line of one filler, with interval and mark at each length but that of the baseline."""
    line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1}
    axes.plot(points["x"], points["difference"], **line)
    compared = points[points["role"] != "baseline"]
    axes.vlines(compared["x"], compared["low"], compared["high"], color=look.colour, linewidth=0.9)
    faces = np.where(compared["verdict"].isin(SIGNIFICANT_VERDICTS), look.colour, "white")
    axes.scatter(
        compared["x"],
        compared["difference"],
        s=(0.6 * FONT_POINTS) ** 2,  # the area in square points
        c=faces,
        marker=look.marker,
        edgecolors=look.colour,
        zorder=2,
    )
    axes.plot([], [], marker=look.marker, label=name, **line)
