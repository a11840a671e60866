"""How long the completions are: for every length the share of completions that are no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.choices import Width
from harness.display.figures.style import (
    GRID,
    INCHES,
    add_note,
    colour,
    in_order,
    label,
    legend_columns,
    rows_of,
    settings,
    styled,
)
from harness.errors import ComparisonError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

ACROSS: dict[Width, int] = {"page": 3, "column": 1}
DASHES = ("-", (0, (4, 1.2)), (0, (1.2, 1)), (0, (5, 1, 1, 1)))
"""Conditions differ in their dashes, too."""


def length_shares(frame: pandas.DataFrame) -> pandas.DataFrame:
    """For each model, layout, condition and length that occurs, the share of completions that are no longer, percent.

    Args:
        frame: One row a sample, with completion_tokens; the first replicate is taken. Where a completion's tokens were
            not counted, all are measured in characters.

    Returns:
        Columns model, layout, condition, unit, length, samples, share.

    Raises:
        ComparisonError: the frame has neither token counts nor completions.
    """
    import numpy as np
    import pandas

    first = frame[frame["replicate"] == 0] if "replicate" in frame else frame
    counted = "completion_tokens" in first and first["completion_tokens"].notna().all()
    if not counted and not {"characters", "completion"} & set(first.columns):
        raise ComparisonError(
            "The samples have no lengths: expected completion_tokens, characters or completion among the columns, got "
            f"{', '.join(map(str, first.columns))}. Load them with harness.load_run."
        )
    if counted:
        sizes = first["completion_tokens"].astype(int)
    else:
        sizes = first["characters"] if "characters" in first else first["completion"].str.len()
    rows = []
    keys = ["model", "layout", "condition"]
    for names, group in sizes.groupby([first[key] for key in keys], observed=True, sort=False):
        lengths, counts = np.unique(group.to_numpy(), return_counts=True)
        shares = 100 * counts.cumsum() / counts.sum()
        rows.append(
            pandas.DataFrame(
                {
                    **dict(zip(keys, map(str, names), strict=True)),
                    "unit": "tokens" if counted else "characters",
                    "length": lengths,
                    "samples": counts.sum(),
                    "share": shares,
                }
            )
        )
    return pandas.concat(rows, ignore_index=True)


def draw_lengths(shares: pandas.DataFrame, *, width: Width = "page") -> Figure:
    """A panel for each model and layout, a line for each condition, its median named.

    Args:
        shares: As of `length_shares`.
        width: `page` is 7 inches, `column` 3.3.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    conditions = in_order(shares["condition"])
    panels = settings(shares)
    across = min(len(panels), ACROSS[width])
    down = -(-len(panels) // across)
    unit = shares["unit"].iloc[0]
    wide = shares["length"].max() > 30 * max(1, shares["length"].min())
    with styled(width) as size:
        figure = Figure(figsize=(INCHES[width], 0.7 + 1.9 * down), layout="constrained")
        grid = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
        for axes, (setting, name) in zip(grid, panels.items(), strict=False):
            rows, medians = rows_of(shares, setting), []
            for place, condition in enumerate(conditions):
                mine = rows[rows["condition"] == condition]
                if not len(mine):
                    continue
                middle = int(mine["length"][mine["share"] >= 50].iloc[0])
                axes.step(
                    [mine["length"].iloc[0], *mine["length"]],
                    [0, *mine["share"]],
                    where="post",
                    color=colour(condition, conditions),
                    linestyle=DASHES[place % len(DASHES)],
                    linewidth=1.3,
                    label=label(condition),
                )
                medians.append(f"{middle:,}")
            if wide:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.set_title(f"{name}\nmedian {' / '.join(medians)}")
            axes.set_ylim(0, 101)
            axes.set_xlabel(f"Length of a completion ({unit})")
            axes.grid(color=GRID, linewidth=0.5)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        grid[0].set_ylabel("Completions no longer (%)")
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=legend_columns(names, width), handlelength=2.6)
        counts = sorted(dict.fromkeys(int(count) for count in shares["samples"]))
        told = " or ".join(f"{count:,}" for count in counts)
        add_note(figure, f"{told} completions a line; medians in the order of the legend.", size)
    return figure
