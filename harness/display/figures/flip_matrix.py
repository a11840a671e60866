"""The flips matrix: for each condition, how many problems are right or wrong under it and under the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.choices import Width
from harness.display.figures.style import (
    GAINED,
    INCHES,
    INK,
    LOST,
    MUTED,
    about_edits,
    add_note,
    label,
    records,
    rows_of,
    settings,
    styled,
    without_edits,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS: dict[Width, int] = {"page": 5, "column": 3}
"""So many matrices stand in a row at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipMatrix:
    """The four counts of one comparison, in problems; fractions with several samples a problem.

    Attributes:
        name: What is compared with the baseline.
        baseline: The baseline's name.
        both_right, wrong_to_right, right_to_wrong, both_wrong: The counts.
    """

    name: str
    baseline: str
    both_right: float
    wrong_to_right: float
    right_to_wrong: float
    both_wrong: float

    @classmethod
    def of(cls, row: dict[str, Any], *, noise: bool = False) -> FlipMatrix:
        """From a row of `analysis.compare`; with `noise` the baseline's second run against its first."""
        prefix = "aa_" if noise else ""
        up, down = float(row[f"{prefix}wrong_to_right"]), float(row[f"{prefix}right_to_wrong"])
        n = int(row["n"])
        right = n * float(row["accuracy"]) / 100  # under the condition, or under the baseline's first run
        stays = right - (down if noise else up)
        return cls(
            name=f"{label(row['condition'])} again" if noise else label(row["condition"]),
            baseline=label(row["baseline"]),
            both_right=stays,
            wrong_to_right=up,
            right_to_wrong=down,
            both_wrong=n - stays - up - down,
        )


def draw_flip_matrix(table: pandas.DataFrame, *, width: Width = "page") -> Figure:
    """A matrix for each model, layout and condition, and for the baseline against itself where it was run twice.

    Args:
        table: As of `harness.analysis.compare`; rows of the prompt null are left out.
        width: `page` is 7 inches, `column` 3.3.
    """
    from matplotlib.figure import Figure

    groups = {name: _matrices(rows_of(table, setting)) for setting, name in settings(table).items()}
    most = max(len(matrices) for matrices in groups.values())
    across = -(-most // -(-most // ACROSS[width]))  # as even as can be
    down = -(-most // across)
    scale = max(max(m.wrong_to_right, m.right_to_wrong) for group in groups.values() for m in group) or 1.0
    with styled(width) as size:
        side = min(1.5 if width == "page" else 1.1, (INCHES[width] - 0.3) / across)
        named = 0.2 if len(groups) > 1 else 0.0
        height = 0.62 + len(groups) * (named + down * (0.86 * side + 0.2))
        figure = Figure(figsize=(INCHES[width], height), layout="constrained")
        bands = figure.subfigures(len(groups), 1, squeeze=False)[:, 0]
        for band, (name, matrices) in zip(bands, groups.items(), strict=True):
            if named:
                band.suptitle(name, x=0.01, ha="left", fontsize=size)
            grid = band.add_gridspec(down, across)
            for place, matrix in enumerate(matrices):
                axes = band.add_subplot(grid[divmod(place, across)])
                _draw(axes, matrix, scale, size, first=place % across == 0)
        add_note(figure, _note(table), size)
    return figure


def _matrices(rows: pandas.DataFrame) -> list[FlipMatrix]:
    shown = records(without_edits(rows))
    found = [FlipMatrix.of(row) for row in shown if row["verdict"] != "baseline"]
    bases = [row for row in shown if row["verdict"] == "baseline" and row["aa_p"] == row["aa_p"]]
    return found + [FlipMatrix.of(row, noise=True) for row in bases]


def _draw(axes: Axes, matrix: FlipMatrix, scale: float, size: float, *, first: bool) -> None:
    from matplotlib.patches import Rectangle

    total = matrix.both_right + matrix.both_wrong + matrix.wrong_to_right + matrix.right_to_wrong
    cells = (
        (0, 0, matrix.both_right, "#999999", 0.25),
        (1, 0, matrix.right_to_wrong, LOST, 0.1 + 0.55 * matrix.right_to_wrong / scale),
        (0, 1, matrix.wrong_to_right, GAINED, 0.1 + 0.55 * matrix.wrong_to_right / scale),
        (1, 1, matrix.both_wrong, "#999999", 0.25),
    )
    for x, y, count, fill, depth in cells:
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, alpha=depth, edgecolor="none"))
        axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="white", linewidth=1.5))
        number = f"{count:.0f}" if abs(count - round(count)) < 1e-6 else f"{count:.1f}"
        axes.text(x + 0.5, y + 0.42, number, ha="center", va="center", fontsize=size + 1.5, color=INK)
        axes.text(
            x + 0.5,
            y + 0.74,
            f"{100 * count / total:.1f} %",
            ha="center",
            va="center",
            fontsize=size - 1.5,
            color=MUTED,
        )
    axes.set_xlim(0, 2)
    axes.set_ylim(2, 0)
    axes.set_aspect("equal", anchor="N")  # room for the name is kept above the cells
    axes.set_xticks([0.5, 1.5], ["right", "wrong"])
    axes.set_yticks([0.5, 1.5], ["right", "wrong"] if first else ["", ""])
    axes.tick_params(length=0, pad=1)
    axes.xaxis.set_ticks_position("top")
    axes.set_title(matrix.name, pad=3)
    if first:
        axes.set_ylabel(matrix.baseline)
    axes.spines[:].set_visible(False)


def _note(table: pandas.DataFrame) -> str:
    several = bool((table["k"] > 1).any())
    counted = "Problems, averaged over all pairs of a sample of either condition" if several else "Problems"
    return (
        f"{counted}: rows by the baseline, columns by the condition above. Blue: wrong to right; orange: the reverse. "
        "Their difference, not their number, is the effect; whether it is more than chance is in the forest plot."
        + about_edits(table)
    )
