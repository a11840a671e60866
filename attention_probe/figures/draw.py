"""Draws a figure of curves as its config says, at the width of a column or a page.

Nothing here computes: what is drawn comes in as `Curve`s and a table of accuracies. Everything that qualifies the
numbers is drawn with them: the definition and what is left out on the axes, the stamps above each panel (random
weights, selected on outcome, reference numbers), counts and bands in the note below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_probe.figures.bars import plot_accuracy_bars
from attention_probe.figures.config import FigureConfig
from attention_probe.figures.layout import Drawn, lay_out, make_room
from harness.choices import Width
from harness.display.figures.style import FONT, MUTED, add_note, styled
from harness.display.words import plural
from harness.errors import ConfigError

COLOURS = {"blue": "#0072b2", "red": "#d55e00", "green": "#009e73", "orange": "#e69f00"}
"""The seeds' colours, in hues that the colour-blind tell apart (Okabe and Ito)."""

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
    "legend.borderpad": 0.2,
    "legend.handlelength": 1.2,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.0,
    "legend.labelspacing": 0.2,
}
"""Less room for the text of panels that are smaller than other figures."""
STAMPS = {"random_weights": "random weights", "on_outcome": "selected on outcome"}
"""What stands in red above a panel, by the column that says whether it does."""
_GLYPH = 0.56
"""Width of an average letter, in font sizes."""


