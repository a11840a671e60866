"""One table: columns declared once, rows of data, and its cells as text, Markdown, LaTeX or HTML.

A column's legend stands below every table that shows the column. The report's page writes the HTML. Nothing in a cell
can act as markup.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from harness.constants import PASSED, Format
from harness.display.format_values import MINUS, NONE, visible

TABLE_WIDTH = 80
"""A terminal's usual width: tables and notes are fitted to it."""
NOTE_LINES = 4
"""Below a table that explains no more than must be known to read it; one more says how to have all."""

Row = Mapping[str, Any]

_PLAIN = str.maketrans({MINUS: "-", NONE: "-"})
"""Plain text has a hyphen for minus and for a missing value, so that programs can read it."""
_STRONG = {"text": "{}", "markdown": "**{}**", "latex": r"\textbf{{{}}}"}
_MARKDOWN = re.compile(r"[\\|*_`<~&$@]|\](?=[(\[:])|:(?=//)|(?<=www)\.")
"""Characters that Markdown could read as markup. A bracket alone is left as it is: intervals are full of them, and
only what follows it could make it a link or an image."""
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        MINUS: "$-$",
        NONE: "--",
        "<": r"$<$",
        ">": r"$>$",
        **{symbol: rf"\{symbol}" for symbol in "&%$#_{}"},
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The text of a cell, the key it is sorted by, and whether it is strong, which only a passed test is."""

    text: str
    key: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: The fields of a row that it shows, with a blank between two; a field that a row lacks is missing. It is
            sorted by the first.
        heading: Stands above it.
        format: Makes the text from the values of these fields.
        legend: What it says, for readers. It may name facts of the table in braces: see `Table`.
        numeric: Whether it holds numbers, which are set to the right.
        strong: Whether it is bold where the row's test was passed.
        of: The condition that it is of, in a table whose rows have a row of data for each condition.
    """

    key: str
    heading: str
    format: Callable[..., str]
    legend: str = ""
    numeric: bool = True
    strong: bool = False
    of: str = ""

    def cell(self, row: Row) -> Cell:
        """The cell of one row."""
        data = row[self.of] if self.of else row
        values = [data.get(name) for name in self.key.split()]
        key = str(math.nan if self.numeric else "") if values[0] is None else str(values[0])
        return Cell(
            text=self.format(*values), key=key, strong=self.strong and data["verdict"] in PASSED
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A table before it is written in a format.

    Attributes:
        title: Stands above it.
        rows: Its data.
        columns: Its columns.
        remarks: Sentences that stand below it, after the columns' legends.
        facts: What legends name in braces.
    """

    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    remarks: Sequence[str] = ()
    facts: Mapping[str, Any] | None = None

    @property
    def header(self) -> tuple[str, ...]:
        """The columns' headings."""
        return tuple(column.heading for column in self.columns)

    @property
    def cells(self) -> list[tuple[Cell, ...]]:
        """The cells of each row."""
        return [tuple(column.cell(row) for column in self.columns) for row in self.rows]

    @property
    def notes(self) -> tuple[str, ...]:
        """The legends and the remarks."""
        legends = (
            (column.heading, column.legend.format_map(self.facts or {})) for column in self.columns
        )
        return (*(f"{heading}: {legend}." for heading, legend in legends if legend), *self.remarks)

    @property
    def first_notes(self) -> tuple[str, ...]:
        """The notes that are to be read first, remarks before legends, in at most NOTE_LINES lines."""
        kept: tuple[str, ...] = ()
        for note in dict.fromkeys((*self.remarks, *self.notes)):
            if fold([*kept, note]).count("\n") < NOTE_LINES:
                kept = (*kept, note)
        return kept


def render(
    tables: Sequence[Table],
    form: Format = "text",
    footer: Sequence[str] = (),
    *,
    explain: bool = True,
) -> str:
    """Write tables one below the other, then the footer. A note that several tables share stands below the first.

    Args:
        tables: The tables. Control characters, which a model's label may hold, are spelt out.
        form: `text`, `markdown` or `latex`. CSV and JSON are written from data frames: see `result_tables`.
        footer: Lines below all tables: the receipt.
        explain: Whether plain text has all notes, or those that are to be read first.
    """
    said = set[str]()
    parts = []
    for table in tables:
        rows = [[_escape(heading, form) for heading in table.header]]
        rows += [[_cell(cell, form) for cell in cells] for cells in table.cells]
        chosen = table.notes if explain or form != "text" else table.first_notes
        notes = [_escape(note, form) for note in chosen if note not in said]
        said.update(table.notes)
        write = {"text": _text, "markdown": _markdown, "latex": _latex}[form]
        parts.append(
            write(
                _escape(table.title, form),
                rows,
                [column.numeric for column in table.columns],
                notes,
            )
        )
    lines = [visible(line, keep="") for line in footer]
    if form == "text":
        below = fold(lines)
    elif form == "markdown":
        below = "  \n".join(f"<sub>{_escape(line, form)}</sub>" for line in lines)
    else:
        below = "\n".join(f"% {line}" for line in lines)
    return "\n\n".join([*parts, below] if lines else parts)


def fold(texts: Sequence[str], *, hyphens: bool = True, indent: int = 2) -> str:
    """Fold texts into lines of 80 columns, each text from a line of its own on.

    Args:
        texts: The texts.
        hyphens: Whether a line may end after one; names stay whole.
        indent: Blanks before a text's further lines.
    """
    further = " " * indent
    wrapper = textwrap.TextWrapper(
        TABLE_WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=hyphens
    )
    return "\n".join(wrapper.fill(text.translate(_PLAIN)) for text in texts)


def _cell(cell: Cell, form: Format) -> str:
    text = _escape(cell.text, form)
    return _STRONG[form].format(text) if cell.strong else text


def _escape(text: str, form: Format) -> str:
    shown = visible(text, keep="")
    if form == "text":
        return shown.translate(_PLAIN)
    shown = " ".join(shown.split())
    return (
        _MARKDOWN.sub(r"\\\g<0>", shown.translate(_PLAIN))
        if form == "markdown"
        else shown.translate(_LATEX)
    )


def _align(rows: Sequence[Sequence[str]], right: Sequence[bool], tablefmt: str) -> list[str]:
    aligned = ["right" if one else "left" for one in right]
    headers: Sequence[str] = ()
    if tablefmt != "plain":
        headers, *rows = rows
    return str(
        tabulate(rows, headers, tablefmt=tablefmt, disable_numparse=True, colalign=aligned)
    ).splitlines()


def _text(
    title: str, rows: Sequence[Sequence[str]], right: Sequence[bool], notes: Sequence[str]
) -> str:
    """Plain text.

    In a table that is too wide, headings take two lines, and what the first columns say (such as a model's name) stands
    above the rows that it is of.
    """
    # of a table of words alone the last column stays
    words = next((place for place, numeric in enumerate(right) if numeric), len(right) - 1)
    for lifted in range(words + 1):
        names, *body = [row[lifted:] for row in rows]
        for headings in (
            zip(*(("", name) for name in names), strict=True),
            zip(*map(_break, names), strict=True),
        ):
            top = list(headings)
            rule = ["-" * max(map(len, column)) for column in zip(*top, *body, strict=True)]
            width = len("  ".join(rule))
            if width <= TABLE_WIDTH:
                break
        if width <= TABLE_WIDTH:
            break
    lines = _align([*top, rule, *body], right[lifted:], "plain")
    if not any(top[0]):
        del lines[0]
    shown = lines[: -len(body)] if body else lines
    groups = [", ".join(row[:lifted]) for row in rows[1:]]
    for group, above, line in zip(groups, ["", *groups], lines[-len(body) :], strict=False):
        shown += ["", group, line] if group != above else [line]
    return "\n".join([fold([title], hyphens=False), "", *shown]) + (
        f"\n\n{fold(notes)}" if notes else ""
    )


def _break(name: str) -> tuple[str, str]:
    """A heading in two lines of like length."""
    cuts = [
        ("", name),
        *((name[: at.end()].strip(), name[at.end() :]) for at in re.finditer("[ _]", name)),
    ]
    return min(cuts, key=lambda cut: max(map(len, cut)))


def _markdown(
    title: str, rows: Sequence[Sequence[str]], right: Sequence[bool], notes: Sequence[str]
) -> str:
    said = [f"- {note}" for note in notes]
    return "\n".join(
        [f"**{title}**", "", *_align(rows, right, "pipe"), *([""] if said else []), *said]
    )


def _latex(
    title: str, rows: Sequence[Sequence[str]], right: Sequence[bool], notes: Sequence[str]
) -> str:
    guarded = [
        [f"{{}}{row[0]}" if row[0].startswith(("[", "*")) else row[0], *row[1:]] for row in rows
    ]
    rules = iter((r"\toprule", r"\midrule", r"\bottomrule"))
    lines = [
        next(rules) if line == r"\hline" else line for line in _align(guarded, right, "latex_raw")
    ]
    said = [rf"\par\footnotesize {note}" for note in notes]
    body = [r"\centering", rf"\caption{{{title}}}", *lines, *said]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            *(f"  {line}" for line in body),
            r"\end{table}",
        ]
    )
