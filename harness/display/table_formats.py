"""Tables as text, Markdown and LaTeX: cells in, characters out, and nothing in them that could act as markup."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

from harness.choices import Format
from harness.display.grid import Cell, Grid
from harness.display.visible import visible
from harness.display.words import MINUS, NONE

WIDTH = 100
"""Notes are folded at so many characters; tables are kept below."""
_PLAIN = str.maketrans({MINUS: "-", NONE: "-"})
"""A program that is given plain text knows no other minus."""


def render_grids(grids: Sequence[Grid], form: Format, footer: Sequence[str] = (), *, colour: bool = False) -> str:
    """Tables one below the other, and the footer: the receipt.

    Args:
        grids: The tables. Control characters in their words, which a model's label may hold, are spelt out.
        form: `text`, `markdown` or `latex`; the others are for programs and know no grids.
        footer: Lines below all tables.
        colour: Strong cells in the codes of a terminal (text only).
    """
    parts = [_WRITERS[form](_one_line_each(grid), colour) for grid in grids]
    if footer:
        parts.append(_FOOTERS[form]([visible(line, keep="") for line in footer]))
    return "\n\n".join(parts)


def _one_line_each(grid: Grid) -> Grid:
    """The grid with every text on one line, and nothing hidden in it."""
    return Grid(
        title=visible(grid.title, keep=""),
        columns=tuple(replace(column, header=visible(column.header, keep="")) for column in grid.columns),
        rows=tuple(tuple(replace(cell, text=visible(cell.text, keep="")) for cell in row) for row in grid.rows),
        notes=tuple(visible(note, keep="") for note in grid.notes),
    )


def _text(grid: Grid, colour: bool) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in grid.columns:
        table.add_column(Text(column.header), justify="right" if column.numeric else "left", no_wrap=True)
    rows = [[Text(cell.text.translate(_PLAIN), style="bold" if cell.strong else "") for cell in r] for r in grid.rows]
    widths = [max(len(name), *(len(row[i].plain) for row in rows), 0) for i, name in enumerate(grid.header)]
    table.add_row(*("-" * width for width in widths))
    for row in rows:
        table.add_row(*row)
    console = Console(file=StringIO(), width=10_000, force_terminal=colour, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(
        [*_fold(grid.title, hyphens=False), "", *lines, *([""] if grid.notes else []), *_fold_all(grid.notes)]
    )


def _markdown(grid: Grid, colour: bool) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["--:" if column.numeric else "---" for column in grid.columns]
    rows = [[_bold_markdown(cell) for cell in row] for row in grid.rows]
    table = [line([_escape_markdown(name) for name in grid.header]), line(rule), *map(line, rows)]
    notes = [f"- {_escape_markdown(note)}" for note in grid.notes]
    return "\n".join([f"**{_escape_markdown(grid.title)}**", "", *table, *([""] if notes else []), *notes])


def _latex(grid: Grid, colour: bool) -> str:
    def line(cells: Sequence[str]) -> str:
        guard = "{}" if cells[0].startswith(("[", "*")) else ""  # else the row above takes it as an argument
        return f"    {guard}{' & '.join(cells)} " + r"\\"

    sides = "".join("r" if column.numeric else "l" for column in grid.columns)
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


def _fold(text: str, *, hyphens: bool = True) -> list[str]:
    """Lines of at most WIDTH; names, which may hold hyphens, stay whole where these are no places to break."""
    lines = textwrap.wrap(
        text.translate(_PLAIN), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=hyphens
    )
    return lines or [""]


def _fold_all(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in _fold(note)]


def _bold_markdown(cell: Cell) -> str:
    text = _escape_markdown(cell.text)
    return f"**{text}**" if cell.strong else text


_MARKDOWN = re.compile(r"[\\|*_`<~&$@]|\](?=[(\[:])|:(?=//)|(?<=www)\.")
"""What Markdown would read as more than itself. A bracket alone is left as it is: intervals are full of them, and it
takes what follows it to make a link or an image."""


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.translate(_PLAIN).split()))


_LATEX = {
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


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(symbol, symbol) for symbol in " ".join(text.split()))


_WRITERS = {"text": _text, "markdown": _markdown, "latex": _latex}
_FOOTERS = {
    "text": lambda footer: "\n".join(_fold_all(footer)),
    "markdown": lambda footer: "\n".join(f"<sub>{_escape_markdown(line)}</sub>  " for line in footer).rstrip(),
    "latex": lambda footer: "\n".join(f"% {' '.join(line.split())}" for line in footer),
}
