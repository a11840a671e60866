"""Figures of attention curves, rows times heads as in the study, optionally with accuracy bars.

What qualifies the numbers is drawn with them: the definition and what is left out on the axes,
warnings above each panel (selected on outcome, published numbers), counts and bands in the note.
"""

import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_probe.figures.figure_config import FigureConfig, Limits, Panel
from attention_probe.figures.figure_numbers import BAR_CONDITIONS
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FIGURE_WIDTH_INCHES, FONT_POINTS, LETTER_WIDTH
from harness.display.value_texts import visible

QUERIES_BY_DEFINITION = {
    "common": "common queries",
    "published": "published definition",
}
"""The queries whose attention is averaged under each definition, as an axis names them."""
EXPLANATION_BY_DEFINITION = {
    "common": "Common queries: each token's mean attention from later tokens of the prompt "
    "without filler.",
    "published": "Published definition: each token's mean attention from all later tokens, "
    "inserted ones too.",
}
"""The sentence that explains each definition below a figure."""


def draw_figure(
    config: FigureConfig, curves: pandas.DataFrame, bars: pandas.DataFrame | None = None
) -> Figure:
    """Draw the figure: rows times heads as in the study, below the bars if there are any.

    Args:
        config: Titles, legends, limits, regions.
        curves: The points of all panels, from `read_curves`.
        bars: Accuracies for the config's bars, from `read_bars`.
    """
    # if there are bars, they take the first row of the figure
    bar_row_count = int(bars is not None)
    row_count = bar_row_count + len(config.rows)
    with figure_style.drawing(
        # the height in inches, of which each row takes 1.5
        0.7 + 1.5 * row_count,
        " ".join(_explain_figure(config, curves, bars)),
        title=config.title,
    ) as figure:
        grid = figure.add_gridspec(row_count, len(config.heads))
        for panel in config.panels:
            panel_points = select_points(panel, curves)
            axes = figure.add_subplot(grid[bar_row_count + panel.row_index, panel.column_index])
            _draw_panel(axes, panel, panel_points)
            _scale_axes(axes, panel, panel_points)
            _label_axes(axes, panel, config, panel_points)
            _shade_region(axes, panel, panel_points)
            warning = "selected on outcome" if panel_points["on_outcome"].any() else ""
            write_title(axes, panel.title.replace(" Layer ", "\nLayer "), warning)
        if config.bars and bars is not None:
            axes = figure.add_subplot(grid[0, :])
            _draw_bars(axes, bars, config.bars.y_limits)
            warning = "" if (bars["kind"] == "bar").all() else "published numbers"
            write_title(axes, visible(config.bars.title), warning)
    return figure


