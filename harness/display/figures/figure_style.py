"""The style of all figures: looks and labels of conditions, fonts, panels, legend, note, files."""

import json
import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.format_values import label, visible
from harness.runs.stored_files import clear_messages

INCHES, FONT = 7.0, 7.5
"""The width of a figure, for a page of text, and the size of its font in points."""
NAME_LETTERS = 17
"""The most letters of a condition's label in a figure."""
LETTER = 0.54
"""The width of an average letter, in font sizes."""


class Look(NamedTuple):
    """Colour, marker and dashes of a condition in every figure."""

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
    "text.parse_math": False,  # A dollar sign in a name does not begin a formula.
    "pdf.fonttype": 42,  # Text in a PDF can be searched.
}

LOOKS = {
    "wo": Look("#4b2e83", "o", "-"),
    "mless": Look("#0c7a66", "s", (0, (4, 1.2))),
    "mful": Look("#3d97dd", "^", (0, (1.2, 1))),
    "random": Look("#b87000", "v", (0, (5, 1, 1, 1))),
}
"""Purple, teal, blue and brown. Colour-blind people can distinguish them, and their contrast to
white is at least 3 to 1."""
INK, MUTED, GRID = "#333333", "#555555", "#dddddd"
_SPARE_COLOURS, _SPARE_MARKERS = ("#555555", "#8a8a1f", "#cc6677", "#888888"), "PXDph"


def looks(conditions: Iterable[Any]) -> dict[str, Look]:
    """The look of each condition, in their order.

    Conditions that the study does not name have spare looks in turn. Those of contrasts come last,
    so that a figure with contrasts has the same looks as one without.
    """
    names = list(dict.fromkeys(map(str, conditions)))
    new_names = [name for name in names if name not in LOOKS]
    new_names.sort(key=lambda name: " - " in name)
    dashes = [look.dashes for look in LOOKS.values()]
    # These are 20 looks before the first one is repeated.
    spare = map(Look, cycle(_SPARE_COLOURS), cycle(_SPARE_MARKERS), cycle(dashes))
    all_looks = {**LOOKS, **dict(zip(new_names, spare, strict=False))}
    return {name: all_looks[name] for name in names}


def short_label(condition: str) -> str:
    """The label of a condition, without its middle if it is long."""
    name = visible(label(condition), keep="")
    if len(name) <= NAME_LETTERS:
        return name
    half = NAME_LETTERS // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"


def split_settings(table: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The rows of each model and layout, by a name that has the layout if there are several."""
    has_layouts = table["layout"].nunique() > 1
    settings = {}
    for (model, layout), rows in table.groupby(["model", "layout"], sort=False, observed=True):
        name = f"{model}, {layout}" if has_layouts else model
        settings[visible(name, keep="")] = rows
    return settings


def without_reference_conditions(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the rows of reference conditions."""
    return table[table["role"] != "reference"] if "role" in table else table


def without_contrasts(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the rows that compare two conditions of which neither is the baseline."""
    if "baseline" not in table:
        return table
    baselines = table.loc[table["role"] == "baseline", "condition"]
    return table[table["baseline"].isin(baselines)]


@contextmanager
def drawing(
    height: float, note: str, *, managed: bool = True, legend: bool = True, title: str = ""
) -> Iterator[Figure]:
    """A new figure to draw on. On leaving, the legend is added above and the note below.

    Args:
        height: The height in inches.
        note: The meaning of the marks.
        managed: Whether matplotlib makes room for labels; False if the caller positions the axes.
        legend: Whether one legend describes all axes. Without labels there is none.
        title: The title of the figure.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(INCHES, height), layout="constrained" if managed else None)
        yield figure
        handles = {}
        for axes in figure.axes:
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles[name] = handle
        if handles and legend:
            figure.legend(
                handles.values(), handles, loc="outside upper center", ncols=4, title=title or None
            )
        elif title:
            figure.suptitle(title, fontsize=FONT)
        # matplotlib makes room below the axes for this label, as for no other text
        figure.supxlabel(wrap(note), x=0.01, ha="left", fontsize=FONT - 1, color=MUTED)


@contextmanager
def panels(
    titles: Collection[str], note: str, height: float, **shared: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A new figure of panels with light grid lines, three in a row.

    Args:
        titles: The titles of the panels.
        note: The meaning of the marks.
        height: The height of a panel in inches.
        shared: Arguments of `Figure.subplots`.
    """
    columns = min(len(titles), 3)
    rows = math.ceil(len(titles) / columns)
    with drawing(0.8 + height * rows, note) as figure:
        axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
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
    """A note below a figure, in a smaller font, broken to the figure's width."""
    return textwrap.fill(note, int(0.98 * 72 * INCHES / (LETTER * (FONT - 1))))


def write_figure(
    figure: Figure, numbers: pandas.DataFrame, folder: Path, name: str, receipt: Mapping[str, Any]
) -> list[Path]:
    """Write a figure as PNG, SVG and PDF and its numbers as CSV, and return the files.

    Args:
        figure: The figure.
        numbers: The numbers that it shows.
        folder: The folder of the files. It is created if it is missing.
        name: The name of the files, without a suffix.
        receipt: The facts about the runs and the figure.

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
    """Write the figure in formats of png, svg and pdf with the receipt inside; return the files."""
    note = json.dumps(dict(receipt), sort_keys=True, default=str)
    # A date and random names would make two drawings of the same numbers differ. PDF has a fixed
    # set of fields.
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
