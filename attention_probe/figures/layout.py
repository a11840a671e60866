"""Where panels, legends and labels of a figure stand, so that nothing covers data and all fits the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attention_probe.figures.config import FigureConfig
from attention_probe.figures.data import PanelCurves
from harness.choices import Width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend


def lay_out(figure: Figure, config: FigureConfig, width: Width) -> tuple[dict[tuple[int, int], Axes], Axes | None]:
    """Axes by row and head, and the bars'. In a column heads go down; one head's rows go down too."""
    rows, heads = len(config.rows), len(config.heads)
    turned = width == "column" and heads > 1
    down, across = (heads, rows) if turned else (rows, heads)
    beside = config.bars is not None and width == "page"
    above = config.bars is not None and not beside
    grid = figure.add_gridspec(
        down + above,
        across + beside,
        width_ratios=[*([1.0 * across] if beside else []), *[1.0] * across],
        height_ratios=[*([1.35] if above else []), *[1.0] * down],
    )
    places = {
        (row, head): figure.add_subplot(
            grid[(head if turned else row) + above, (row if turned else head) + beside],
        )
        for row in range(rows)
        for head in range(heads)
    }
    bar_axes = figure.add_subplot(grid[:, 0] if beside else grid[0, :]) if config.bars else None
    inches = 7.0 if width == "page" else 3.3
    figure.set_size_inches(inches, 0.35 + (1.75 if width == "page" else 1.6) * (down + 1.35 * above))
    return places, bar_axes


def make_room(
    figure: Figure,
    places: Mapping[tuple[int, int], Axes],
    by_place: Mapping[tuple[int, int], PanelCurves],
    bar_axes: Axes | None,
) -> None:
    """Break titles that are too wide, and raise each y axis so that legend and region label stand above the data."""
    engine = figure.get_layout_engine()
    assert engine is not None
    for place, axes in places.items():
        entries = len(axes.get_legend_handles_labels()[0])
        axes.legend(loc=by_place[place].panel.shows.legend, ncols=entries).set_in_layout(False)
    engine.execute(figure)
    too_wide = any(
        axes.title.get_window_extent().x1 > figure.bbox.x1
        or axes.title.get_window_extent().width > 0.97 * figure.bbox.width / columns(axes)
        for axes in places.values()
    )
    for place, axes in places.items():
        panel = by_place[place].panel
        if _legend(axes).get_window_extent().width > axes.get_window_extent().width:
            axes.legend(loc=panel.shows.legend, ncols=1).set_in_layout(False)
        if too_wide:
            axes.title.set_text(panel.title.replace(" Layer ", "\nLayer ").replace(" (", "\n("))
    engine.execute(figure)
    for place, axes in places.items():
        legend, box = _legend(axes), axes.get_window_extent()
        taken = legend.get_window_extent().height / box.height + 0.03
        drawn = by_place[place]
        if drawn.region is not None:
            low, high = drawn.panel.shows.limits
            middle = (max(drawn.region[0], low) + min(drawn.region[1], high)) / 2
            word = axes.annotate(
                drawn.panel.shows.region or "",
                (middle, 1 - taken),
                xycoords=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                fontstyle="italic",
                fontsize=legend.get_texts()[0].get_fontsize(),
                color="#444444",
            )
            if word.get_window_extent().x0 < box.x0:
                word.set(x=low + 0.01 * (high - low), ha="left")
            taken += word.get_window_extent().height / box.height + 0.03
        axes.set_ylim(0, _highest(drawn) / (1 - taken))
    if bar_axes is not None:
        low, high = bar_axes.get_ylim()
        taken = _legend(bar_axes).get_window_extent().height / bar_axes.get_window_extent().height
        bar_axes.set_ylim(low, low + (high - low) / (1 - taken))


def _legend(axes: Axes) -> Legend:
    legend = axes.get_legend()
    assert legend is not None
    return legend


def _highest(drawn: PanelCurves) -> float:
    """The highest point shown, bands included."""
    low, high = drawn.panel.shows.limits
    tops = [
        line[(curve.x >= low) & (curve.x <= high)]
        for curve in (*drawn.curves, *drawn.controls)
        for line in (curve.mean, curve.high)
        if line is not None
    ]
    values = np.concatenate(tops)
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size and values.max() > 0 else 1.0


def columns(axes: Axes) -> int:
    """How many columns the grid of these axes has."""
    spec = axes.get_subplotspec()
    assert spec is not None
    return int(spec.get_gridspec().ncols)
