"""How all figures look: styles and labels of conditions, fonts, panels, legend, note, files."""

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

import matplotlib
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.display.value_texts import label, name_character, visible
from harness.runs.stored_files import explain_write_errors

FIGURE_WIDTH_INCHES, FONT_POINTS = 4.6, 7.5
"""The width of every figure, and the size of all its text in points.

In a window of 400 pixels the text is 9 pixels high.
"""
NAME_LINE_LETTERS = 24
"""The most letters in a line of a name."""
LETTER_WIDTH = 0.54
"""The width of an average letter, in font sizes."""
NOTE_LINE_LETTERS = int(0.98 * 72 * FIGURE_WIDTH_INCHES / (LETTER_WIDTH * FONT_POINTS))
"""The most letters in a line of the note: 98 % of the width, in which an inch has 72 points."""
LINE_HEIGHT = 1.35 * FONT_POINTS / 72
"""The height of a line of text, in inches."""


class Style(NamedTuple):
    """Colour, marker and dashes (matplotlib's `linestyle`) of a condition in every figure."""

    colour: str
    marker: str
    dashes: Any


_MATPLOTLIB_SETTINGS: Any = {
    "font.size": FONT_POINTS,
    "axes.titlesize": FONT_POINTS,
    "figure.labelsize": FONT_POINTS,
    "figure.titlesize": FONT_POINTS,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "text.parse_math": False,  # Else a dollar sign in a name would begin a formula.
    "pdf.fonttype": 42,  # TrueType, so that text in a PDF can be searched.
}

STYLES = {
    "wo": Style("#4b2e83", "o", "-"),
    "mless": Style("#0c7a66", "s", (0, (4, 1.2))),
    "mful": Style("#3d97dd", "^", (0, (1.2, 1))),
    "random": Style("#b87000", "v", (0, (5, 1, 1, 1))),
    "mless-first": Style("#801500", "P", "-"),
    "mful-first": Style("#aa00ff", "X", (0, (4, 1.2))),
    "random-first": Style("#4c2245", "D", (0, (1.2, 1))),
    "mless+gap": Style("#6b7399", "p", (0, (5, 1, 1, 1))),
}
"""The study's conditions and those of `make demo`. Colour-blind people can distinguish the colours,
and their contrast to white is at least 3 to 1."""
INK, MUTED, GRID = "#333333", "#555555", "#dddddd"
"""The colours of text, of secondary text and reference lines, and of grid lines."""
_SPARE_STYLES, _SPARE_MARKERS = [*STYLES.values()][4:], "hpDXP"
"""Colours and dashes, and markers, of conditions that are not in STYLES. They leave out the styles
of the study's own four conditions, which many figures show beside them."""


def choose_styles(conditions: Iterable[Any]) -> dict[str, Style]:
    """The style of each condition, in their order.

    The colour of a condition that is not in STYLES follows from its name alone, so it is the same
    in every figure. Conditions of one colour have different markers and dashes.
    """
    style_by_name: dict[str, Style] = {}
    count_by_colour: Counter[str] = Counter()
    for name in dict.fromkeys(map(str, conditions)):
        if name in STYLES:
            style_by_name[name] = STYLES[name]
            continue
        colour = _SPARE_STYLES[crc32(name.encode()) % len(_SPARE_STYLES)].colour
        index = count_by_colour[colour]
        # 5 markers and 4 dashes have no common divisor, so 20 styles of a colour are different
        marker = _SPARE_MARKERS[index % len(_SPARE_MARKERS)]
        dashes = _SPARE_STYLES[index % len(_SPARE_STYLES)].dashes
        style_by_name[name] = Style(colour, marker, dashes)
        count_by_colour[colour] += 1
    return style_by_name


def wrapped_label(condition: str) -> str:
    """The label of a condition, or an instruction, in lines of NAME_LINE_LETTERS."""
    return textwrap.fill(visible(label(condition)), NAME_LINE_LETTERS)


