"""The accuracy bars of the study's composite figure: one group a model, one bar a condition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.leaderboard import LABELS

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"wo": "#6a4c93", "mless": "#1b9e8a", "mful": "#7cc4ea", "random": "#e69f00"}
"""Purple, teal and light blue as in the study, orange for the random sentence; told apart by the colour-blind."""
_SPARE = ("#555555", "#999999", "#bbbb44", "#cc6677")


def draw_accuracy_bars(table: pandas.DataFrame, *, title: str) -> Figure:
    """A figure of `plot_accuracy_bars` with a legend below."""
    from matplotlib.figure import Figure

    conditions = table["condition"].nunique()
    bars = len(table[["model", "layout"]].drop_duplicates()) * conditions
    figure = Figure(figsize=(max(5.0, 1.4 + 1.0 * bars), 4.2), layout="constrained")
    plot_accuracy_bars(figure.add_subplot(), table, title=title)
    figure.legend(loc="outside lower center", ncols=min(4, conditions), frameon=False)
    return figure


def plot_accuracy_bars(axes: Axes, table: pandas.DataFrame, *, title: str, font_size: float = 8) -> None:
    """Grouped bars of `leaderboard.accuracy_table`, percent, each with its standard error where it has one.

    Several layouts become groups of their own. As in the study the axis starts at 30 where every bar is well above
    it, and the axis label then says so; else at zero.
    """
    groups = list(dict.fromkeys(zip(table["model"], table["layout"], strict=True)))
    conditions = list(dict.fromkeys(table["condition"]))
    several_layouts = len(set(table["layout"])) > 1
    width = 0.8 / len(conditions)
    for place, condition in enumerate(conditions):
        rows = table[table["condition"] == condition].set_index(["model", "layout"])
        xs = [i + (place - (len(conditions) - 1) / 2) * width for i, g in enumerate(groups) if g in rows.index]
        shown = [rows.loc[g] for g in groups if g in rows.index]
        heights, errors = [float(r["accuracy"]) for r in shown], [float(r["standard_error"]) for r in shown]
        axes.bar(
            xs,
            heights,
            width * 0.92,
            yerr=errors,
            capsize=3,
            color=COLOURS.get(condition, _SPARE[place % len(_SPARE)]),
            edgecolor="#333333",
            linewidth=0.6,
            error_kw={"elinewidth": 1, "ecolor": "#333333"},
            label=LABELS.get(condition, condition),
        )
        for x, height, error in zip(xs, heights, errors, strict=True):
            lift = 0 if error != error else error
            axes.annotate(
                f"{height:.1f}" if error == error else f"{height:g}",  # reference numbers as they were given
                (x, height + lift),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=font_size,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )
    low, high = float(table["accuracy"].min()), float((table["accuracy"] + table["standard_error"].fillna(0)).max())
    bottom = 30.0 if low >= 40 else 0.0
    axes.set_ylim(bottom, min(104.0, high + 0.12 * max(high - bottom, 1.0)))
    axes.set_xticks(range(len(groups)), [f"{m}\n{layout}" if several_layouts else str(m) for m, layout in groups])
    axes.set_xlim(-0.5, len(groups) - 0.5)
    errors_shown = ", ± 1 standard error" if table["standard_error"].notna().any() else ""
    axes.set_ylabel(f"Accuracy (%){errors_shown}" + (f"\naxis starts at {bottom:.0f}" if bottom else ""))
    axes.set_title(title)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(
    figure: Figure,
    path: Path,
    receipt: Mapping[str, Any],
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: float = 160,
) -> list[Path]:
    """Write the figure in each of the formats (png, svg, pdf), the receipt inside, and return the files."""
    note = json.dumps(dict(receipt), sort_keys=True)
    # PDF has fixed fields; a date would make two drawings of the same numbers differ
    metadata = {
        "png": {"Description": note},
        "svg": {"Description": note, "Date": None},
        "pdf": {"Subject": note, "CreationDate": None},
    }
    files = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for file, kind in zip(files, formats, strict=True):
        figure.savefig(file, dpi=dpi, metadata=metadata[kind])
    return files
