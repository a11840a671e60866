"""The forest plot: every condition's paired difference from the baseline, across models and layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.choices import Width
from harness.display.figures.style import (
    GRID,
    INCHES,
    INK,
    MUTED,
    adjustment,
    colour,
    in_order,
    label,
    records,
    rows_of,
    settings,
    styled,
    without_edits,
    wrap,
)
from harness.display.words import interval, p_value, points, signed

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.19
"""Height of a row, in inches."""
SIDES: dict[Width, tuple[float, float]] = {"page": (1.2, 2.5), "column": (1.0, 1.05)}
"""Room to the left and right of the axes for names and numbers, in inches."""
PLACES: dict[Width, dict[str, tuple[str, float]]] = {
    "page": {
        "difference": ("points", 0.1),
        "interval": ("interval", 0.5),
        "p": ("adj. p", 1.25),
        "verdict": ("verdict", 1.75),
    },
    "column": {"difference": ("points", 0.06), "verdict": ("verdict", 0.42)},
}
"""What stands to the right of the axes: its heading, and how far from them, in inches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One row of the plot: a heading, a difference, the baseline against itself, or the harmless edits."""

    kind: str
    name: str
    row: dict[str, Any]
    edits: tuple[float, ...] = ()

    @property
    def reach(self) -> float:
        """How far from zero its differences and intervals go."""
        ends = {"difference": ("low", "high"), "noise": ("aa_difference",)}.get(self.kind, ())
        return max((abs(float(self.row[end])) for end in ends), default=0.0)


def draw_forest(table: pandas.DataFrame, *, width: Width = "page", alpha: float = 0.05) -> Figure:
    """Differences from the baseline with both intervals, the margin shaded, and the verdict in words.

    Args:
        table: As of `harness.analysis.compare`. Its baseline rows give the baseline against itself (A/A), where it
            was run twice; rows of the prompt null become ticks in one row.
        width: `page` is 7 inches, `column` 3.3.
        alpha: The level that the table was made with; it is only named.
    """
    from matplotlib.figure import Figure

    lines = _lines(table)
    conditions = in_order(table["condition"])
    margin = float(table["margin"].iloc[0])
    with styled(width) as size:
        note = wrap(_note(table, margin, alpha, {line.kind for line in lines}), INCHES[width], size)
        below, above = 0.42 + 1.35 * (size - 1) / 72 * (note.count("\n") + 1), 0.2
        height = below + ROW * len(lines) + above
        figure = Figure(figsize=(INCHES[width], height))
        left, right = SIDES[width]
        axes = figure.add_axes(
            (left / INCHES[width], below / height, 1 - (left + right) / INCHES[width], ROW * len(lines) / height)
        )
        axes.axvspan(-margin, margin, color="#eeeeee", zorder=0)
        axes.axvline(0, color=MUTED, linewidth=0.6, zorder=1)
        edge = 2 * max(margin, *(line.reach for line in lines))
        for y, line in enumerate(lines):
            _draw_line(axes, y, line, colour=colour(line.row.get("condition", "wo"), conditions), size=size, edge=edge)
        _write(axes, lines, width, size)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        words = "Difference in accuracy from {} (points)" if width == "page" else "Difference from {} (points)"
        axes.set_xlabel(words.format(_baseline(table)))
        axes.grid(axis="x", color=GRID, linewidth=0.5)
        axes.set_axisbelow(True)
        figure.text(0.01, 0.04 / height, note, fontsize=size - 1, color=MUTED, va="bottom")
    return figure


def _lines(table: pandas.DataFrame) -> list[_Line]:
    lines = []
    for setting, name in settings(table).items():
        rows = rows_of(table, setting)
        base = next(row for row in records(rows) if row["verdict"] == "baseline")
        lines.append(_Line(kind="heading", name=f"{name} (n = {base['n']}, k = {base['k']})", row={}))
        lines += [
            _Line(kind="difference", name=label(row["condition"]), row=row)
            for row in records(without_edits(rows))
            if row["verdict"] != "baseline"
        ]
        edits = rows[rows["verdict"] == "prompt null"]
        if len(edits):
            told = f"{len(edits)} harmless edits"
            lines.append(_Line(kind="edits", name=told, row={}, edits=tuple(edits["difference"].astype(float))))
        if base["aa_difference"] == base["aa_difference"]:
            lines.append(_Line(kind="noise", name=f"{label(base['condition'])} again (A/A)", row=base))
    return lines


def _draw_line(axes: Axes, y: int, line: _Line, *, colour: str, size: float, edge: float) -> None:
    row = line.row
    if line.kind == "difference":
        axes.plot([row["low"], row["high"]], [y, y], color=INK, linewidth=0.8, zorder=2, solid_capstyle="butt")
        inner = [row["equivalence_low"], row["equivalence_high"]]
        axes.plot(inner, [y, y], color=colour, linewidth=3.2, zorder=3, solid_capstyle="butt")
        passed = row["verdict"] in ("better", "worse")
        axes.plot(
            row["difference"],
            y,
            marker="o",
            markersize=size * 0.62,
            color=INK if passed else "white",
            markeredgecolor=INK,
            markeredgewidth=0.8,
            zorder=4,
            linestyle="none",
        )
    elif line.kind == "noise":
        axes.plot(row["aa_difference"], y, marker="D", markersize=size * 0.5, color=MUTED, zorder=4, linestyle="none")
    elif line.kind == "edits":
        near = [edit for edit in line.edits if abs(edit) <= edge]
        axes.plot(near, [y] * len(near), marker="|", color=MUTED, markersize=size, linestyle="none")
        for side, marker in ((-1, "<"), (1, ">")):  # one edit that wrecks the prompt must not squeeze all else
            if any(side * edit > edge for edit in line.edits):
                axes.plot(side * edge, y, marker=marker, color=MUTED, markersize=size * 0.6)


def _write(axes: Axes, lines: list[_Line], width: Width, size: float) -> None:
    """Names to the left of the axes, numbers and verdicts to the right; places in inches from the edge of the axes."""
    left, _ = SIDES[width]
    cells = [_cells(line) for line in lines]

    def put(inches: float, y: float, text: str, *, edge: int = 1, ha: str = "left", colour: str = INK) -> None:
        axes.annotate(
            text,
            (edge, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(72 * inches, 0),
            textcoords="offset points",
            ha=ha,
            va="center",
            fontsize=size - 0.5,
            color=colour,
        )

    for y, line in enumerate(lines):
        if line.kind == "heading":
            put(0.03 - left, y, line.name, edge=0)
        else:
            put(-0.06, y, line.name, edge=0, ha="right")
    for name, (head, inches) in PLACES[width].items():
        put(inches, -1, head, colour=MUTED)
        for y, cell in enumerate(cells):
            put(inches, y, cell.get(name, ""))


def _cells(line: _Line) -> dict[str, str]:
    row = line.row
    if line.kind == "noise":
        return {"difference": signed(row["aa_difference"]), "verdict": "noise"}
    if line.kind != "difference":
        return {}
    return {
        "difference": signed(row["difference"]),
        "interval": interval(row["low"], row["high"], sign=True),
        "p": p_value(row["p_adjusted"]),
        "verdict": str(row["verdict"]),
    }


def _baseline(table: pandas.DataFrame) -> str:
    return " / ".join(label(name) for name in dict.fromkeys(table["baseline"]))


def _note(table: pandas.DataFrame, margin: float, alpha: float, kinds: set[str]) -> str:
    sentences = [
        f"Thin: {100 * (1 - alpha):g} % score interval; thick: {100 * (1 - 2 * alpha):g} %, from which equivalence is "
        f"read. Shaded: the margin of {points(margin)}. Filled dots: adjusted p < {alpha:g} "
        f"({adjustment(table)}).",
    ]
    if "noise" in kinds:
        sentences.append("Diamonds: the baseline run a second time less the first.")
    if "edits" in kinds:
        edits = table[table["verdict"] == "prompt null"]["difference"]
        sentences.append(
            "Ticks: edits of the prompt that change neither meaning nor length much, without filler, "
            f"{signed(edits.min())} to {signed(edits.max())} points; an arrow is for those farther out."
        )
    return " ".join(sentences)