def spell_filler(text: str) -> str:
    """A filler in a figure; one of blanks and line breaks only has the names of its characters."""
    if not text.strip():
        return " ".join(map(name_character, text))
    return visible(text)


def split_settings(table: pandas.DataFrame) -> Iterator[tuple[str, pandas.DataFrame]]:
    """The name and the rows of each model and layout.

    The name has the layout if there are several.
    """
    has_layouts = table["layout"].nunique() > 1
    for (model, layout), rows in table.groupby(["model", "layout"], sort=False, observed=True):
        name = f"{model}, {layout}" if has_layouts else model
        yield visible(name), rows


@contextmanager
def drawing(height: float, note: str, *, title: str = "") -> Iterator[Figure]:
    """A new figure to draw on. On leaving, the legend is added above and the note below.

    Args:
        height: The height in inches, with one line of the note.
        note: The meaning of the marks.
        title: The title of the figure.
    """
    note = textwrap.fill(note, NOTE_LINE_LETTERS, break_on_hyphens=False)
    with matplotlib.rc_context(_MATPLOTLIB_SETTINGS):
        # the height already has room for the first line of the note
        height += LINE_HEIGHT * note.count("\n")
        figure = Figure(figsize=(FIGURE_WIDTH_INCHES, height), layout="constrained")
        yield figure
        handle_by_name = {}
        for axes in figure.axes:
            # panels have the same names, of which the legend lists each once
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handle_by_name[name] = handle
        if handle_by_name:
            # a line of 4 font sizes stands before each name
            entry_letters = max(map(len, handle_by_name)) + 4 / LETTER_WIDTH
            # the letters that fit into the width, divided by those of an entry
            column_count = int(
                72 * FIGURE_WIDTH_INCHES / (LETTER_WIDTH * FONT_POINTS * entry_letters)
            )
            figure.legend(
                handle_by_name.values(),
                handle_by_name,
                loc="outside upper center",
                ncols=max(1, column_count),
                title=title or None,
            )
        elif title:
            figure.suptitle(title)
        # The note is this label because matplotlib makes room for it below the axes.
        figure.supxlabel(note, x=0.01, ha="left", color=MUTED)


def tidy(
    axes: Axes, *, grid: Literal["x", "y", "both"], hidden_sides: Sequence[str] = ("top", "right")
) -> None:
    """Light grid lines behind the data, and no frame on the hidden sides."""
    axes.grid(axis=grid, color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[list(hidden_sides)].set_visible(False)


def write_figure(
    figure: Figure, numbers: pandas.DataFrame, folder: Path, name: str, receipt: Mapping[str, Any]
) -> list[Path]:
    """Write a figure as PNG, SVG and PDF with the receipt inside, and its numbers as CSV.

    Args:
        figure: The figure.
        numbers: The numbers that it shows.
        folder: The folder of the files. It is created if it is missing.
        name: The name of the files, without a suffix.
        receipt: The facts about the runs and the figure.

    Returns:
        The files.

    Raises:
        JournalError: the files cannot be written.
    """
    receipt_text = json.dumps(receipt, sort_keys=True, default=str)
    # Without a date, two drawings of the same numbers are equal. PDF has no field Description.
    metadata_by_format: dict[str, Any] = {
        "png": {"Description": receipt_text},
        "svg": {"Description": receipt_text, "Date": None},
        "pdf": {"Subject": receipt_text, "CreationDate": None},
    }
    table_path = folder / f"{name}.csv"
    paths = []
    # a fixed salt, because matplotlib would give the elements of an SVG random names
    with explain_write_errors(folder), matplotlib.rc_context({"svg.hashsalt": "mless"}):
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, metadata in metadata_by_format.items():
            paths.append(folder / f"{name}.{suffix}")
            figure.savefig(paths[-1], dpi=300, metadata=metadata)
        numbers.to_csv(table_path, index=False)
    return [*paths, table_path]
