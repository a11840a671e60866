"""A table for people: columns, cells that know what they are sorted by, and what must be said below."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.display.words import NONE, PASSED, label, verdict

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a cell shows, and what it is sorted by. Only what has passed its test is strong."""

    text: str
    key: float | str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's heading, what it means, and whether it holds numbers, which are set to the right."""

    header: str
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table for people.

    Attributes:
        title: What it is about.
        columns: Of every row.
        rows: Cells.
        notes: What must be said below it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def header(self) -> tuple[str, ...]:
        """The columns' headings."""
        return tuple(column.header for column in self.columns)

    @property
    def meanings(self) -> list[tuple[str, str]]:
        """Headings that need a word, with it."""
        return [(column.header, column.meaning) for column in self.columns if column.meaning]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column, and how its cell is made of a row."""

    column: Column
    cell: Callable[[Any], Cell]


def make_grid(title: str, fields: Sequence[Field], rows: Iterable[Any], notes: Sequence[str] = ()) -> Grid:
    """The table of some fields of some rows."""
    return Grid(
        title=title,
        columns=tuple(field.column for field in fields),
        rows=tuple(tuple(field.cell(row) for field in fields) for row in rows),
        notes=tuple(notes),
    )


def word_field(name: str) -> Field:
    """A column of words; a condition by its label, sorted by its name, the primary contrast with a star."""

    def cell(row: Row) -> Cell:
        value = row[name]
        if value is None:
            return Cell(text=NONE)
        star = " *" if name == "condition" and row.get("primary") else ""
        return Cell(text=label(value) + star if name == "condition" else str(value), key=str(value))

    return Field(column=Column(header=name, numeric=False), cell=cell)


def number_field(header: str, name: str, write: Callable[[Row], str], meaning: str = "") -> Field:
    """A column of numbers, sorted by the one called `name`."""

    def cell(row: Row) -> Cell:
        value = row.get(name)
        return Cell(text=write(row), key=math.nan if value is None else float(value))

    return Field(column=Column(header=header, meaning=meaning), cell=cell)


def verdict_field(meaning: str = "") -> Field:
    """The column of verdicts, strong where the test was passed."""

    def cell(row: Row) -> Cell:
        return Cell(text=verdict(row), key=str(row["verdict"]), strong=row["verdict"] in PASSED)

    return Field(column=Column(header="verdict", meaning=meaning, numeric=False), cell=cell)
