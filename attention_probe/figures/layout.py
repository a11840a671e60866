"""Where panels, legends and labels of a figure stand, so that nothing covers data and all fits the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.legend import Legend
from matplotlib.text import Text

from attention_probe.figures.config import FigureConfig, Panel
from harness.choices import Width
from harness.display.figures.style import INCHES


def lay_out(figure: Figure, config: FigureConfig, width: Width) -> tuple[list[Axes], Axes | None]:
    """The axes of the panels, row by row, and those of the bars. At column width several heads go below each other."""
    rows, heads = len(config.rows), len(config.heads)
    turned = width == "column" and heads > 1
    down, across = (heads, rows) if turned else (rows, heads)
    beside = config.bars is not None and width == "page"
    above = config.bars is not None and not beside
    grid = figure.add_gridspec(
        down + above,
        across + beside,
        width_ratios=[*([across] if beside else []), *[1] * across],
        height_ratios=[*([1.35] if above else []), *[1] * down],
    )
    panels = [
        figure.add_subplot(grid[(head if turned else row) + above, (row if turned else head) + beside])
        for row in range(rows)
        for head in range(heads)
    ]
    bars = figure.add_subplot(grid[:, 0] if beside else grid[0, :]) if config.bars else None
    figure.set_size_inches(INCHES[width], 0.35 + (1.75 if width == "page" else 1.6) * (down + 1.35 * above))
    return panels, bars


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


def make_room(figure: Figure, panels: Sequence[Drawn], bars: Axes | None) -> None:
    """Break titles that are too wide, and raise each y axis so that legend and region label stand above the data."""
    engine = figure.get_layout_engine()
    assert engine is not None
    for drawn in panels:
        _add_legend(drawn, columns=len(drawn.axes.get_legend_handles_labels()[0]))
    engine.execute(figure)
    page = figure.bbox
    titles = [(drawn.axes.title.get_window_extent(), drawn.place.get_gridspec().ncols) for drawn in panels]
    too_wide = any(box.x1 > page.x1 or box.width > 0.97 * page.width / columns for box, columns in titles)
    for drawn in panels:
        if _legend(drawn.axes).get_window_extent().width > drawn.axes.get_window_extent().width:
            _add_legend(drawn, columns=1)
        if too_wide:
            drawn.axes.title.set_text(drawn.panel.title.replace(" Layer ", "\nLayer ").replace(" (", "\n("))
    engine.execute(figure)
    for drawn in panels:
        taken = _share(drawn.axes, _legend(drawn.axes)) + 0.03
        if drawn.region is not None:
            taken += _share(drawn.axes, _name_region(drawn, drawn.region, 1 - taken)) + 0.03
        shown = drawn.points[drawn.points["x"].between(*drawn.panel.shows.limits)]
        highest = shown[["mean", "high"]].max().max()
        drawn.axes.set_ylim(0, (highest if highest > 0 else 1.0) / (1 - taken))
    if bars is not None:
        low, high = bars.get_ylim()
        bars.set_ylim(low, low + (high - low) / (1 - _share(bars, _legend(bars))))


def _add_legend(drawn: Drawn, columns: int) -> None:
    drawn.axes.legend(loc=drawn.panel.shows.legend, ncols=columns).set_in_layout(False)


def _legend(axes: Axes) -> Legend:
    legend = axes.get_legend()
    assert legend is not None
    return legend


def _share(axes: Axes, part: Legend | Text) -> float:
    """The share of the axes' height that a legend or a word takes."""
    return part.get_window_extent().height / axes.get_window_extent().height


def _name_region(drawn: Drawn, region: tuple[float, float], top: float) -> Text:
    """Write what is shaded over the region, `top` of the axes' height up."""
    axes = drawn.axes
    low, high = drawn.panel.shows.limits
    word = axes.annotate(
        drawn.panel.shows.region or "",
        ((max(region[0], low) + min(region[1], high)) / 2, top),
        xycoords=axes.get_xaxis_transform(),
        ha="center",
        va="top",
        fontstyle="italic",
        fontsize=_legend(axes).get_texts()[0].get_fontsize(),
        color="#444444",
    )
    if word.get_window_extent().x0 < axes.get_window_extent().x0:
        word.set(x=low + 0.01 * (high - low), ha="left")
    return word
