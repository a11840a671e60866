"""A table of columns and rows of data, and its plain text, Markdown and LaTeX.

The report's template writes tables as HTML. In no format can a text in a cell act as markup.
"""

import math
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.constants import SIGNIFICANT_VERDICTS, Row, TableFormat
from harness.display.value_texts import EN_DASH, MINUS, visible

TABLE_WIDTH = 80
"""The usual width of a terminal, to which notes are fitted, and tables unless it is wider."""
MOST_NOTE_LINES = 5
"""The most lines of notes besides warnings below a table in plain text without `--explain`."""


_ESCAPES_BY_FORMAT = {
    "text": str.maketrans({MINUS: "-", EN_DASH: "-"}),
    "markdown": str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#&$~"}),
    "latex": str.maketrans(
        {
            **{character: f"\\{character}" for character in "&%$#_{}"},
            # Without braces LaTeX takes these two for arguments of the line break before them.
            "[": "{[}",
            "*": "{*}",
            "<": "$<$",
            ">": "$>$",
            "|": "$|$",
            "\\": "$\\backslash$",
            "~": "$\\sim$",
            "^": "\\^{}",
            MINUS: "$-$",
        }
    ),
}
"""Characters that a format writes in another way, by format. Plain text has a hyphen for minus and
for a missing value, so that programs can read it."""
_ALIGNMENTS = {"text": "<>", "markdown": ("---", "---:"), "latex": "lr"}
"""How each format aligns a column: first the sign for texts, on the left, then that for numbers, on
the right. `Column.is_numeric` is the index."""

TextGrid = Sequence[Sequence[str]]
"""The texts of cells, line by line."""


