"""Figures of attention curves, rows times heads as in the study, with accuracy bars beside them where asked for.

What qualifies the numbers is drawn with them: the definition and what is left out on the axes, stamps above each panel
(selected on outcome, reference numbers), counts and bands in the note below.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_probe.analysis.average_curves import average_curves, chosen_problems, shared_problems
from attention_probe.figures.figure_config import BarsConfig, FigureConfig, Limits, Panel
from attention_probe.traces import AttentionTraces
from harness.analysis.count_correct import accuracy_table
from harness.analysis.published_numbers import read_reference
from harness.display.figures import figure_style
from harness.display.figures.figure_style import FONT, INCHES, LETTER
from harness.display.figures.lines import draw_curve
from harness.display.format_values import label, visible
from harness.experiment.conditions import contrast_name
from harness.runs.samples_frame import load_run

PANELS_ACROSS = 3
"""Panels in a line of a figure of attention curves."""

BARS = ("wo", "mless", "mful")
"""Conditions whose accuracies are shown as bars, as in the study."""
QUERIES = {
    "common": "common queries",
    "published": "published definition",
    "completion": "queries of the answer",
}
EXPLAINED = {
    "common": "Common queries: each token's mean attention from later tokens of the prompt without filler.",
    "published": "Published definition: each token's mean attention from all later tokens, inserted ones too.",
    "completion": "Mean attention that each token gets from the tokens of the recorded completion.",
}


def read_curves(
    panels: Sequence[Panel], config: FigureConfig, traces: AttentionTraces
) -> pandas.DataFrame:
    """The curves of panels of one model, one row per point, every condition of a panel over the same problems.

    Rows of the kind `control` are the curves of matched problems that did not flip; they are never averaged with the
    problems chosen.

    Args:
        panels: Each with its layer, head, conditions and view.
        config: The figure.
        traces: Of the panels' model. The first token is left out of Llama's and Gemma's curves unless the config says.

    Raises:
        ConfigError: the traces lack the layer, the head or a condition, or no problem has all conditions.
    """
    tables = []
    for (row, layer), group in itertools.groupby(
        panels, lambda panel: (panel.row, panel.head.layer)
    ):
        same = list(group)  # every trace is read once for all of them
        shows, subtracted = same[0].shows, same[0].shows.subtracted
        conditions = [*shows.series, *([subtracted] if subtracted else [])]
        problems = {"curve": chosen_problems(traces, conditions)}
        matched = [
            name
            for name in shared_problems(traces, conditions)
            if name not in set(problems["curve"])
        ]
        if matched:
            problems["control"] = matched
        legends = {
            contrast_name(condition, subtracted) if subtracted else condition: same[0].name(
                condition
            )
            for condition in shows.series
        }
        for kind, problem_ids in problems.items():
            curves = average_curves(
                traces,
                conditions=shows.series,
                layer=layer,
                heads=list(dict.fromkeys(panel.head.head for panel in same)),
                problem_ids=problem_ids,
                view="full" if shows.view == "full" else "aligned",
                baseline=subtracted,
                definition=config.definition,
                exclude_first=config.exclude_first_token,
            )
            curves = curves.assign(row=row, kind=kind, on_outcome=traces.header.on_outcome)
            curves = curves.assign(
                legend=curves["condition"].map(legends), model=same[0].head.model
            )
            for panel in same:
                points = curves[curves["head"] == panel.head.head]
                tables.append(points.assign(panel=panel.title, column=panel.column))
    return pandas.concat(tables, ignore_index=True)


def read_bars(config: BarsConfig) -> pandas.DataFrame:
    """The accuracies that a figure's bars show: rows as of `count_correct.accuracy_table`.

    The column `reference` names the source of published numbers; it is missing where measured runs are shown.

    Raises:
        ConfigError: the reference file is missing or not of the form that results/reference/ has.
        RunError: a run is missing or unfinished.
    """
    if config.reference is None:
        table = accuracy_table(pandas.concat([load_run(run) for run in config.runs])).assign(
            reference=None
        )
    else:
        published = read_reference(str(config.reference))
        rows = [
            {"model": entry.model, "condition": condition, "accuracy": accuracy}
            for entry in published.accuracies
            for condition, accuracy in entry.conditions.items()
        ]
        unknown = {"accuracy_low": np.nan, "accuracy_high": np.nan, "problems": 0}
        table = pandas.DataFrame(rows).assign(**unknown, reference=published.source)
    return pandas.concat([table[table["condition"] == name] for name in BARS], ignore_index=True)


def figure_table(
    config: FigureConfig, curves: pandas.DataFrame, bars: pandas.DataFrame | None
) -> pandas.DataFrame:
    """Every number that the figure shows, one row per point; layers and heads count from 1.

    Args:
        config: The figure.
        curves: From `read_curves`, of all panels.
        bars: From `read_bars`.
    """
    tables = [curves]
    if bars is not None and config.bars is not None:
        names = {
            "accuracy": "mean",
            "accuracy_low": "low",
            "accuracy_high": "high",
            "problems": "count",
            "reference": "note",
        }
        shown = bars[["model", "condition", *names]].rename(columns=names)
        kinds = shown["note"].isna().map({True: "bar", False: "reference bar"})
        legends = shown["condition"].map(label)
        tables.append(
            shown.assign(kind=kinds, panel=config.bars.title, legend=legends, unit="percent")
        )
    return pandas.concat(tables, ignore_index=True).assign(figure=config.name)


def draw_figure(
    config: FigureConfig,
    curves: pandas.DataFrame,
    bars: pandas.DataFrame | None = None,
    *,
    note: bool = True,
) -> Figure:
    """The figure: rows times heads as in the study, PANELS_ACROSS in a line.

    Args:
        config: Titles, legends, limits, regions.
        curves: The points of all panels, from `read_curves`.
        bars: Accuracies for the config's bars, from `read_bars`.
        note: Whether what `explain_figure` says stands below.
    """
    panels, beside = config.panels, int(config.bars is not None)
    across, down = (
        min(len(config.heads), PANELS_ACROSS),
        math.ceil(len(config.heads) / PANELS_ACROSS),
    )
    named = {(panel.name(one), look) for panel in panels for one, look in panel.looks.items()}
    one_legend = not beside and len(named) == len(dict(named))
    height = 0.7 + (1.75 if down == 1 else 1.4) * down * len(config.rows)
    said = " ".join(explain_figure(config, curves, bars)) if note else ""
    with figure_style.drawing(height, said, legend=one_legend, title=config.title) as figure:
        grid = figure.add_gridspec(
            down * len(config.rows),
            across + beside,
            width_ratios=[*[across] * beside, *[1] * across],
        )
        above = 0 if one_legend else 1.6 * FONT
        for panel in panels:
            line, place = divmod(panel.column, PANELS_ACROSS)
            axes = figure.add_subplot(grid[panel.row * down + line, place + beside])
            points = points_of(panel, curves)
            _draw_panel(axes, panel, points)
            row = curves[(curves["row"] == panel.row) & (curves["kind"] == "curve")]
            _scale(axes, panel, row, points)
            _label_axes(axes, panel, config, points)
            stamp(axes, panel.title.replace(" Layer ", "\nLayer "), points, above=above)
            if panel.column == 0 and not one_legend:
                _add_legend(axes)
        if config.bars is not None and bars is not None:
            axes = figure.add_subplot(grid[:, 0])
            _draw_bars(axes, bars, config.bars.y_limits)
            stamp(axes, visible(config.bars.title, keep=""), bars, above=above)
            _add_legend(axes)
    return figure


def points_of(panel: Panel, curves: pandas.DataFrame) -> pandas.DataFrame:
    """The points of one panel."""
    return curves[(curves["row"] == panel.row) & (curves["column"] == panel.column)]


def _add_legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2).set_in_layout(
        False
    )


def _draw_panel(axes: Axes, panel: Panel, points: pandas.DataFrame) -> None:
    """The region of the inserted tokens, the curves, and those of controls."""
    shows = panel.shows
    inserted = points["x"][points["in_filler"] & (points["kind"] == "curve")]
    if len(inserted):
        start, stop = inserted.min() - 0.5, inserted.max() + 0.5
        shown = np.unique(inserted)
        for run in np.split(shown, np.flatnonzero(np.diff(shown) > 1) + 1):
            axes.axvspan(run[0] - 0.5, run[-1] + 0.5, color="#dedede", linewidth=0, zorder=0)
        place: Any = {"ha": "center", "va": "top", "fontstyle": "italic", "color": "#444444"}
        word = shows.region.replace(" ", "\n")
        axes.text((start + stop) / 2, 0.97, word, transform=axes.get_xaxis_transform(), **place)
    if shows.subtracted:
        axes.axhline(0, color=figure_style.MUTED, linewidth=0.6, zorder=0)
    dashed: Any = {"linewidth": 0.6, "linestyle": (0, (3, 1.5))}
    for place, (condition, look) in enumerate(panel.looks.items()):
        name = contrast_name(condition, shows.subtracted) if shows.subtracted else condition
        mine = points[points["condition"] == name]
        line = mine[mine["kind"] == "curve"]
        # later lines are drawn over earlier ones: thinner, so that a line still shows where both are the same
        thickness = 0.8 + (0.5 if panel.limits else 0.2) * (len(panel.looks) - 1 - place)
        marks: Any = {
            "marker": look.marker,
            "markevery": (3 + 4 * place, 12),
            "markersize": 2.5 if panel.limits else 0,
        }
        draw_curve(axes, line, look, panel.name(condition), linewidth=thickness, **marks)
        control = mine[(mine["kind"] == "control") & (2 * mine["count"] >= mine["prompts"])]
        if len(control):
            axes.plot(control["x"], control["mean"], color=look.colour, label="_control", **dashed)
    if (points["kind"] == "control").any():
        axes.plot([], [], color=figure_style.MUTED, label="not flipped (controls)", **dashed)
    axes.set_xlim(*(panel.limits or (0, points["x"].max())))
    axes.spines[["top", "right"]].set_visible(False)


def _scale(axes: Axes, panel: Panel, row: pandas.DataFrame, points: pandas.DataFrame) -> None:
    """The config's ends of the axis, or one scale for a row of panels, with room for the region's name.

    Panels that fill several lines have scales of their own.
    """
    wrapped = row["column"].max() >= PANELS_ACROSS
    shown = row if not wrapped else points[points["kind"] == "curve"]
    shown = shown[shown["x"].between(*axes.get_xlim())]
    low = float(np.nanmin(shown[["mean", "low"]])) if panel.shows.subtracted else 0.0
    high = float(np.nanmax(shown[["mean", "high"]]))
    span = (high - low) or 1.0
    below = 0.05 if low else 0.0
    above = 0.3 if shown["in_filler"].any() else 0.05
    axes.set_ylim(panel.y_limits or (low - below * span, high + above * span))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    if panel.column and not wrapped and len(panel.shows.y_limits) < 2:
        axes.tick_params(labelleft=False)


def _label_axes(axes: Axes, panel: Panel, config: FigureConfig, points: pandas.DataFrame) -> None:
    """What x and y are, and what is left out; what one panel of a row says of y is not said again."""
    left_out = [] if panel.shows.view == "full" else ["filler"]
    left_out += ["first token"] if points["first_token_excluded"].any() else []
    if panel.column + PANELS_ACROSS >= len(config.heads):
        axes.set_xlabel(
            "Token position" + (f"\n({' and '.join(left_out)} left out)" if left_out else "")
        )
    lines = (len(config.heads) - 1) // PANELS_ACROSS
    if panel.column == lines // 2 * PANELS_ACROSS:  # of several lines the middle one
        subtracted = panel.shows.subtracted
        quantity = f"Difference from {label(subtracted)}" if subtracted else config.y_label
        axes.set_ylabel(f"{quantity}\n({QUERIES[points['definition'].iloc[0]]})")


def stamp(axes: Axes, title: str, table: pandas.DataFrame, *, above: float = 0) -> None:
    """The title, and under it in red what a reader must be told first, so many points above the axes.

    Args:
        axes: What to draw on.
        title: The panel's.
        table: What the panel shows. Its columns `on_outcome` and `reference` say whether there is a stamp.
        above: Points between the axes and the stamp.
    """
    words = {
        "on_outcome": "selected on outcome",
        "reference": "reference numbers",
    }  # no table has both
    stamps = [said for column, said in words.items() if column in table and table[column].any()]
    axes.set_title(title, pad=3 + above + len(stamps) * (FONT + 0.5))
    for said in stamps:
        look: Any = {
            "ha": "center",
            "fontsize": FONT - 0.5,
            "fontweight": "bold",
            "color": "#b00020",
        }
        axes.annotate(said, (0.5, 1), (0, 2 + above), "axes fraction", "offset points", **look)


def draw_groups(
    axes: Axes, condition: str, place: float, values: Any, colour: str, **more: Any
) -> BarContainer:
    """A condition's bars, one in each group, so far from the middle of the groups.

    Args:
        axes: What to draw on.
        condition: Its name.
        place: From the middle of a group.
        values: Mean, low and high, [3, group]; NaN where there is none.
        colour: Of the bars.
        more: Further settings of the bars.
    """
    mean, low, high = np.asarray(values, dtype=float)
    reach = None if np.isnan(low).all() else [list(mean - low), list(high - mean)]
    lines = {"elinewidth": 0.9, "ecolor": figure_style.INK, "capsize": 2}
    where = np.arange(len(mean)) + place
    return axes.bar(
        where,
        mean,
        yerr=reach,
        color=colour,
        label=figure_style.short_label(condition),
        error_kw=lines,
        **more,
    )


def _draw_bars(axes: Axes, table: pandas.DataFrame, limits: Limits) -> None:
    """A group of bars for each model. Published accuracies have no interval, and are shown as given."""
    models, measured = list(dict.fromkeys(table["model"])), not table["reference"].any()
    for place, condition in enumerate(BARS, start=-1):
        rows = table[table["condition"] == condition].set_index("model").reindex(models)
        values = rows[["accuracy", "accuracy_low", "accuracy_high"]].T
        bars = draw_groups(
            axes, condition, 0.27 * place, values, figure_style.LOOKS[condition].colour, width=0.25
        )
        axes.bar_label(bars, fmt="{:.1f}" if measured else "{:g}", padding=1, fontsize=FONT - 1.5)
    axes.set_ylim(limits)
    letters = int(28 * INCHES / (LETTER * FONT) / len(models))
    axes.set_xticks(
        range(len(models)), [textwrap.fill(visible(name, keep=""), letters) for name in models]
    )
    interval = ", 95 % score interval" if measured else ""
    axes.set_ylabel(f"Accuracy (%){interval}\naxis starts at {limits[0]:g}")
    figure_style.tidy(axes, grid="y")


def explain_figure(
    config: FigureConfig, curves: pandas.DataFrame, bars: pandas.DataFrame | None = None
) -> Iterator[str]:
    """What the numbers stand on, and what every mark means that is drawn, in sentences."""
    drawn = curves[curves["kind"] == "curve"]
    counts = ", ".join(map(str, drawn.groupby(["row", "column"])["prompts"].max().unique()))
    yield f"n = {counts} prompts a panel."
    parts = [(panel, points_of(panel, drawn)) for panel in config.panels]
    seen = pandas.concat(
        points[points["x"].between(*(panel.limits or (0, np.inf)))] for panel, points in parts
    )
    if seen["low"].notna().any():
        together = (
            ", those of one problem drawn together"
            if (seen["clusters"] < seen["prompts"]).any()
            else ""
        )
        yield f"Bands: 95 % bootstrap intervals over prompts{together}."
    if (2 * seen["count"] < seen["prompts"]).any():
        yield "Dotted, without band: fewer than half reach so far."
    if any(panel.y_limits and points["mean"].max() > panel.y_limits[1] for panel, points in parts):
        yield "Axes with fixed ends cut off what lies above."
    if drawn["on_outcome"].any():
        yield "Selected on outcome" + (
            f": {config.prompts.flip.replace('_', ' ')}." if config.prompts.flip else "."
        )
    if (curves["kind"] == "control").any():
        yield "Dashed: matched, not flipped."
    yield from (f"{note[0].upper()}{note[1:]}." for note in curves["note"].dropna().unique())
    yield EXPLAINED[drawn["definition"].iloc[0]]
    if bars is not None:
        source = bars["reference"].iloc[0] or f"{bars['problems'].min()} problems"
        yield f"Bars: {source}."
    if config.note:
        yield config.note
