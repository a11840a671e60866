"""Lines of differences over the length of the filler: the dose of `mless plot --kind dose`.

A *sweep* is the conditions of one filler that differ only in its length.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.constants import SIGNIFICANT_VERDICTS
from harness.display.figures.figure_style import (
    FONT_POINTS,
    MUTED,
    Style,
    choose_styles,
    drawing,
    spell_filler,
    split_settings,
    tidy,
    wrapped_label,
)
from harness.display.value_texts import LEVEL_TEXT
from harness.experiment.conditions import Condition

Sweep = dict[int, str]
"""The conditions of a sweep, by length."""


class SweptFiller(NamedTuple):
    """What the conditions of one sweep have in common. See `FilledCondition.describe`."""

    text: str
    placement: str
    other_changes: str


def find_sweeps(conditions: Mapping[str, Condition]) -> dict[SweptFiller, Sweep]:
    """For each filler with two lengths or more, the condition of each length, in their order.

    Length 0, the last, is a condition without a filler that has the same other changes, if there is
    one. A condition that states no number of tokens has no length.
    """
    sweep_by_filler: dict[SweptFiller, Sweep] = {}
    unfilled_condition_by_changes: dict[str, str] = {}
    for name, condition in conditions.items():
        if condition.filler_key is None:
            unfilled_condition_by_changes.setdefault(condition.changes_text, name)
        elif condition.filler_tokens:
            description = condition.describe()
            swept_filler = SweptFiller(
                description["filler"], description["placement"], condition.changes_text
            )
            # a later condition of the same length has the same prompt, so the first stands for both
            sweep_by_filler.setdefault(swept_filler, {}).setdefault(condition.filler_tokens, name)
    sweeps = {
        swept_filler: sweep for swept_filler, sweep in sweep_by_filler.items() if len(sweep) > 1
    }
    for swept_filler, sweep in sweeps.items():
        if swept_filler.other_changes in unfilled_condition_by_changes:
            sweep[0] = unfilled_condition_by_changes[swept_filler.other_changes]
    return sweeps


def draw_dose(table: pandas.DataFrame, conditions: Mapping[str, Condition]) -> Figure:
    """Differences from the baseline against the filler's length.

    There is a panel for each model and layout, and a line for each filler.

    Args:
        table: From `harness.analysis.compare`, with the reference conditions.
        conditions: The conditions of the configs, by name.
    """
    sweeps = find_sweeps(conditions)
    style_by_condition = choose_styles(conditions)
    settings = list(split_settings(table))
    baseline_label = wrapped_label(table["baseline"].iloc[0])
    # the distance between intervals at the same length, 1.2 % of the axis
    shift_step = 0.012 * max(map(max, sweeps.values()))
    # the legend has only the texts of fillers that agree in placement and other changes
    fillers_differ_beyond_text = len({swept_filler[1:] for swept_filler in sweeps}) > 1
    note = (
        f"Lines: {LEVEL_TEXT} intervals, not adjusted. Filled: adjusted p < 0.05. Intervals that "
        "would cover each other are moved apart a little."
    )
    with drawing(0.6 + 2.1 * len(settings), note) as figure:
        panels = figure.subplots(len(settings), squeeze=False, sharex=True, sharey=True)
        for axes, (setting_name, rows) in zip(panels.ravel(), settings, strict=True):
            axes.set_title(setting_name)
            axes.set_ylabel(f"Difference from {baseline_label} (points)")
            tidy(axes, grid="y")
            axes.axhline(0, color=MUTED, linewidth=0.6, zorder=1)
            for index, (swept_filler, sweep) in enumerate(sweeps.items()):
                # the shifts of the lines are one step apart, and their mean is 0
                shift = shift_step * (index - (len(sweeps) - 1) / 2)
                # a line looks like its first condition, which has this style in all figures
                style = style_by_condition[next(iter(sweep.values()))]
                plotted_rows = _select_points(rows, sweep, shift)
                legend_fields = swept_filler if fillers_differ_beyond_text else [swept_filler.text]
                # a filler without other changes has an empty text for them
                spelt_fields = map(spell_filler, filter(None, legend_fields))
                _draw_filler_line(axes, plotted_rows, style, wrapped_label(", ".join(spelt_fields)))
        figure.axes[-1].set_xlabel("Tokens of filler")
    return figure


def _select_points(rows: pandas.DataFrame, sweep: Sweep, shift: float) -> pandas.DataFrame:
    """The rows of a sweep's conditions, with the length as `x`; all but length 0 are shifted."""
    differences = rows[rows["role"] != "reference"].set_index("condition")
    # The baseline has no difference from itself, but its point lies on the line at 0.
    differences = differences.fillna({"difference": 0.0})
    plotted_rows = differences.reindex([*sweep.values()]).assign(x=[*sweep])
    # a condition that this model and layout lack has no role
    plotted_rows = plotted_rows.dropna(subset="role").sort_values("x")
    plotted_rows["x"] += shift * (plotted_rows["x"] > 0)
    return plotted_rows


def _draw_filler_line(axes: Axes, plotted_rows: pandas.DataFrame, style: Style, name: str) -> None:
    """The line of one filler, with interval and mark at each length but that of the baseline.

    The last, empty line is the entry of the legend: it has both the line and the mark.
    """
    colour = style.colour
    line_options: dict[str, Any] = {"color": colour, "linestyle": style.dashes, "linewidth": 1}
    axes.plot(plotted_rows["x"], plotted_rows["difference"], **line_options)
    contrasts = plotted_rows[plotted_rows["role"] != "baseline"]
    axes.vlines(contrasts["x"], contrasts["low"], contrasts["high"], color=colour, linewidth=0.9)
    face_colours = np.where(contrasts["verdict"].isin(SIGNIFICANT_VERDICTS), colour, "white")
    axes.scatter(
        contrasts["x"],
        contrasts["difference"],
        s=(0.6 * FONT_POINTS) ** 2,  # the area in square points
        c=face_colours,
        marker=style.marker,
        edgecolors=colour,
        zorder=2,
    )
    axes.plot([], [], marker=style.marker, label=name, **line_options)
