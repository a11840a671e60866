"""Shares by length: for every length of a completion the share of completions that are no longer."""

from __future__ import annotations

import pandas
from matplotlib.figure import Figure

from harness.display.figures import style


def length_shares(frame: pandas.DataFrame) -> pandas.DataFrame:
    """For each model, layout, condition and length that occurs, the share of completions that are no longer, percent.

    Args:
        frame: One row per sample, with completion_tokens and characters; only the first replicate is taken. If any
            completion's tokens were not counted, all are measured in characters.

    Returns:
        Columns model, layout, condition, unit, length, samples, share.
    """
    first = frame[frame["replicate"] == 0]
    counted = first["completion_tokens"].notna().all()
    lengths = first["completion_tokens" if counted else "characters"].astype(int)
    keys = ["model", "layout", "condition"]
    shares = first[keys].astype(str).assign(unit="tokens" if counted else "characters", length=lengths)
    groups = shares.groupby(keys, sort=False)
    shares["samples"] = groups["length"].transform("size")
    shares["share"] = 100 * groups["length"].rank(method="max", pct=True)
    shares = shares.assign(group=groups.ngroup()).sort_values(["group", "length"]).drop_duplicates()
    return shares.drop(columns="group").reset_index(drop=True)


def draw_completion_lengths(shares: pandas.DataFrame) -> Figure:
    """A panel for each model and layout, a line for each condition, a mark at its median.

    Args:
        shares: As of `length_shares`.
    """
    looks, settings = style.looks(shares["condition"]), style.split_settings(shares)
    counts = " or ".join(f"{count:,}" for count in sorted(shares["samples"].unique()))
    note = f"{counts} completions a line; marks: medians, above in the order of the legend."
    with style.panels(settings, note, 1.9, sharex=True, sharey=True) as (figure, grid):
        for axes, (name, rows) in zip(grid, settings.items(), strict=True):
            medians = []
            for condition in (one for one in looks if (rows["condition"] == one).any()):
                look, mine = looks[condition], rows[rows["condition"] == condition]
                medians.append(int(mine["length"][mine["share"] >= 50].iloc[0]))
                axes.step(
                    [mine["length"].iloc[0], *mine["length"]],
                    [0, *mine["share"]],
                    where="post",
                    color=look.colour,
                    linestyle=look.dashes,
                    linewidth=1.3,
                    label=style.label(condition),
                )
                axes.plot(medians[-1], 50, look.marker, markersize=5, color=look.colour, markeredgecolor="white")
            axes.set_title(f"{name}\nmedian {' / '.join(f'{median:,}' for median in medians)}")
            axes.set_xlabel(f"Length of a completion ({shares['unit'].iloc[0]})")
            axes.grid(axis="x", color=style.GRID, linewidth=0.5)
        grid[0].set_ylim(0, 101)
        grid[0].set_ylabel("Completions no longer (%)")
    return figure