def select_points(panel: Panel, curves: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of `curves` that a panel draws."""
    return curves[(curves["row"] == panel.row_index) & (curves["column"] == panel.column_index)]


def _draw_panel(axes: Axes, panel: Panel, panel_points: pandas.DataFrame) -> None:
    """Draw the mean and the band of each condition.

    Where fewer than half of the prompts reach, the mean is dotted and has no band.
    """
    # Later lines cover earlier ones. They are thinner, so that both show where they are equal.
    width_step = 0.5 if panel.x_limits else 0.2
    conditions = panel.row_config.series
    for line_index, condition in enumerate(conditions):
        style = panel.style_by_condition[condition]
        curve = panel_points[panel_points["condition"] == condition].set_index("x")
        # a row with NaN for each missing position, because matplotlib breaks a line only at NaN
        curve = curve.reindex(range(curve.index[0], curve.index[-1] + 1))
        is_reached = _is_reached(curve)
        x = curve.index
        mean = curve["mean"]
        colour = style.colour
        line_name = panel.line_name(condition)
        # the dotted line runs below the solid one; a name that begins with "_" is not in the legend
        axes.plot(x, mean, color=colour, linewidth=0.5, linestyle=":", label=f"_{line_name}")
        axes.plot(
            x,
            mean.where(is_reached),
            color=colour,
            label=line_name,
            linewidth=0.8 + width_step * (len(conditions) - 1 - line_index),
            marker=style.marker,
            # shifted, so that the markers of equal curves do not cover each other
            markevery=(3 + 4 * line_index, 12),
            markersize=2.5 if panel.x_limits else 0,
        )
        axes.fill_between(
            x, curve["low"], curve["high"], where=is_reached, color=colour, alpha=0.2, linewidth=0
        )
    axes.spines[["top", "right"]].set_visible(False)


def _is_reached(points: pandas.DataFrame) -> Any:
    """Whether at least half of the prompts have a token there: one value for each point."""
    return 2 * points["count"] >= points["prompts"]


def _shade_region(axes: Axes, panel: Panel, panel_points: pandas.DataFrame) -> None:
    """Shade the positions of the inserted tokens, if the prompt is shown with them."""
    # there are none in a view that leaves the filler out
    positions = np.unique(panel_points["x"][panel_points["in_filler"]])
    # a filler in several parts has a region for each run of consecutive positions
    for consecutive_positions in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1):
        if len(consecutive_positions):
            axes.axvspan(
                # a token at x takes the space from x - 0.5 to x + 0.5
                consecutive_positions[0] - 0.5,
                consecutive_positions[-1] + 0.5,
                color="#dedede",
                linewidth=0,
                zorder=0,
                label=panel.row_config.region,
            )


def _scale_axes(axes: Axes, panel: Panel, panel_points: pandas.DataFrame) -> None:
    """Set the ends of the axes: those of the config, or else so that all solid lines fit.

    Heads differ too much for one scale: the lines of most would lie on the axis.
    """
    axes.set_xlim(panel.x_limits or (0, panel_points["x"].max()))
    is_solid = panel_points["x"].between(*axes.get_xlim()) & _is_reached(panel_points)
    solid_points = panel_points[is_solid]
    # an axis needs a positive end, even if all values are 0
    highest_value = float(np.nanmax(solid_points[["mean", "high"]])) or 1.0
    axes.set_ylim(panel.y_limits or (0, 1.05 * highest_value))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    # panels of a row with the same axis share the numbers of the first panel
    if panel.column_index and len(panel.row_config.y_limits) == 1:
        axes.tick_params(labelleft=False)


def _label_axes(
    axes: Axes, panel: Panel, config: FigureConfig, panel_points: pandas.DataFrame
) -> None:
    """Write the quantities of the axes, and what is left out. The first column names that of y."""
    left_out_names = [] if panel.row_config.view == "full" else ["filler"]
    if panel_points["first_token_excluded"].any():
        left_out_names.append("first token")
    remark = f"({' and '.join(left_out_names)} left out)" if left_out_names else ""
    axes.set_xlabel(f"Token position\n{textwrap.fill(remark, 18)}".rstrip())
    if panel.column_index == 0:
        axes.set_ylabel(f"{config.y_label}\n({QUERIES_BY_DEFINITION[config.definition]})")


def write_title(axes: Axes, title: str, warning: str) -> None:
    """Write the panel's title, and under it in red a warning that a reader must see first."""
    # the title is lifted by one line if there is a warning below it
    axes.set_title(title, pad=3 + bool(warning) * (FONT_POINTS + 0.5))
    if warning:
        axes.annotate(
            warning,
            (0.5, 1),
            (0, 2),
            "axes fraction",
            "offset points",
            ha="center",
            color="#b00020",
        )


def _draw_bars(axes: Axes, bars: pandas.DataFrame, y_limits: Limits) -> None:
    """Draw a group of bars for each model, at the x of the model's index.

    Published accuracies have no interval and are not rounded.
    """
    models = bars["model"].unique()
    is_measured = (bars["kind"] == "bar").all()
    # The second of a model's three bars stands at the index, so the bars are counted from -1. A bar
    # is 0.25 wide, and the distance of two bars is 0.27.
    for bar_position, condition in enumerate(BAR_CONDITIONS, start=-1):
        rows = bars[bars["condition"] == condition].set_index("model").reindex(models)
        mean, low, high = rows[["mean", "low", "high"]].to_numpy(dtype=np.float64).T
        model_bars = axes.bar(
            np.arange(len(models)) + 0.27 * bar_position,
            mean,
            0.25,
            # lists, because NumPy deprecates how matplotlib reads arrays of a single bar
            yerr=[list(mean - low), list(high - mean)] if is_measured else None,
            color=figure_style.STYLES[condition].colour,
            label=figure_style.wrapped_label(condition),
            error_kw={"elinewidth": 0.9, "ecolor": figure_style.INK, "capsize": 2},
        )
        axes.bar_label(model_bars, fmt="{:.1f}" if is_measured else "{:g}", padding=1)
    axes.set_ylim(y_limits)
    # The name of a model is wrapped to the width of its bars: points divided by those of a letter.
    # All bars together take four fifths of the figure's width, and an inch has 72 points.
    letters_per_line = int(
        0.8 * 72 * FIGURE_WIDTH_INCHES / (LETTER_WIDTH * FONT_POINTS) / len(models)
    )
    wrapped_names = [textwrap.fill(visible(name), letters_per_line) for name in models]
    axes.set_xticks(range(len(models)), wrapped_names)
    interval_text = "\n95 % score interval" if is_measured else ""
    axes.set_ylabel(f"Accuracy (%){interval_text}\naxis starts at {y_limits[0]:g}")
    figure_style.tidy(axes, grid="y")


def _explain_figure(
    config: FigureConfig, curves: pandas.DataFrame, bars: pandas.DataFrame | None
) -> Iterator[str]:
    """Sentences on the number of prompts, and on the meaning of every mark in the figure."""
    prompt_counts = curves.groupby(["row", "column"])["prompts"].max().unique()
    yield f"n = {', '.join(map(str, prompt_counts))} prompts a panel."
    yield from _explain_lines(config, curves)
    if curves["on_outcome"].any():
        flip = config.prompts.flip
        yield f"Selected on outcome: {flip.replace('_', ' ')}." if flip else "Selected on outcome."
    for note in curves["note"].dropna().unique():
        yield f"{note[0].upper()}{note[1:]}."
    yield EXPLANATION_BY_DEFINITION[config.definition]
    if bars is not None:
        problem_count = bars["count"].min()
        yield f"Bars: {problem_count} problems." if problem_count else "Bars: published numbers."
    if config.note:
        yield config.note


def _explain_lines(config: FigureConfig, curves: pandas.DataFrame) -> Iterator[str]:
    """Sentences on bands, dotted lines and lines that are cut off, if there are any."""
    panels_and_points = [(panel, select_points(panel, curves)) for panel in config.panels]
    # what lies beyond the ends of x is not drawn, and so not explained
    visible_points = pandas.concat(
        panel_points[panel_points["x"].between(*(panel.x_limits or (0, np.inf)))]
        for panel, panel_points in panels_and_points
    )
    if visible_points["low"].notna().any():
        has_clusters = (visible_points["clusters"] < visible_points["prompts"]).any()
        cluster_remark = ", those of one problem drawn together" if has_clusters else ""
        yield f"Bands: 95 % bootstrap intervals over prompts{cluster_remark}."
    if not _is_reached(visible_points).all():
        yield "Dotted, without band, perhaps off the axis: fewer than half reach so far."
    if any(
        panel.y_limits and panel_points["mean"].max() > panel.y_limits[1]
        for panel, panel_points in panels_and_points
    ):
        yield "Axes with fixed ends cut off what lies above."
