"""How long the completions are: for every length the share of completions that are no longer."""

from __future__ import annotations

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from harness.display.figures import style
from harness.errors import ComparisonError


def length_shares(frame: pandas.DataFrame) -> pandas.DataFrame:
    """For each model, layout, condition and length that occurs, the share of completions that are no longer, percent.

    Args:
        frame: One row per sample, with completion_tokens; only the first replicate is taken. If any completion's
            tokens were not counted, all are measured in characters.

    Returns:
        Columns model, layout, condition, unit, length, samples, share.

    Raises:
        ComparisonError: the frame has neither token counts nor completions.
    """
    first = frame[frame["replicate"] == 0] if "replicate" in frame else frame
    counted = "completion_tokens" in first and first["completion_tokens"].notna().all()
    if not counted and not {"characters", "completion"} & set(first.columns):
        raise ComparisonError(
            "The samples have no lengths: expected completion_tokens, characters or completion among the columns, got "
            f"{', '.join(map(str, first.columns))}. Load them with harness.load_run."
        )
    if counted:
        lengths = first["completion_tokens"]
    else:
        lengths = first["characters"] if "characters" in first else first["completion"].str.len()
    keys = ["model", "layout", "condition"]
    shares = first[keys].astype(str).assign(unit="tokens" if counted else "characters", length=lengths.astype(int))
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
    looks = style.looks(shares["condition"])
    panels = style.split_settings(shares)
    wide = shares["length"].max() > 30 * max(1, shares["length"].min())
    counts = " or ".join(f"{count:,}" for count in sorted(shares["samples"].unique()))
    note = f"{counts} completions a line; marks: medians, above in the order of the legend."
    down, _ = style.panel_grid(len(panels))
    with style.drawing(0.7 + 1.9 * down, note, handlelength=2.6) as figure:
        grid = style.add_panels(figure, len(panels), sharex=True, sharey=True)
        for axes, (name, rows) in zip(grid, panels.items(), strict=True):
            lines = {one: mine for one in looks if len(mine := rows[rows["condition"] == one])}
            medians = [_draw(axes, one, mine, looks[one]) for one, mine in lines.items()]
            axes.set_title(f"{name}\nmedian {' / '.join(f'{median:,}' for median in medians)}")
            axes.set_ylim(0, 101)
            if wide:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.set_xlabel(f"Length of a completion ({shares['unit'].iloc[0]})")
            axes.tick_params(labelbottom=True)
            style.tidy(axes, grid="both")
        grid[0].set_ylabel("Completions no longer (%)")
    return figure


def _draw(axes: Axes, condition: str, rows: pandas.DataFrame, look: style.Look) -> int:
    """Draw one condition's line and return its median."""
    median = int(rows["length"][rows["share"] >= 50].iloc[0])
    axes.step(
        [rows["length"].iloc[0], *rows["length"]],
        [0, *rows["share"]],
        where="post",
        color=look.colour,
        linestyle=look.dashes,
        linewidth=1.3,
        label=style.label(condition),
    )
    axes.plot(median, 50, marker=look.marker, markersize=5, color=look.colour, markeredgecolor="white")
    return median