def draw_figure(
    config: FigureConfig,
    curves: pandas.DataFrame,
    *,
    width: Width = "page",
    bars: pandas.DataFrame | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """The figure: rows times heads as in the study at page width, turned to fit a column at column width.

    Args:
        config: Titles, legends, limits, regions.
        curves: The points of all panels, from `data.read_curves`.
        width: `page` is 7 inches, `column` 3.3.
        bars: Accuracies for the config's bars, from `data.read_bars`.
        notes: What else a reader must be told, such as another tokenizer than the model's own.

    Raises:
        ConfigError: panels or bars of the config are missing from what is drawn.
    """
    points = dict(list(curves.groupby(["row", "column"])))
    if len(points) != len(config.panels) or (config.bars is None) != (bars is None):
        raise ConfigError(
            f"Figure {config.name}: expected {len(config.panels)} panels{' and bars' if config.bars else ''}, "
            f"got {len(points)}{' and bars' if bars is not None else ''}. Measure what the config names."
        )
    size = FONT[width] - 0.5
    with styled(size, **_TIGHT):
        figure = Figure(layout="constrained")
        axes, bar_axes = lay_out(figure, config, width)
        panels = [
            Drawn(one, panel, points[panel.row, panel.column]) for one, panel in zip(axes, config.panels, strict=True)
        ]
        for drawn in panels:
            _draw_panel(drawn)
            stamps = [stamp for column, stamp in STAMPS.items() if drawn.points[column].any()]
            _stamp(drawn.axes, drawn.panel.title, stamps, size)
        _label_axes(panels, config, figure.get_figwidth() * 72 / (_GLYPH * size))
        if bars is not None and config.bars is not None and bar_axes is not None:
            plot_accuracy_bars(bar_axes, bars, title=config.bars.title, font_size=size - 1)
            _stamp(bar_axes, config.bars.title, ["reference numbers"] if bars["reference"].any() else [], size)
            bar_axes.legend(loc="upper right", frameon=True, facecolor="white", edgecolor="none", framealpha=1)
            bar_axes.tick_params(axis="x", labelsize=size - 1)
        add_note(figure, " ".join(_sentences(config, panels, bars, notes)), size)
        make_room(figure, panels, bar_axes)
    return figure


def _draw_panel(drawn: Drawn) -> None:
    axes, shows = drawn.axes, drawn.panel.shows
    colours = {name: COLOURS[colour] for name, colour in drawn.panel.colours.items()}
    if drawn.region is not None:
        axes.axvspan(*drawn.region, color="#dedede", linewidth=0, zorder=0)
    for place, (condition, series) in enumerate(shows.series.items()):
        line = _line(drawn.curves, condition)
        # later lines are drawn over earlier ones: thinner, so that a line still shows where both are the same
        thickness = 0.8 + 0.5 * (len(shows.series) - 1 - place)
        axes.plot(line.index, line["mean"], color=colours[condition], linewidth=thickness, label=series.label)
        if shows.fill:
            axes.fill_between(line.index, 0, line["mean"], color=colours[condition], alpha=0.12, linewidth=0)
        axes.fill_between(line.index, line["low"], line["high"], color=colours[condition], alpha=0.22, linewidth=0)
    if len(drawn.controls):
        dashed: Any = {"linewidth": 0.6, "linestyle": (0, (3, 1.5))}
        for condition in shows.series:
            line = _line(drawn.controls, condition)
            axes.plot(line.index, line["mean"], color=colours[condition], label="_control", **dashed)
        axes.plot([], [], color=MUTED, label="not flipped (controls)", **dashed)
    axes.set_xlim(*shows.limits)
    axes.spines[["top", "right"]].set_visible(False)


def _line(points: pandas.DataFrame, condition: str) -> pandas.DataFrame:
    """One condition's points by position, NaN where there is no value, so that lines break there."""
    found = points[points["condition"] == condition].set_index("x")
    return found.reindex(range(found.index[0], found.index[-1] + 1))


def _label_axes(panels: Sequence[Drawn], config: FigureConfig, letters: float) -> None:
    """Axis labels of a figure that is so many letters wide; what the panel to the left says is not said again."""
    for drawn in panels:
        axes, place, definition = drawn.axes, drawn.place, drawn.panel.definition
        room = int(letters / place.get_gridspec().ncols)
        left_out = ["filler"] if drawn.panel.shows.view == "aligned" else []
        left_out += ["first token"] if drawn.points["first_token_excluded"].any() else []
        words = ["Token position", *([f"({' and '.join(left_out)} left out)"] if left_out else [])]
        axes.set_xlabel((" " if len(" ".join(words)) < 0.8 * room else "\n").join(words))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if room > 38 else 3, steps=[1, 2, 4, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        said = {
            other.panel.definition
            for other in panels
            if other.place.rowspan == place.rowspan and other.place.colspan.start < place.colspan.start
        }
        if definition not in said:
            times = "times value length, " if drawn.panel.shows.weighted else ""
            axes.set_ylabel(f"{config.y_label}\n({times}{DEFINITIONS[definition]})")


def _stamp(axes: Axes, title: str, stamps: Sequence[str], size: float) -> None:
    """The title, and under it the stamps."""
    axes.set_title(title, pad=3 + len(stamps) * (size + 0.5))
    if stamps:
        axes.annotate(
            "\n".join(stamps),
            (0.5, 1),
            xycoords="axes fraction",
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=size - 0.5,
            fontweight="bold",
            color="#b00020",
            linespacing=1.0,
        )


def _sentences(
    config: FigureConfig, panels: Sequence[Drawn], bars: pandas.DataFrame | None, notes: Sequence[str]
) -> Iterator[str]:
    """What the numbers stand on."""
    counts = [drawn.curves["prompts"].max() for drawn in panels]
    if len(set(counts)) > 1:
        yield f"n = {', '.join(map(str, counts))} prompts (panels row by row)."
    elif counts[0] == 1:
        yield f"One prompt: {', '.join(dict.fromkeys(drawn.curves['problem'].iloc[0] for drawn in panels))}."
    else:
        shown = [drawn.curves[drawn.curves["x"].between(*drawn.panel.shows.limits)]["count"] for drawn in panels]
        fewest = min(chain.from_iterable(shown), default=0)
        yield f"n = {counts[0]} prompts a panel, at least {fewest} at every position shown."
    if max(counts) > 1:
        yield "Bands: 95 % bootstrap intervals over prompts."
    for flip in dict.fromkeys(drawn.panel.prompts.flip for drawn in panels):
        if flip:
            yield f"Selected on outcome: {flip.replace('_', ' ')}."
    if controls := [drawn.controls["prompts"].max() for drawn in panels if len(drawn.controls)]:
        yield f"Dashed: {min(controls)} matched {plural('problem', min(controls))} that did not flip."
    told = [note for drawn in panels for note in drawn.points["note"].dropna().unique()]
    yield from (f"{note[0].upper()}{note[1:]}." for note in dict.fromkeys([*notes, *told]))
    yield from (_EXPLAINED[definition] for definition in dict.fromkeys(drawn.panel.definition for drawn in panels))
    if bars is not None:
        fewest, most = bars["n"].min(), bars["n"].max()
        problems = f"{fewest} problems" if fewest == most else f"{fewest} to {most} problems"
        yield f"Bars: {bars['reference'].iloc[0] or problems}."
    if config.note:
        yield config.note