class Cell(NamedTuple):
    """A cell: its text, its key for sorting, and whether it is bold because a test was passed."""

    text: str
    sort_key: str
    is_bold: bool


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        field_names: The names of the row's fields that the column shows, separated by blanks. A
            field that a row lacks is a missing value. Rows are sorted by the first field.
        heading: The text above the column.
        format: Formats the values of these fields as one text.
        legend: The meaning of the column, for readers. It may name facts in braces:
            see `comparison_remarks`.
        is_numeric: Whether the column contains numbers, which are aligned on the right.
        is_bold: Whether cells are bold in rows whose test was passed.
        is_optional: Whether plain text omits the column if the table is too wide with it.
    """

    field_names: str
    heading: str
    format: Callable[..., str]
    legend: str = ""
    is_numeric: bool = True
    is_bold: bool = False
    is_optional: bool = False

    def cell(self, row: Row) -> Cell:
        """The text of this column in a row, and the value by which rows are sorted."""
        field_values = [row.get(field) for field in self.field_names.split()]
        sort_value = field_values[0]
        if sort_value is None:
            # the report's script sorts NaN behind all numbers
            sort_value = math.nan if self.is_numeric else ""
        is_bold = self.is_bold and row["verdict"] in SIGNIFICANT_VERDICTS
        return Cell(self.format(*field_values), str(sort_value), is_bold)


@dataclass(frozen=True)
class Table:
    """A table before it is written in a format.

    Attributes:
        title: The text above the table.
        rows: The data.
        columns: The columns.
        remarks: Sentences below the table, after the columns' legends.
        warnings: Sentences directly below the table, which are always shown: without them the
            numbers would mislead.
    """

    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def cells(self) -> list[tuple[Cell, ...]]:
        """The cells of each row."""
        return [tuple(column.cell(row) for column in self.columns) for row in self.rows]

    @property
    def legends(self) -> list[str]:
        """The meaning of each column that has one."""
        return [f"{column.heading}: {column.legend}." for column in self.columns if column.legend]

    @property
    def notes(self) -> list[str]:
        """The warnings, then the legends, then the remarks."""
        return [*self.warnings, *self.legends, *self.remarks]

    @property
    def short_notes(self) -> list[str]:
        """All warnings, and those remarks and legends that together fit into MOST_NOTE_LINES."""
        fitting_notes: list[str] = []
        for note in (*self.remarks, *self.legends):
            if fold([*fitting_notes, note]).count("\n") < MOST_NOTE_LINES:
                fitting_notes.append(note)
        return [*self.warnings, *fitting_notes]


def render(
    tables: Sequence[Table],
    footer: Sequence[str] = (),
    *,
    output_format: TableFormat = "text",
    explain: bool = True,
) -> str:
    """Write tables one below the other, then the footer.

    A note that several tables share stands below the first.

    Args:
        tables: The tables. Control characters, which a model's label may contain, are spelt out.
        footer: Lines below all tables: the receipts.
        output_format: `text`, `markdown` or `latex`.
        explain: Whether there are all notes, or only the short notes.
    """
    blocks = []
    previous_notes: set[str] = set()
    for table in tables:
        notes = table.notes if explain else table.short_notes
        new_notes = [note for note in notes if note not in previous_notes]
        # all notes, so that one that was too long for these short notes is not shown further below
        previous_notes.update(table.notes)
        blocks += [
            fold([table.title], output_format),
            _format_table(table, output_format),
            fold(new_notes, output_format),
        ]
    blocks.append(fold(footer, output_format))
    return "\n\n".join(filter(None, blocks))


def fold(texts: Sequence[str], output_format: TableFormat = "text", *, indent: int = 2) -> str:
    """Fold texts into lines of 80 columns, of which none ends inside a word with a hyphen.

    Each text begins on a new line. Control characters are spelt out, but a tab becomes blanks.

    Args:
        texts: The texts.
        output_format: In Markdown and LaTeX each text is a paragraph of one line.
        indent: Blanks before the second and further lines of a text.
    """
    if output_format != "text":
        return "\n\n".join(_escape(text, output_format) for text in texts)
    wrapper = textwrap.TextWrapper(
        TABLE_WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(
        wrapper.fill(_escape(text, output_format, kept_characters="\t")) for text in texts
    )


def _escape(text: str, output_format: TableFormat, kept_characters: str = "") -> str:
    """The text as a format writes it, so that no character acts as markup or on a terminal."""
    return visible(text, kept_characters=kept_characters).translate(
        _ESCAPES_BY_FORMAT[output_format]
    )


def _format_table(table: Table, output_format: TableFormat) -> str:
    """Header and rows in a format."""
    grid = [[_escape(column.heading, output_format) for column in table.columns]]
    for cells in table.cells:
        grid.append([_escape(cell.text, output_format) for cell in cells])
    if output_format == "text":
        return _format_plain_text(table, grid)
    # as an index, `is_numeric` chooses between the signs for texts and for numbers
    alignments = [_ALIGNMENTS[output_format][column.is_numeric] for column in table.columns]
    if output_format == "markdown":
        grid.insert(1, alignments)
        return "\n".join(f"| {' | '.join(row)} |" for row in grid)
    lines = [rf"{' & '.join(row)} \\" for row in grid]
    lines.insert(1, r"\hline")
    return "\n".join([rf"\begin{{tabular}}{{{''.join(alignments)}}}", *lines, r"\end{tabular}"])


def _format_plain_text(table: Table, grid: TextGrid) -> str:
    """Header and rows, as wide as the terminal at most.

    If the table is too wide, headings take two lines. If it still is, optional columns are left
    out. If it still is, the first columns of text, such as that of the model, become headings of
    groups of rows, as few of them as needed.

    Args:
        table: The table.
        grid: The texts of its header, then those of each row.
    """
    numeric_flags = [column.is_numeric for column in table.columns]
    header = _choose_header(_list_headers(grid, numeric_flags))
    required_columns = [column for column in table.columns if not column.is_optional]
    # a header without the first columns shows that these became headings of groups
    has_group_headings = len(header[0]) < len(numeric_flags)
    # The table without its optional columns is narrower, so its header is chosen anew. It may have
    # all of the remaining columns.
    if has_group_headings and len(required_columns) < len(numeric_flags):
        return _format_table(replace(table, columns=required_columns), "text")
    return "\n".join(_align_lines(grid[1:], header, numeric_flags))


def _align_lines(rows: TextGrid, header: TextGrid, numeric_flags: Sequence[bool]) -> list[str]:
    """The lines of header and rows.

    The first columns may be missing in the header. Their texts are headings of groups of rows.

    Args:
        rows: The texts of all columns.
        header: From `_choose_header`. Its last line has the underlines, as wide as the columns.
        numeric_flags: For each column, whether it contains numbers.
    """
    # a header lacks exactly the first columns, which head groups: see `_list_headers`
    group_column_count = len(numeric_flags) - len(header[0])
    # one for each column, such as `{:<12}` for a text
    cell_formats = [
        f"{{:{_ALIGNMENTS['text'][is_numeric]}{len(underline)}}}"
        for underline, is_numeric in zip(
            header[-1], numeric_flags[group_column_count:], strict=True
        )
    ]
    line_format = "  ".join(cell_formats)
    lines = [line_format.format(*row).rstrip() for row in header]
    previous_heading = ""
    for row in rows:
        group_heading = ", ".join(row[:group_column_count])
        if group_heading != previous_heading:
            lines += ["", group_heading]
        lines.append(line_format.format(*row[group_column_count:]).rstrip())
        previous_heading = group_heading
    return lines


def _choose_header(headers: Iterable[TextGrid]) -> TextGrid:
    """The first (widest) header with which the table fits the terminal; if none does, the last."""
    width = max(TABLE_WIDTH, shutil.get_terminal_size().columns)
    for header in headers:
        # two blanks separate columns
        if len("  ".join(header[-1])) <= width:
            break
    return header


def _list_headers(grid: TextGrid, numeric_flags: Sequence[bool]) -> Iterator[TextGrid]:
    """The possible headers, the widest first: one or two lines of headings, then underlines.

    They have all columns, then not the first one, then not the first two and so on. Only columns of
    text before the first column of numbers can be left out, as their texts become headings of
    groups. So a table of text only, such as one with paths, may be wider than the terminal.
    """
    most_group_columns = numeric_flags.index(True) if any(numeric_flags) else 0
    for group_column_count in range(most_group_columns + 1):
        headings, *body = [row[group_column_count:] for row in grid]
        # the first halves of all headings, then their second halves
        two_heading_lines = [*zip(*map(_break_heading, headings), strict=True)]
        for heading_lines in ([headings], two_heading_lines):
            column_texts = zip(*heading_lines, *body, strict=True)
            # a column is as wide as its longest text
            yield [*heading_lines, ["-" * max(map(len, column)) for column in column_texts]]


def _break_heading(heading: str) -> tuple[str, str]:
    """A heading in two lines, of which the longer one is as short as possible."""
    line_pairs = [("", heading)]
    line_pairs += [
        (heading[: separator.end()].strip(), heading[separator.end() :])
        for separator in re.finditer("[ _]", heading)
    ]
    return min(line_pairs, key=lambda lines: max(map(len, lines)))
