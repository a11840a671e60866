"""The rows of a figure. If they are many, the conditions of a family share a row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.analysis.other_texts_and_instructions import KINDS
from harness.constants import PASSED
from harness.display.figures.figure_style import LOOKS, MUTED, Look, spell, wrapped_label
from harness.display.format_values import number, signed
from harness.experiment.conditions import Condition

ROW_HEIGHT, LINE_HEIGHT = 0.19, 0.12
"""The height of a row, and of each further line in it, in inches."""
MOST_ROWS = 20
"""In a figure with more rows, the conditions of a family share a row."""
FEWEST_MEMBERS = 3
"""A smaller family keeps its rows."""


class FigureRow(NamedTuple):
    """One row of a figure. A row without a look is a heading.

    Attributes:
        name: The text to the left of the axes.
        cells: The texts to the right of the axes, by column.
        look: Colour and marker.
        value: The position of the mark.
        low: The lower end of the interval; NaN for none.
        high: The upper end.
        filled: Whether the mark is filled; else it is white.
        outer: The ends of the line behind a pooled effect, which is a diamond from low to high.
        family: The family of its condition.
        members: The values of the family that shares the row.
    """

    name: str
    cells: Mapping[str, str] = {}
    look: Look | None = None
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    filled: bool = True
    outer: tuple[float, float] | None = None
    family: str = ""
    members: Sequence[float] = ()

    @property
    def height(self) -> float:
        """The height of the row in inches, from the lines of its texts."""
        lines = max(text.count("\n") for text in (self.name, *self.cells.values()))
        return ROW_HEIGHT + LINE_HEIGHT * lines


def name_families(conditions: Mapping[str, Condition]) -> dict[str, str]:
    """The family of each condition with a filler: all but the filler's length, or its text.

    The conditions of the study, and those that have their looks, are in no family.
    """
    families = {}
    for name, condition in conditions.items():
        if condition.filler and name not in LOOKS:
            fields = condition.describe()
            kind = KINDS.get(condition.filler, f"lengths of {spell(fields['filler'])}")
            families[name] = ", ".join(filter(None, (kind, fields["placement"], fields["words"])))
    return families


def join_families(rows: Sequence[FigureRow]) -> Sequence[FigureRow]:
    """The rows; if they are many, one row for the members of a family below one heading."""
    if len(rows) <= MOST_ROWS:
        return rows
    groups: dict[tuple[str, str], list[FigureRow]] = {}
    heading = ""
    for row in rows:
        if row.look is None:
            heading = row.name
        groups.setdefault((heading, row.family or row.name), []).append(row)
    joined = []
    for (_, family), members in groups.items():
        joined += members if len(members) < FEWEST_MEMBERS else [_join_rows(family, members)]
    return joined


def _join_rows(family: str, rows: Sequence[FigureRow]) -> FigureRow:
    """The mean of the rows as mark, their least and most as its line, and all of them as dots."""
    values = [row.value for row in rows]
    mean, low, high = sum(values) / len(values), min(values), max(values)
    # the first two columns have the value and its interval
    value_column, range_column, *_ = rows[0].cells
    write = signed if value_column == "points" else number
    cells = {value_column: write(mean), range_column: f"{write(low)} to {write(high)}"}
    verdicts = [row.cells["verdict"] for row in rows if "verdict" in row.cells]
    passed = [f"{verdicts.count(word)} {word}" for word in PASSED if word in verdicts]
    if passed:
        cells["verdict"] = "\n".join(passed)
    return FigureRow(
        wrapped_label(f"{len(rows)} {family}"),
        {**rows[0].cells, **cells},
        Look(MUTED, "|", "-"),
        mean,
        low,
        high,
        members=values,
        family=f"{rows[0].name} to {rows[-1].name}",
    )


def explain_families(rows: Sequence[FigureRow]) -> str:
    """A sentence for the note below the rows; empty without families."""
    names = dict.fromkeys(f"{row.name}: {row.family}" for row in rows if row.members)
    if not names:
        return ""
    listed = " ".join("; ".join(names).split())
    return f" Dots: single conditions; |: their mean, and in numbers their range. {listed}."
