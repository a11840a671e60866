"""Tables as text, Markdown and LaTeX. Nothing in a cell can act as markup."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.constants import Format
from harness.display.grid import Cell, Grid
from harness.display.numbers import MINUS, NONE
from harness.display.visible import visible

WIDTH = 80
"""A terminal's usual width: tables and notes are fitted to it."""
_PLAIN = str.maketrans({MINUS: "-", NONE: "-"})
"""Plain text has a hyphen for minus and for a missing value, so that programs can read it."""
_CODE = re.compile(r"\x1b\[[0-9;]*m")
_BOLD, _COLOURS = "\x1b[1m{}\x1b[0m", {"better": "\x1b[1;34m{}\x1b[0m", "worse": "\x1b[1;31m{}\x1b[0m"}
"""What a terminal gets around a strong cell: bold, and a verdict in blue or red too."""
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


def render_grids(grids: Sequence[Grid], form: Format, footer: Sequence[str] = (), *, colour: bool = False) -> str:
    """Write tables one below the other, then the footer. A note that several tables share stands below the first.

    Args:
        grids: The tables. Control characters, which a model's label may hold, are spelt out.
        form: `text`, `markdown` or `latex`. CSV and JSON are written from data frames: see `leaderboard`.
        footer: Lines below all tables: the receipt.
        colour: Whether text is for a terminal, which shows strong cells in bold, and verdicts in colour.
    """
    writer = _WRITERS[form]

    def shown(text: str) -> str:
        return writer.escape(visible(text, keep=""))

    def cell_text(cell: Cell) -> str:
        if not cell.strong or (form == "text" and not colour):
            return shown(cell.text)
        colours = (code for word, code in _COLOURS.items() if form == "text" and cell.text.startswith(word))
        return next(colours, writer.bold).format(shown(cell.text))

    parts, said = [], set[str]()
    for grid in grids:
        rows = [[*map(shown, grid.header)], *([*map(cell_text, row)] for row in grid.rows)]
        numeric = [column.numeric for column in grid.columns]
        notes = [note for note in grid.notes if note not in said]
        said.update(notes)
        parts.append(writer.table(shown(grid.title), rows, numeric, [*map(shown, notes)]))
    if footer:
        parts.append(writer.footer([visible(line, keep="") for line in footer]))
    return "\n\n".join(parts)


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Rows as lines with their columns below each other.

    Args:
        rows: The texts of each row.
        right: For each column, whether it is set to the right.
    """
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        texts = []
        for cell, width, to_right in zip(row, widths, right, strict=True):
            gap = " " * (width - _width(cell))
            texts.append(gap + cell if to_right else cell + gap)
        lines.append("  ".join(texts).rstrip())
    return lines


def _text(title: str, rows: Sequence[Sequence[str]], numeric: Sequence[bool], notes: Sequence[str]) -> str:
    header, lines = _fit(rows, numeric)
    table = "\n".join([fold([title], hyphens=False), "", *header, *lines])
    return f"{table}\n\n{fold(notes)}" if notes else table


def _fit(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> tuple[list[str], list[str]]:
    """The lines of the heading, its rule among them, and of the rows.

    In a table that is too wide, headings take two lines, and what the first columns say (such as a model's name) stands
    above the rows that it is of.
    """
    words = next((place for place, right in enumerate(numeric) if right), len(numeric))
    for lifted in range(words + 1):
        names, *body = [row[lifted:] for row in rows]
        wide = sum(max(map(_width, column)) + 2 for column in zip(names, *body, strict=True)) - 2 > WIDTH
        top = list(zip(*(_break(name) if wide else ("", name) for name in names), strict=True))
        rule = ["-" * max(map(_width, column)) for column in zip(*top, *body, strict=True)]
        if sum(map(len, rule)) + 2 * (len(rule) - 1) <= WIDTH or lifted == words:
            break
    first, second, line, *lines = align([*top, rule, *body], numeric[lifted:])
    groups = [", ".join(row[:lifted]) for row in rows[1:]]
    shown: list[str] = []
    for group, above, text in zip(groups, ["", *groups], lines, strict=False):
        shown += ([f"\n{group}"] if group != above else []) + [text]
    return [*filter(None, [first]), second, line], shown


def _break(name: str) -> tuple[str, str]:
    """A heading in two lines of like length."""
    cuts = [("", name), *((name[: at.end()].strip(), name[at.end() :]) for at in re.finditer("[ _]", name))]
    return min(cuts, key=lambda cut: max(map(len, cut)))


def _markdown(title: str, rows: Sequence[Sequence[str]], numeric: Sequence[bool], notes: Sequence[str]) -> str:
    rule = ["--:" if right else "---" for right in numeric]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], rule, *rows[1:]))
    said = "\n".join(f"- {note}" for note in notes)
    return f"**{title}**\n\n{table}" + (f"\n\n{said}" if said else "")


def _latex(title: str, rows: Sequence[Sequence[str]], numeric: Sequence[bool], notes: Sequence[str]) -> str:
    def line(cells: Sequence[str]) -> str:
        guard = "{}" if cells[0].startswith(("[", "*")) else ""  # else the row above takes it as an argument
        return f"    {guard}{' & '.join(cells)} " + r"\\"

    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{title}}}",
            rf"  \begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
            r"    \toprule",
            line(rows[0]),
            r"    \midrule",
            *map(line, rows[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\footnotesize {note}" for note in notes),
            r"\end{table}",
        ]
    )


def _markdown_footer(lines: Sequence[str]) -> str:
    return "  \n".join(f"<sub>{_escape_markdown(line)}</sub>" for line in lines)


def _latex_footer(lines: Sequence[str]) -> str:
    return "\n".join(f"% {' '.join(line.split())}" for line in lines)


def _escape_text(text: str) -> str:
    return text.translate(_PLAIN)


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(_escape_text(text).split()))


def _escape_latex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)


def fold(texts: Sequence[str], *, hyphens: bool = True, indent: int = 2) -> str:
    """Fold texts into lines as wide as the terminal, each text from a line of its own on.

    Args:
        texts: The texts.
        hyphens: Whether a line may end after one; names stay whole.
        indent: Blanks before a text's further lines.
    """
    width = min(120, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH
    further = " " * indent
    wrapper = textwrap.TextWrapper(width, subsequent_indent=further, break_long_words=False, break_on_hyphens=hyphens)
    return "\n".join(wrapper.fill(_escape_text(text)) for text in texts)


def _width(cell: str) -> int:
    return len(_CODE.sub("", cell))


class _Writer(NamedTuple):
    """How a format writes a text, a strong cell, a table of rows (the first is the header), and the footer."""

    escape: Callable[[str], str]
    bold: str
    table: Callable[[str, Sequence[Sequence[str]], Sequence[bool], Sequence[str]], str]
    footer: Callable[[Sequence[str]], str]


_WRITERS = {
    "text": _Writer(_escape_text, _BOLD, _text, fold),
    "markdown": _Writer(_escape_markdown, "**{}**", _markdown, _markdown_footer),
    "latex": _Writer(_escape_latex, r"\textbf{{{}}}", _latex, _latex_footer),
}
