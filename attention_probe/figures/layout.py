"""Where panels, legends and labels of a figure stand, so that nothing covers data and all fits the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from attention_probe.figures.config import FigureConfig, Panel
from harness.display.figures.style import FONT, INCHES, add_legend
from harness.experiment.conditions import contrast_name


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
