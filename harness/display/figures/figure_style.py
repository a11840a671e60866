"""What all figures share: the colour and name of each condition, fonts, panels, legend and note; and their files."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.format_values import label, visible
from harness.runs.journal import clear_messages

INCHES, FONT = 7.0, 7.5
"""The width of a figure, for a page of text, and the size of its letters in points."""
NAME_LETTERS = 17
"""The most letters that a figure shows of a condition's name."""
LETTER = 0.54
"""Width of an average letter, in font sizes."""


class Look(NamedTuple):
    """How a condition is told apart in every figure."""

    colour: str
    marker: str
    dashes: Any


_SETTINGS: Any = {
    "font.size": FONT,
    "axes.titlesize": FONT,
    "xtick.labelsize": FONT - 0.5,
    "ytick.labelsize": FONT - 0.5,
    "legend.fontsize": FONT - 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "text.parse_math": False,  # dollar signs in names are dollar signs
    "pdf.fonttype": 42,  # words in a PDF can be searched
}

LOOKS = {
    "wo": Look("#4b2e83", "o", "-"),
    "mless": Look("#0c7a66", "s", (0, (4, 1.2))),
    "mful": Look("#3d97dd", "^", (0, (1.2, 1))),
    "random": Look("#b87000", "v", (0, (5, 1, 1, 1))),
}
"""Purple, teal, blue and brown: told apart by the colour-blind, and at least 3 to 1 on white."""
INK, MUTED, GRID = "#333333", "#555555", "#dddddd"
_SPARE_COLOURS, _SPARE_MARKERS = ("#555555", "#8a8a1f", "#cc6677", "#888888"), "PXDph"


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


def short_label(condition: str) -> str:
    """What people call a condition, without its middle if that is long."""
    name = visible(label(condition), keep="")
    if len(name) <= NAME_LETTERS:
        return name
    return f"{name[: (NAME_LETTERS - 1) // 2]}\N{HORIZONTAL ELLIPSIS}{name[len(name) - NAME_LETTERS // 2 :]}"


def split_settings(table: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The rows of each model and layout, by a name for both; the layout is named where there are several."""
    several = table["layout"].nunique() > 1
    return {
        visible(f"{model}, {layout}" if several else model, keep=""): rows
        for (model, layout), rows in table.groupby(["model", "layout"], sort=False, observed=True)
    }


def without_reference_conditions(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the rows of reference conditions."""
    return table[table["role"] != "reference"] if "role" in table else table


def without_contrasts(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the rows of two conditions of which neither is the baseline."""
    if "baseline" not in table:
        return table
    return table[table["baseline"].isin(table.loc[table["role"] == "baseline", "condition"])]


@contextmanager
def drawing(
    height: float, note: str, *, managed: bool = True, legend: bool = True, title: str = ""
) -> Iterator[Figure]:
    """A new figure to draw on. At the end a legend is added above, where anything has a label, and the note below.

    Args:
        height: In inches.
        note: What the marks mean.
        managed: Whether matplotlib makes room for labels; False where axes have their place in inches.
        legend: Whether one legend is true of all axes.
        title: Of the whole.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(INCHES, height), layout="constrained" if managed else None)
        yield figure
        entries = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
        handles = {name: handle for handle, name in chain(*entries)}
        if handles and legend:  # names are short
            figure.legend(
                handles.values(), handles, loc="outside upper center", ncols=4, title=title or None
            )
        elif title:
            figure.suptitle(title, fontsize=FONT)
        figure.supxlabel(wrap(note), x=0.01, ha="left", fontsize=FONT - 1, color=MUTED)


@contextmanager
def panels(
    titles: Collection[str], note: str, height: float, **shared: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A new figure of panels with light grid lines, three in a row, each so many inches high.

    Args:
        titles: Of the panels.
        note: What the marks mean.
        height: Of a panel, in inches.
        shared: As in `Figure.subplots`.
    """
    across = min(len(titles), 3)
    down = math.ceil(len(titles) / across)
    with drawing(0.8 + height * down, note) as figure:
        axes = list(figure.subplots(down, across, squeeze=False, **shared).flat)
        for unused in axes[len(titles) :]:
            unused.set_visible(False)
        for panel, title in zip(axes, titles, strict=False):
            panel.set_title(title)
            panel.tick_params(labelbottom=True)
            tidy(panel, grid="y")
        yield figure, axes[: len(titles)]


def tidy(
    axes: Axes, *, grid: Literal["x", "y", "both"], hidden: Sequence[str] = ("top", "right")
) -> None:
    """Light grid lines behind the data, and no frame on the `hidden` sides."""
    axes.grid(axis=grid, color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[list(hidden)].set_visible(False)


def wrap(note: str) -> str:
    """A note below a figure, in smaller letters, broken to the figure's width."""
    return textwrap.fill(note, int(0.98 * 72 * INCHES / (LETTER * (FONT - 1))))


def write_figure(
    figure: Figure, numbers: pandas.DataFrame, folder: Path, name: str, receipt: Mapping[str, Any]
) -> list[Path]:
    """Write a figure as PNG, SVG and PDF and its numbers as CSV, and return the files.

    Args:
        figure: What to save.
        numbers: What it shows.
        folder: Where the files go; made if it is missing.
        name: Of the files, without a suffix.
        receipt: What was drawn from what.

    Raises:
        JournalError: the files cannot be written.
    """
    table = folder / f"{name}.csv"
    with clear_messages(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files = save_figure(figure, folder / name, receipt, formats=("png", "svg", "pdf"), dpi=300)
        numbers.to_csv(table, index=False)
    return [*files, table]


def save_figure(
    figure: Figure,
    path: Path,
    receipt: Mapping[str, Any],
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: float = 160,
) -> list[Path]:
    """Write the figure in each of the formats (png, svg, pdf), the receipt inside, and return the files."""
    note = json.dumps(dict(receipt), sort_keys=True, default=str)
    # PDF has fixed fields; a date, and names drawn by chance, would make two drawings of the same numbers differ
    metadata: Any = {
        "png": {"Description": note},
        "svg": {"Description": note, "Date": None},
        "pdf": {"Subject": note, "CreationDate": None},
    }
    files = {kind: path.with_name(f"{path.name}.{kind}") for kind in formats}
    with matplotlib.rc_context({"svg.hashsalt": "mless"}):
        for kind, file in files.items():
            figure.savefig(file, dpi=dpi, metadata=metadata[kind])
    return list(files.values())
