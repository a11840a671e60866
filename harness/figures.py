"""The accuracy bars of the study's composite figure: one group a model, one bar a condition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.leaderboard import LABELS

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

COLOURS = {"wo": "#6a4c93", "mless": "#1b9e8a", "mful": "#7cc4ea", "random": "#e69f00"}
"""Purple, teal and light blue as in the study, orange for the random sentence; told apart by the colour-blind."""
_SPARE = ("#555555", "#999999", "#bbbb44", "#cc6677")


def draw_accuracy_bars(table: pandas.DataFrame, *, title: str) -> Figure:
    """Grouped bars of `leaderboard.accuracy_table`, percent, each with its standard error.

    Several layouts become groups of their own. As in the study the axis starts at 30 where every bar is well above
    it, and the axis label then says so; else at zero.
    """
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(zip(table["model"], table["layout"], strict=True)))
    conditions = list(dict.fromkeys(table["condition"]))
    several_layouts = len(set(table["layout"])) > 1
    width = 0.8 / len(conditions)
    figure = Figure(figsize=(max(5.0, 1.4 + 1.0 * len(groups) * len(conditions)), 4.2), layout="constrained")
    axes = figure.add_subplot()
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
                f"{height:.1f}",
                (x, height + lift),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            )
    low, high = float(table["accuracy"].min()), float((table["accuracy"] + table["standard_error"].fillna(0)).max())
    bottom = 30.0 if low >= 40 else 0.0
    axes.set_ylim(bottom, min(104.0, high + 0.12 * max(high - bottom, 1.0)))
    axes.set_xticks(range(len(groups)), [f"{m}\n{layout}" if several_layouts else str(m) for m, layout in groups])
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_ylabel("Accuracy (%), ± 1 standard error" + (f"\naxis starts at {bottom:.0f}" if bottom else ""))
    axes.set_title(title)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(4, len(conditions)), frameon=False)
    return figure


def save_figure(figure: Figure, path: Path, receipt: Mapping[str, Any]) -> list[Path]:
    """Write the figure as PNG and SVG, the receipt inside both, and return the files."""
    note = json.dumps(dict(receipt), sort_keys=True)
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    figure.savefig(png, dpi=160, metadata={"Description": note})
    figure.savefig(svg, metadata={"Description": note, "Date": None})
    return [png, svg]
