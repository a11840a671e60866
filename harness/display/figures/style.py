"""What all figures share: widths, fonts, the colour and name of each condition, and the note below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.choices import Width
from harness.display.visible import visible
from harness.display.words import LABELS, plural
from harness.display.words import label as whole_label

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

INCHES: dict[Width, float] = {"page": 7.0, "column": 3.3}
FONT: dict[Width, float] = {"page": 7.5, "column": 6.5}

COLOURS = {"wo": "#6a4c93", "mless": "#1b9e8a", "mful": "#7cc4ea", "random": "#e69f00"}
"""Purple, teal and light blue as in the study, orange for the random sentence; told apart by the colour-blind."""
GAINED, LOST = "#0072b2", "#d55e00"
"""Wrong to right, and right to wrong (Okabe and Ito's blue and vermilion)."""
INK, MUTED, GRID = "#333333", "#555555", "#dddddd"
_SPARE = ("#555555", "#999999", "#bbbb44", "#cc6677")


def colour(condition: str, conditions: Sequence[str]) -> str:
    """A condition's colour; one that has no name of its own takes it from its place."""
    return COLOURS.get(condition, _SPARE[list(conditions).index(condition) % len(_SPARE)])


def label(condition: str) -> str:
    """What people call a condition, without its middle if that is long."""
    return shorten(visible(whole_label(condition), keep=""), NAME)


def in_order(conditions: Iterable[Any]) -> list[str]:
    """Each condition once, the study's first and in the study's order."""
    known = list(LABELS)
    names = dict.fromkeys(str(condition) for condition in conditions)
    return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def settings(table: pandas.DataFrame) -> dict[tuple[str, str], str]:
    """Each model and layout, with its name; the layout is named where there are several."""
    pairs = dict.fromkeys(zip(map(str, table["model"]), map(str, table["layout"]), strict=True))
    several = len({layout for _, layout in pairs}) > 1
    names = {(model, layout): f"{model}, {layout}" if several else model for model, layout in pairs}
    return {pair: visible(name, keep="") for pair, name in names.items()}


def rows_of(table: pandas.DataFrame, setting: tuple[str, str]) -> pandas.DataFrame:
    """The rows of one model and layout."""
    return table[(table["model"] == setting[0]) & (table["layout"] == setting[1])]


def records(table: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows as mappings, conditions in the study's order."""
    order = in_order(table["condition"])
    rows = [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
    return sorted(rows, key=lambda row: order.index(str(row["condition"])))


def without_edits(table: pandas.DataFrame) -> pandas.DataFrame:
    """A table without the harmless edits of the prompt, which are no conditions."""
    return table[table["verdict"] != "prompt null"] if "verdict" in table else table


def about_edits(table: pandas.DataFrame) -> str:
    """A sentence on the harmless edits that a table has and its figure leaves out; nothing if there are none."""
    edits = len(dict.fromkeys(table["condition"])) - len(dict.fromkeys(without_edits(table)["condition"]))
    return f" {edits} harmless edits of the prompt (prompt null) are not shown." if edits else ""


def shorten(name: str, letters: int) -> str:
    """A name without its middle, if it is too long."""
    if len(name) <= letters:
        return name
    return f"{name[: (letters - 1) // 2]}\N{HORIZONTAL ELLIPSIS}{name[len(name) - letters // 2 :]}"


def legend_columns(names: Sequence[str], width: Width) -> int:
    """How many names of a legend stand beside each other."""
    room = 1.6 * 72 * INCHES[width] / FONT[width]  # letters
    longest = sorted(map(len, names), reverse=True)
    return next((n for n in (4, 3, 2) if sum(longest[:n]) + 6 * n < room), 1)


def adjustment(table: pandas.DataFrame) -> str:
    """How p-values were adjusted: over how many tests."""
    tests = int(max(table["tests"].dropna(), default=0))
    return f"Holm, {tests} {plural('test', tests)}" if tests else "Holm"


NAME = 17
"""So many letters of a condition's name have room."""


PLAIN: dict[str, Any] = {"text.parse_math": False, "pdf.fonttype": 42}
"""Dollar signs in names are dollar signs, and words in a PDF can be searched."""


@contextmanager
def styled(width: Width) -> Iterator[float]:
    """Draw inside this; gives the font size in points."""
    import matplotlib

    size = FONT[width]
    style: dict[Any, Any] = {
        "font.size": size,
        "axes.titlesize": size,
        "axes.labelsize": size,
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
        **PLAIN,
    }
    with matplotlib.rc_context(style):
        yield size


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
