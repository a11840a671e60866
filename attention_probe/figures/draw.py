"""Draws a figure of curves as its config says.

Nothing here computes: what is drawn comes in as `Curve`s and a table of accuracies. Everything that qualifies the
numbers is drawn with them: the definition and what is left out on the axes, the stamps above each panel
(selected on outcome, reference numbers), counts and bands in the note below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_probe.figures.bars import plot_accuracy_bars
from attention_probe.figures.config import FigureConfig
from attention_probe.figures.layout import Drawn, add_legends, lay_out, make_room
from harness.constants import GLYPH
from harness.display.figures.style import FONT, MUTED, add_note, styled
from harness.display.words import label, plural
from harness.errors import ConfigError

DEFINITIONS = {"common": "common queries", "published": "published definition"}
"""What the axis calls the two averages."""

_EXPLAINED = {
    "common": "Common queries: each token's mean attention from later tokens of the prompt without filler.",
    "published": "Published definition: each token's mean attention from all later tokens, inserted ones too.",
}
_TIGHT = {
    "axes.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "axes.labelpad": 2,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1.2,
    "legend.handletextpad": 0.4,
    "legend.labelspacing": 0.2,
}
"""Less room for the text of panels that are smaller than other figures."""
STAMPS = {"on_outcome": "selected on outcome"}
"""What stands in red above a panel, by the column that says whether it does."""


def draw_figure(
    config: FigureConfig,
    curves: pandas.DataFrame,
    *,
    bars: pandas.DataFrame | None = None,
) -> Figure:
    """The figure: rows times heads, as in the study.

    Args:
        config: Titles, legends, limits, regions.
        curves: The points of all panels, from `data.read_curves`.
        bars: Accuracies for the config's bars, from `data.read_bars`.

    Raises:
        ConfigError: panels or bars of the config are missing from what is drawn.
    """
    points = dict(list(curves.groupby(["row", "column"])))
    if len(points) != len(config.panels) or (config.bars is None) != (bars is None):
        raise ConfigError(
            f"Figure {config.name}: expected {len(config.panels)} panels{' and bars' if config.bars else ''}, "
            f"got {len(points)}{' and bars' if bars is not None else ''}. Measure what the config names."
        )
    size = FONT - 0.5
    with styled(size, **_TIGHT):
        figure = Figure(layout="constrained")
        axes, bar_axes = lay_out(figure, config)
        panels = [
            Drawn(one, panel, points[panel.row, panel.column]) for one, panel in zip(axes, config.panels, strict=True)
        ]
        for drawn in panels:
            _draw_panel(drawn)
        _scale(panels)
        above = add_legends(figure, panels)
        for drawn in panels:
            stamps = [stamp for column, stamp in STAMPS.items() if drawn.points[column].any()]
            stamp(drawn.axes, drawn.panel.title, stamps, size, above=above)
        _label_axes(panels, config, figure.get_figwidth() * 72 / (GLYPH * size))
        if bars is not None and config.bars is not None and bar_axes is not None:
            plot_accuracy_bars(
                bar_axes, bars, title=config.bars.title, y_limits=config.bars.y_limits, font_size=size - 1
            )
            stamps = ["reference numbers"] if bars["reference"].any() else []
            stamp(bar_axes, config.bars.title, stamps, size, above=1.35 * size)
            bar_axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3).set_in_layout(False)
            bar_axes.tick_params(axis="x", labelsize=size - 1)
        add_note(figure, " ".join(_sentences(config, panels, bars)), size)
        make_room(figure, panels)
    return figure


def _draw_panel(drawn: Drawn) -> None:
    """Its lines: solid, with their band, where at least half of the prompts reach; dotted where fewer do."""
    axes, shows = drawn.axes, drawn.panel.shows
    if drawn.region is not None:
        axes.axvspan(*drawn.region, color="#dedede", linewidth=0, zorder=0)
    if shows.subtracted:
        axes.axhline(0, color=MUTED, linewidth=0.6, zorder=0)
    for place, condition in enumerate(shows.series):
        look, line = drawn.panel.looks[condition], drawn.line(condition)
        reached = 2 * line["count"] >= line["prompts"]
        # later lines are drawn over earlier ones: thinner, so that a line still shows where both are the same
        thickness = 0.8 + 0.5 * (len(shows.series) - 1 - place)
        axes.plot(
            line.index,
            line["mean"],
            color=look.colour,
            linewidth=0.5,
            linestyle=":",
            label=f"_{drawn.panel.name(condition)}",
        )
        axes.plot(
            line.index,
            line["mean"].where(reached),
            color=look.colour,
            linewidth=thickness,
            marker=look.marker,
            markevery=(3 + 4 * place, 12),
            markersize=2.5,
            label=drawn.panel.name(condition),
        )
        shade: Any = {"color": look.colour, "where": reached, "linewidth": 0}
        if shows.fill:
            axes.fill_between(line.index, 0, line["mean"], alpha=0.12, **shade)
        axes.fill_between(line.index, line["low"], line["high"], alpha=0.22, **shade)
    if len(drawn.controls):
        dashed: Any = {"linewidth": 0.6, "linestyle": (0, (3, 1.5))}
        for condition in shows.series:
            line = drawn.line(condition, "control")
            reached = line["mean"].where(2 * line["count"] >= line["prompts"])
            axes.plot(line.index, reached, color=drawn.panel.looks[condition].colour, label="_control", **dashed)
        axes.plot([], [], color=MUTED, label="not flipped (controls)", **dashed)
    axes.set_xlim(*shows.limits)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(panels: Sequence[Drawn]) -> None:
    """One scale a row, with room for the region's name, unless the config has each panel's."""
    for drawn in panels:
        row = [other for other in panels if other.panel.row == drawn.panel.row]
        low, high = min(other.reach[0] for other in row), max(other.reach[1] for other in row)
        room = 0.05 + 0.25 * any(other.region is not None for other in row)
        span = (high - low) or 1.0
        drawn.axes.set_ylim(drawn.panel.y_limits or (low and low - 0.05 * span, high + room * span))
        if drawn.panel.column and len({other.panel.y_limits for other in row}) == 1:
            drawn.axes.tick_params(labelleft=False)


def _label_axes(panels: Sequence[Drawn], config: FigureConfig, letters: float) -> None:
    """Axis labels of a figure that is so many letters wide; what a panel to the left says is not said again."""
    said = set()
    for drawn in sorted(panels, key=lambda drawn: drawn.place.colspan.start):
        axes, place, shows = drawn.axes, drawn.place, drawn.panel.shows
        room = int(letters / place.get_gridspec().ncols)
        left_out = [] if shows.view == "full" else ["filler"]
        left_out += ["first token"] if drawn.points["first_token_excluded"].any() else []
        words = ["Token position", *([f"({' and '.join(left_out)} left out)"] if left_out else [])]
        axes.set_xlabel((" " if len(" ".join(words)) < 0.8 * room else "\n").join(words))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if room > 38 else 3, steps=[1, 2, 4, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        quantity = f"Difference from {label(shows.subtracted)}" if shows.subtracted else config.y_label
        text = f"{quantity}\n({DEFINITIONS[drawn.panel.definition]})"
        if (place.rowspan.start, text) not in said:
            axes.set_ylabel(text)
        said.add((place.rowspan.start, text))


def stamp(axes: Axes, title: str, stamps: Sequence[str], size: float, *, above: float = 0) -> None:
    """The title, and under it the stamps, so many points above the axes."""
    axes.set_title(title, pad=3 + above + len(stamps) * (size + 0.5))
    if stamps:
        axes.annotate(
            "\n".join(stamps),
            (0.5, 1),
            xycoords="axes fraction",
            xytext=(0, 2 + above),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=size - 0.5,
            fontweight="bold",
            color="#b00020",
            linespacing=1.0,
        )


def _sentences(config: FigureConfig, panels: Sequence[Drawn], bars: pandas.DataFrame | None) -> Iterator[str]:
    """What the numbers stand on."""
    counts = [drawn.curves["prompts"].max() for drawn in panels]
    if len(set(counts)) > 1:
        yield f"n = {', '.join(map(str, counts))} prompts (panels row by row)."
    elif counts[0] == 1:
        yield f"One prompt: {', '.join(dict.fromkeys(drawn.curves['problem'].iloc[0] for drawn in panels))}."
    else:
        yield f"n = {counts[0]} prompts a panel."
    shown = pandas.concat([drawn.shown for drawn in panels])
    if (2 * shown["count"] < shown["prompts"]).any():
        yield "Dotted, without band: positions that fewer than half of the prompts reach."
    cut = [drawn.reach[1] for drawn in panels if drawn.panel.y_limits and drawn.reach[1] > drawn.panel.y_limits[1]]
    if cut:
        yield f"Cut off above the axis: values and bands up to {max(cut):.2g}."
    if max(counts) > 1:
        yield "Bands: 95 % bootstrap intervals over prompts."
    for flip in dict.fromkeys(drawn.panel.prompts.flip for drawn in panels):
        if flip:
            yield f"Selected on outcome: {flip.replace('_', ' ')}."
    if controls := [drawn.controls["prompts"].max() for drawn in panels if len(drawn.controls)]:
        yield f"Dashed: {min(controls)} matched {plural('problem', min(controls))} that did not flip."
    told = [note for drawn in panels for note in drawn.points["note"].dropna().unique()]
    yield from (f"{note[0].upper()}{note[1:]}." for note in dict.fromkeys(told))
    yield from (_EXPLAINED[definition] for definition in dict.fromkeys(drawn.panel.definition for drawn in panels))
    if bars is not None:
        fewest, most = bars["n"].min(), bars["n"].max()
        problems = f"{fewest} problems" if fewest == most else f"{fewest} to {most} problems"
        yield f"Bars: {bars['reference'].iloc[0] or problems}."
    if config.note:
        yield config.note
