"""Where panels, legends and labels of a figure stand, so that nothing covers data and all fits the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attention_probe.figures.config import FigureConfig
from attention_probe.figures.data import PanelCurves
from harness.choices import Width
from harness.display.figures.style import INCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.legend import Legend
    from matplotlib.text import Text


def lay_out(figure: Figure, config: FigureConfig, width: Width) -> tuple[list[Axes], Axes | None]:
    """Axes of the panels, row by row, and the bars'. In a column heads go down; one head's rows go down too."""
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


def make_room(figure: Figure, panels: Sequence[tuple[Axes, PanelCurves]], bars: Axes | None) -> None:
    """Break titles that are too wide, and raise each y axis so that legend and region label stand above the data."""
    engine = figure.get_layout_engine()
    assert engine is not None
    for axes, drawn in panels:
        _add_legend(axes, drawn, ncols=len(axes.get_legend_handles_labels()[0]))
    engine.execute(figure)
    titles = [(axes.title.get_window_extent(), grid_place(axes).get_gridspec().ncols) for axes, _ in panels]
    page = figure.bbox
    too_wide = any(box.x1 > page.x1 or box.width > 0.97 * page.width / columns for box, columns in titles)
    for axes, drawn in panels:
        if _legend(axes).get_window_extent().width > axes.get_window_extent().width:
            _add_legend(axes, drawn, ncols=1)
        if too_wide:
            axes.title.set_text(drawn.panel.title.replace(" Layer ", "\nLayer ").replace(" (", "\n("))
    engine.execute(figure)
    for axes, drawn in panels:
        taken = _share(axes, _legend(axes)) + 0.03
        if drawn.region is not None:
            taken += _share(axes, _name_region(axes, drawn, drawn.region, 1 - taken)) + 0.03
        axes.set_ylim(0, drawn.highest / (1 - taken))
    if bars is not None:
        low, high = bars.get_ylim()
        bars.set_ylim(low, low + (high - low) / (1 - _share(bars, _legend(bars))))


def grid_place(axes: Axes) -> SubplotSpec:
    """Where axes stand in the figure's grid."""
    place = axes.get_subplotspec()
    assert place is not None
    return place


def _add_legend(axes: Axes, drawn: PanelCurves, ncols: int) -> None:
    axes.legend(loc=drawn.panel.shows.legend, ncols=ncols).set_in_layout(False)


def _legend(axes: Axes) -> Legend:
    legend = axes.get_legend()
    assert legend is not None
    return legend


def _share(axes: Axes, part: Legend | Text) -> float:
    """How much of the height of axes a part of them takes."""
    return part.get_window_extent().height / axes.get_window_extent().height


def _name_region(axes: Axes, drawn: PanelCurves, region: tuple[float, float], top: float) -> Text:
    """Write what is shaded over the region, `top` of the axes' height up."""
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
