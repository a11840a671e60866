"""Draws a figure of curves as its config says.

Nothing here computes: what is drawn comes in as `Curve`s and a table of accuracies. Everything that qualifies the
numbers is drawn with them: the definition and what is left out on the axes, the stamps above each panel
(selected on outcome, reference numbers), counts and bands in the note below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import MaxNLocator

from attention_probe.figures.bars import plot_accuracy_bars
from attention_probe.figures.config import FigureConfig, Panel
from harness.constants import GLYPH
from harness.display.figures.style import FONT, INCHES, MUTED, add_legend, add_note, styled
from harness.display.numbers import label, plural
from harness.experiment.conditions import contrast_name

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
    """
    points = dict(list(curves.groupby(["row", "column"])))
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


def lay_out(figure: Figure, config: FigureConfig) -> tuple[list[Axes], Axes | None]:
    """The axes of the panels, row by row, and those of the bars."""
    rows, heads = len(config.rows), len(config.heads)
    beside = config.bars is not None
    grid = figure.add_gridspec(rows, heads + beside, width_ratios=[*([heads] if beside else []), *[1] * heads])
    panels = [figure.add_subplot(grid[row, head + beside]) for row in range(rows) for head in range(heads)]
    figure.set_size_inches(INCHES, 0.5 + 1.75 * rows)
    return panels, figure.add_subplot(grid[:, 0]) if beside else None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel on its axes: what the config says of it, and its points as of `data.read_curves`."""

    axes: Axes
    panel: Panel
    points: pandas.DataFrame

    @property
    def curves(self) -> pandas.DataFrame:
        """The points without those of controls."""
        return self.points[self.points["kind"] == "curve"]

    @property
    def controls(self) -> pandas.DataFrame:
        """The points of matched problems that did not flip."""
        return self.points[self.points["kind"] == "control"]

    @property
    def shown(self) -> pandas.DataFrame:
        """The points within the limits of the x axis, without those of controls."""
        return self.curves[self.curves["x"].between(*self.panel.shows.limits)]

    @property
    def reach(self) -> tuple[float, float]:
        """Lowest and highest value shown, bands of dotted positions left out; the lowest of weights is 0."""
        bands = self.shown[2 * self.shown["count"] >= self.shown["prompts"]]
        values = pandas.concat([self.shown["mean"], bands["low"], bands["high"]])
        return (float(values.min()) if self.panel.shows.subtracted else 0.0), float(values.max())

    def line(self, condition: str, kind: str = "curve") -> pandas.DataFrame:
        """One condition's points by position, NaN where there is no value, so that lines break there."""
        subtracted = self.panel.shows.subtracted
        name = contrast_name(condition, subtracted) if subtracted else condition
        found = self.points[(self.points["condition"] == name) & (self.points["kind"] == kind)].set_index("x")
        return found.reindex(range(found.index[0], found.index[-1] + 1))

    @property
    def region(self) -> tuple[float, float] | None:
        """What to shade: from half a token before the first inserted position to half a token after the last."""
        inserted = self.curves["x"][self.curves["in_filler"]]
        if inserted.empty or self.panel.shows.region is None:
            return None
        return inserted.min() - 0.5, inserted.max() + 0.5

    @property
    def place(self) -> SubplotSpec:
        """Where it stands in the figure's grid."""
        place = self.axes.get_subplotspec()
        assert place is not None
        return place


def add_legends(figure: Figure, panels: Sequence[Drawn]) -> float:
    """One legend above the figure, or one above each row where a name or a colour means two things.

    Returns the room that the latter need between a panel and its title, in points.
    """
    entries = [zip(*drawn.axes.get_legend_handles_labels(), strict=True) for drawn in panels]
    handles = {name: handle for handle, name in chain(*entries)}
    meant = {(drawn.panel.name(one), look.colour) for drawn in panels for one, look in drawn.panel.looks.items()}
    if len(dict(meant)) == len(meant) == len({colour for _, colour in meant}):
        add_legend(figure, list(handles.values()), list(handles))
        return 0.0
    room = 0.0
    for drawn in panels:
        _, names = drawn.axes.get_legend_handles_labels()
        if drawn.panel.column == 0:
            room = 1.35 * FONT
            drawn.axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names)).set_in_layout(False)
    return room


def make_room(figure: Figure, panels: Sequence[Drawn]) -> None:
    """Break titles that are too wide, and name regions."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    page = figure.bbox
    titles = [(drawn.axes.title.get_window_extent(), drawn.place.get_gridspec().ncols) for drawn in panels]
    if any(box.x1 > page.x1 or box.width > 0.97 * page.width / columns for box, columns in titles):
        for drawn in panels:
            drawn.axes.title.set_text(drawn.panel.title.replace(" Layer ", "\nLayer ").replace(" (", "\n("))
        engine.execute(figure)
    for drawn in panels:
        if drawn.region is not None:
            _name_region(drawn, drawn.region)


def _name_region(drawn: Drawn, region: tuple[float, float]) -> None:
    """Write what is shaded at the top of the region: in two lines, or smaller, where it is too narrow."""
    axes = drawn.axes
    low, high = drawn.panel.shows.limits
    start, stop = max(region[0], low), min(region[1], high)
    word = axes.annotate(
        drawn.panel.shows.region or "",
        ((start + stop) / 2, 0.97),
        xycoords=axes.get_xaxis_transform(),
        ha="center",
        va="top",
        fontstyle="italic",
        color="#444444",
    )
    room = 0.96 * axes.get_window_extent().width * (stop - start) / (high - low)
    if word.get_window_extent().width > room:
        word.set_text(word.get_text().replace(" ", "\n"))
    word.set_fontsize(float(word.get_fontsize()) * min(1.0, room / word.get_window_extent().width))
