"""Tables as text, Markdown, LaTeX and CSV: cells in, characters out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal

from harness.errors import ConfigError

Format = Literal["text", "markdown", "csv", "latex", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "csv", "latex", "json")
WIDTH = 100
"""Notes are folded at so many characters; tables are kept below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a cell shows. Only what has passed its test is strong."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table for people.

    Attributes:
        title: What it is about.
        header: Names of the columns.
        words: Which of them hold words, and are set to the left.
        rows: Cells.
        notes: What must be said below it.
    """

    title: str
    header: tuple[str, ...]
    words: frozenset[str]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def check_format(form: str) -> Format:
    """The format of that name.

    Raises:
        ConfigError: there is none.
    """
    for known in FORMATS:
        if form == known:
            return known
    raise ConfigError(f"Unknown table format {form!r}: expected one of {', '.join(FORMATS)}.")


def render_grids(grids: Sequence[Grid], form: Format, footer: Sequence[str] = (), *, colour: bool = False) -> str:
    """Tables one below the other, and the footer: the receipt.

    Args:
        grids: The tables.
        form: `text`, `markdown` or `latex`; the others are for programs and know no grids.
        footer: Lines below all tables.
        colour: Strong cells in the codes of a terminal (text only).
    """
    parts = [_WRITERS[form](grid, colour) for grid in grids]
    if footer:
        parts.append(_FOOTERS[form](footer))
    return "\n\n".join(parts)


def _text(grid: Grid, colour: bool) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in grid.header:
        table.add_column(Text(name), justify="left" if name in grid.words else "right", no_wrap=True)
    rows = [[Text(cell.text, style="bold" if cell.strong else "") for cell in row] for row in grid.rows]
    widths = [
        max(len(grid.header[i]), *(len(row[i].text) for row in grid.rows)) if grid.rows else len(grid.header[i])
        for i in range(len(grid.header))
    ]
    table.add_row(*("-" * width for width in widths))
    for row in rows:
        table.add_row(*row)
    console = Console(file=StringIO(), width=10_000, force_terminal=colour, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([*_fold(grid.title), "", *lines, *([""] if grid.notes else []), *_fold_all(grid.notes)])


def _markdown(grid: Grid, colour: bool) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if name in grid.words else "--:" for name in grid.header]
    rows = [[_bold_markdown(cell) for cell in row] for row in grid.rows]
    table = [line([_escape_markdown(name) for name in grid.header]), line(rule), *map(line, rows)]
    notes = [f"- {_escape_markdown(note)}" for note in grid.notes]
    return "\n".join([f"**{_escape_markdown(grid.title)}**", "", *table, *([""] if notes else []), *notes])


def _latex(grid: Grid, colour: bool) -> str:
    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(cells) + r" \\"

    sides = "".join("l" if name in grid.words else "r" for name in grid.header)
    rows = [
        [rf"\textbf{{{_escape_latex(c.text)}}}" if c.strong else _escape_latex(c.text) for c in r] for r in grid.rows
    ]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_escape_latex(grid.title)}}}",
            rf"  \begin{{tabular}}{{{sides}}}",
            r"    \toprule",
            line([_escape_latex(name) for name in grid.header]),
            r"    \midrule",
            *map(line, rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\footnotesize {_escape_latex(note)}" for note in grid.notes),
            r"\end{table}",
        ]
    )


def _fold(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False) or [""]


def _fold_all(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in _fold(note)]


def _bold_markdown(cell: Cell) -> str:
    text = _escape_markdown(cell.text)
    return f"**{text}**" if cell.strong else text


def _escape_markdown(text: str) -> str:
    for symbol in "\\|*_`<":
        text = text.replace(symbol, f"\\{symbol}")
    return " ".join(text.split())


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    **{symbol: rf"\{symbol}" for symbol in "&%$#_{}"},
}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(symbol, symbol) for symbol in " ".join(text.split()))


_WRITERS = {"text": _text, "markdown": _markdown, "latex": _latex}
_FOOTERS = {
    "text": lambda footer: "\n".join(_fold_all(footer)),
    "markdown": lambda footer: "\n".join(f"<sub>{_escape_markdown(line)}</sub>  " for line in footer).rstrip(),
    "latex": lambda footer: "\n".join(f"% {' '.join(line.split())}" for line in footer),
}
