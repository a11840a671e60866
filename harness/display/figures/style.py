"""What all figures share: widths, fonts, the colour and name of each condition, panels, legend and note."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from harness.analysis.controls import APART
from harness.display.numbers import label as whole_label
from harness.display.numbers import plural
from harness.display.visible import visible

if TYPE_CHECKING:
    import pandas
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES, FONT = 7.0, 7.5
"""The width of a figure, and the size of its letters in points."""


class Look(NamedTuple):
    """How a condition is told apart in every figure."""

    colour: str
    marker: str
    dashes: Any


LOOKS = {
    "wo": Look("#4b2e83", "o", "-"),
    "mless": Look("#0c7a66", "s", (0, (4, 1.2))),
    "mful": Look("#3d97dd", "^", (0, (1.2, 1))),
    "random": Look("#b87000", "v", (0, (5, 1, 1, 1))),
}
"""Purple, teal, blue and brown: told apart by the colour-blind, and at least 3 to 1 on white."""
COLOURS = {name: look.colour for name, look in LOOKS.items()}
"""The colours alone."""
INK, MUTED, GRID = "#333333", "#555555", "#dddddd"
_SPARE_COLOURS, _SPARE_MARKERS = ("#555555", "#8a8a1f", "#cc6677", "#888888"), "PXDph"

NAME = 17
"""The most letters that are shown of a condition's name."""


def looks(conditions: Iterable[Any]) -> dict[str, Look]:
    """The look of each condition, in their order; those that the study does not name take spare ones in turn.

    Contrasts come last, so that a figure with them has the same looks as one without.
    """
    names = dict.fromkeys(str(condition) for condition in conditions)
    others = sorted((name for name in names if name not in LOOKS), key=lambda name: " - " in name)
    dashes = [look.dashes for look in LOOKS.values()]
    spare = zip(cycle(_SPARE_COLOURS), cycle(_SPARE_MARKERS), cycle(dashes))  # 20 that differ
    given = {name: Look(*look) for name, look in zip(others, spare, strict=False)}
    return {name: LOOKS.get(name) or given[name] for name in names}


def label(condition: str) -> str:
    """What people call a condition, without its middle if that is long."""
    name = visible(whole_label(condition), keep="")
    if len(name) <= NAME:
        return name
    return f"{name[: (NAME - 1) // 2]}\N{HORIZONTAL ELLIPSIS}{name[len(name) - NAME // 2 :]}"


def split_settings(table: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The rows of each model and layout, by a name for both; the layout is named where there are several."""
    several = table["layout"].nunique() > 1
    return {
        visible(f"{model}, {layout}" if several else model, keep=""): rows
        for (model, layout), rows in table.groupby(["model", "layout"], sort=False, observed=True)
    }


YARDSTICKS = ("rewording", "other filler", "positive control", APART)
"""Verdicts of rows that conditions are held against."""


def without_yardsticks(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the rows that its conditions are held against."""
    return table[~table["verdict"].isin(YARDSTICKS)] if "verdict" in table else table


def without_contrasts(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the rows of two conditions of which neither is the baseline."""
    if "baseline" not in table:
        return table
    return table[table["baseline"].isin(table.loc[table["verdict"] == "baseline", "condition"])]


def compared(table: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of conditions that are compared with the baseline, in the table's order."""
    return table[~table["verdict"].isin(["baseline", *YARDSTICKS])]


def about_yardsticks(table: pandas.DataFrame) -> str:
    """A sentence on the yardsticks that a table has and its figure leaves out; empty if there are none."""
    left = table["condition"].nunique() - without_yardsticks(table)["condition"].nunique()
    return f" Not shown: {left} rewordings, other fillers and controls that these are held against." if left else ""


def adjustment(table: pandas.DataFrame) -> str:
    """How p-values were adjusted, and over how many tests."""
    tests = int(table["p_adjusted"].notna().sum())
    return f"Holm, {tests} {plural('test', tests)}" if tests else "Holm"


@contextmanager
def styled(size: float, **changes: Any) -> Iterator[None]:
    """Draw inside this: text of `size` points, thin lines; `changes` are further settings of matplotlib."""
    import matplotlib

    style: Any = {
        "font.size": size,
        "axes.titlesize": size,
        "axes.linewidth": 0.6,
        "xtick.labelsize": size - 0.5,
        "ytick.labelsize": size - 0.5,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "legend.fontsize": size - 0.5,
        "legend.frameon": False,
        "legend.handlelength": 1.6,
        "legend.columnspacing": 1.2,
        "text.parse_math": False,  # dollar signs in names are dollar signs
        "pdf.fonttype": 42,  # words in a PDF can be searched
    }
    with matplotlib.rc_context(style | changes):
        yield


@contextmanager
def drawing(height: float, note: str, *, managed: bool = True, **legend: Any) -> Iterator[Figure]:
    """A new figure to draw on. At the end a legend is added above, where anything has a label, and the note below.

    Args:
        height: In inches.
        note: What the marks mean.
        managed: Whether matplotlib makes room for labels; False where axes have their place in inches.
        legend: Further arguments of `Figure.legend`.
    """
    from matplotlib.figure import Figure

    with styled(FONT):
        figure = Figure(figsize=(INCHES, height), layout="constrained" if managed else None)
        yield figure
        handles, names = max(
            (axes.get_legend_handles_labels() for axes in figure.axes), key=lambda found: len(found[1])
        )
        if names:
            add_legend(figure, handles, names, **legend)
        add_note(figure, note, FONT)


def add_legend(figure: Figure, handles: Sequence[Artist], names: Sequence[str], **legend: Any) -> None:
    """One legend above all panels, as many names beside each other as there is room for."""
    room = 1.6 * 72 * INCHES / FONT  # letters
    longest = sorted(map(len, names), reverse=True)
    beside = next((n for n in (4, 3, 2) if sum(longest[:n]) + 6 * n < room), 1)
    figure.legend(handles, names, loc="outside upper center", ncols=beside, **legend)


def panel_grid(count: int) -> tuple[int, int]:
    """How many panels stand above each other and beside each other."""
    across = min(count, 3)
    return math.ceil(count / across), across


def add_panels(figure: Figure, count: int, *, sharey: bool, sharex: bool = False) -> list[Axes]:
    """Axes for `count` panels, row by row; `sharex` and `sharey` as in `Figure.subplots`."""
    down, across = panel_grid(count)
    axes = list(figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=sharey).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return axes[:count]


def tidy(axes: Axes, *, grid: Literal["x", "y", "both"], hidden: Sequence[str] = ("top", "right")) -> None:
    """Light grid lines behind the data, and no frame on the `hidden` sides."""
    axes.grid(axis=grid, color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[list(hidden)].set_visible(False)


def shade_margin(axes: Axes, margin: float) -> None:
    """The differences within the equivalence margin, shaded, and a line at zero."""
    axes.axvspan(-margin, margin, color="#eeeeee", zorder=0)
    axes.axvline(0, color=MUTED, linewidth=0.6, zorder=1)


def wrap(text: str, inches: float, size: float) -> str:
    """A note below a figure, in letters one point smaller than the figure's, broken to its width."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size - 1)
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        wide, _, _ = text_to_path.get_text_width_height_descent(longer, font, ismath=False)
        if wide > 0.92 * 72 * inches:  # screens round each letter to whole pixels, which makes lines longer
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def add_note(figure: Figure, note: str, size: float) -> None:
    """Say below the figure what its marks mean."""
    note = wrap(note, figure.get_figwidth(), size)
    figure.supxlabel(note, x=0.01, ha="left", fontsize=size - 1, color=MUTED)
