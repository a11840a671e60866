"""A table before it is written in a format: title, columns, cells and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.display.numbers import NONE, PASSED, label, verdict

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The text of a cell, the key it is sorted by, and whether it is strong, which only a passed test is."""

    text: str
    key: float | str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        header: Its heading.
        cell: Makes the cell from a row of data.
        meaning: Explanation for readers, if the heading needs one.
        numeric: Whether it holds numbers, which are set to the right.
    """

    header: str
    cell: Callable[[Any], Cell]
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table before it is written in a format.

    Attributes:
        title: Stands above it.
        columns: The columns.
        rows: The cells of each row.
        notes: Sentences that stand below it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        """The columns' headings."""
        return tuple(column.header for column in self.columns)


def make_grid(title: str, columns: Sequence[Column], rows: Iterable[Any], notes: Sequence[str] = ()) -> Grid:
    """Make every column's cell from every row of data."""
    cells = tuple(tuple(column.cell(row) for column in columns) for row in rows)
    return Grid(title=title, columns=tuple(columns), rows=cells, notes=tuple(notes))


def word_column(name: str) -> Column:
    """A column of words. Conditions are shown by their labels, the primary one with a star, but sorted by name."""

    def cell(row: Row) -> Cell:
        value = row[name]
        if value is None:
            return Cell(text=NONE)
        star = " *" if name == "condition" and row.get("primary") else ""
        return Cell(text=label(value) + star if name == "condition" else str(value), key=str(value))

    return Column(header=name, cell=cell, numeric=False)


def number_column(header: str, name: str, write: Callable[[Any], str], meaning: str = "") -> Column:
    """A column of numbers: the field `name` of each row, written by `write`."""
    return row_column(header, name, lambda row: write(row[name]), meaning)


def row_column(header: str, name: str, write: Callable[[Row], str], meaning: str = "") -> Column:
    """A column whose text `write` makes from the whole row. It is sorted by the number in the field `name`."""

    def cell(row: Row) -> Cell:
        value = row[name]
        return Cell(text=write(row), key=math.nan if value is None else float(value))

    return Column(header=header, cell=cell, meaning=meaning)


def verdict_column(meaning: str = "") -> Column:
    """The column of verdicts, strong where the test was passed."""

    def cell(row: Row) -> Cell:
        return Cell(text=verdict(row), key=str(row["verdict"]), strong=row["verdict"] in PASSED)

    return Column(header="verdict", cell=cell, meaning=meaning, numeric=False)
