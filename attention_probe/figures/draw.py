"""Draws a figure of curves as its config says, at the width of a column or a page.

Nothing here computes: what is drawn comes in as `Curve`s and a table of accuracies. Everything that qualifies the
numbers is drawn with them: the definition and what is left out on the axes, the stamps above each panel (random
weights, selected on outcome, reference numbers), counts and bands in the note below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attention_probe.analysis.curve import Curve
from attention_probe.figures.config import FigureConfig
from attention_probe.figures.data import Bars, PanelCurves
from attention_probe.figures.layout import grid_place, lay_out, make_room
from harness.choices import Width
from harness.display.figures.bars import plot_accuracy_bars
from harness.display.figures.style import FONT, MUTED, add_note, styled
from harness.display.words import plural
from harness.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_STAMP = "#b00020"
_GLYPH = 0.56
"""Width of an average letter, in font sizes."""


def draw_figure(
    config: FigureConfig, drawn: Sequence[PanelCurves], *, width: Width = "page", bars: Bars | None = None
) -> Figure:
    """The figure: rows times heads as in the study at page width, turned to fit a column at column width.

    Args:
        config: Titles, legends, limits, regions.
        drawn: What each panel shows.
        width: `page` is 7 inches, `column` 3.3.
        bars: Accuracies for the config's bars.

    Raises:
        ConfigError: panels or bars of the config are missing from what is drawn.
    """
    from matplotlib.figure import Figure

    drawn = sorted(drawn, key=lambda d: (d.panel.row, d.panel.column))
    if [d.panel for d in drawn] != list(config.panels) or (config.bars is None) != (bars is None):
        raise ConfigError(
            f"Figure {config.name}: expected {len(config.panels)} panels{' and bars' if config.bars else ''}, "
            f"got {len(drawn)}{' and bars' if bars else ''}. Measure what the config names."
        )
    size = FONT[width] - 0.5
    with styled(size, _TIGHT):
        figure = Figure(layout="constrained")
        axes, bar_axes = lay_out(figure, config, width)
        panels = list(zip(axes, drawn, strict=True))
        for one, shown in panels:
            _draw_panel(one, shown)
            _stamp(one, shown.panel.title, shown.header.stamps, size)
        _label_axes(panels, config, figure.get_figwidth() * 72 / (_GLYPH * size))
        if bars is not None and config.bars is not None and bar_axes is not None:
            plot_accuracy_bars(bar_axes, bars.table, title=config.bars.title, font_size=size - 1)
            _stamp(bar_axes, config.bars.title, ["reference numbers"] if bars.reference else [], size)
            bar_axes.legend(loc="upper right", frameon=True, facecolor="white", edgecolor="none", framealpha=1)
            bar_axes.tick_params(axis="x", labelsize=size - 1)
        add_note(figure, _note(config, drawn, bars), size)
        make_room(figure, panels, bar_axes)
    return figure


def _draw_panel(axes: Axes, drawn: PanelCurves) -> None:
    shows = drawn.panel.shows
    colours = {name: COLOURS[colour] for name, colour in drawn.panel.colours.items()}
    if drawn.region is not None:
        axes.axvspan(*drawn.region, color="#dedede", linewidth=0, zorder=0)
    for place, curve in enumerate(drawn.curves):
        colour = colours[curve.condition]
        x, mean, low, high = _with_gaps(curve)
        # later lines are drawn over earlier ones: thinner, so that a line still shows where both are the same
        thickness = 0.8 + 0.5 * (len(drawn.curves) - 1 - place)
        axes.plot(x, mean, color=colour, linewidth=thickness, label=shows.series[curve.condition].label)
        if shows.fill:
            axes.fill_between(x, 0, mean, color=colour, alpha=0.12, linewidth=0)
        axes.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0)
    dashed: Any = {"linewidth": 0.6, "linestyle": (0, (3, 1.5))}
    for curve in drawn.controls:
        x, mean, *_ = _with_gaps(curve)
        axes.plot(x, mean, color=colours[curve.condition], label="_control", **dashed)
    if drawn.controls:
        axes.plot([], [], color=MUTED, label="not flipped (controls)", **dashed)
    axes.set_xlim(*shows.limits)
    axes.spines[["top", "right"]].set_visible(False)


def _with_gaps(curve: Curve) -> NDArray[np.float64]:
    """x, mean, low and high, [4, position]; NaN where there is no value, so that lines break there."""
    x = np.arange(curve.x[0], curve.x[-1] + 1)
    spread = np.full((4, len(x)), np.nan)
    spread[:, curve.x - curve.x[0]] = curve.x, curve.mean, curve.low, curve.high
    spread[0] = x
    return spread


def _label_axes(panels: Sequence[tuple[Axes, PanelCurves]], config: FigureConfig, letters: float) -> None:
    """Axis labels of a figure that is so many letters wide; what the panel to the left says is not said again."""
    from matplotlib.ticker import MaxNLocator

    for axes, drawn in panels:
        room = int(letters / grid_place(axes).get_gridspec().ncols)
        left_out = ["filler"] if drawn.panel.shows.view == "aligned" else []
        left_out += ["first token"] if any(curve.first_token_excluded for curve in drawn.curves) else []
        words = ["Token position", *([f"({' and '.join(left_out)} left out)"] if left_out else [])]
        axes.set_xlabel((" " if len(" ".join(words)) < 0.8 * room else "\n").join(words))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if room > 38 else 3, steps=[1, 2, 4, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        left = [other.panel.definition for place, other in panels if _is_left_of(place, axes)]
        if drawn.panel.definition not in left:
            axes.set_ylabel(f"{config.y_label}\n({DEFINITIONS[drawn.panel.definition]})")


def _is_left_of(one: Axes, other: Axes) -> bool:
    a, b = grid_place(one), grid_place(other)
    return a.rowspan == b.rowspan and a.colspan.start < b.colspan.start


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
            color=_STAMP,
            linespacing=1.0,
        )


def _note(config: FigureConfig, drawn: Sequence[PanelCurves], bars: Bars | None) -> str:
    """What the numbers stand on, in sentences."""
    counts = [d.prompts for d in drawn]
    if len(set(counts)) > 1:
        said = f"n = {', '.join(map(str, counts))} prompts (panels row by row)."
    elif counts[0] == 1:
        said = f"One prompt: {', '.join(dict.fromkeys(name for d in drawn for name in d.problems))}."
    else:
        said = f"n = {counts[0]} prompts a panel, at least {min(d.fewest for d in drawn)} at every position shown."
    sentences = [said]
    if max(counts) > 1:
        sentences.append("Bands: 95 % bootstrap intervals over prompts.")
    flips = dict.fromkeys(d.panel.prompts.flip for d in drawn if d.header.on_outcome and d.panel.prompts.flip)
    sentences += [f"Selected on outcome: {flip.replace('_', ' ')}." for flip in flips if flip]
    controls = min((max(curve.prompts for curve in d.controls) for d in drawn if d.controls), default=0)
    if controls:
        sentences.append(f"Dashed: {controls} matched {plural('problem', controls)} that did not flip.")
    notes = [note for d in drawn for note in (d.note, *(c.note for c in (*d.curves, *d.controls))) if note]
    sentences += [f"{note[0].upper()}{note[1:]}." for note in dict.fromkeys(notes)]
    sentences += [_EXPLAINED[definition] for definition in dict.fromkeys(d.panel.definition for d in drawn)]
    if bars is not None:
        counts = sorted({bars.table["n"].min(), bars.table["n"].max()})
        sentences.append(f"Bars: {bars.reference or ' to '.join(map(str, counts)) + ' problems'}.")
    if config.note:
        sentences.append(config.note)
    return " ".join(sentences)
