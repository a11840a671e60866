"""Differences from the baseline against the length of the filler: the figure of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.sweeps import find_sweeps
from harness.display.figures import style
from harness.display.numbers import LEVEL, PASSED
from harness.display.visible import name_character, visible

_OFTEN = {"/": "mless", "he": "mful", "sentence": "random"}
"""Fillers that have the look of a condition of the study, where they stand at one place only."""


def draw_dose(table: pandas.DataFrame, factors: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A panel for each model and layout, a line for conditions that differ in the length of their filler alone.

    Behind the lines: how far harmless rewordings lie from the baseline, and how far its second run does (A/A).

    Args:
        table: As of `harness.analysis.compare`, with the yardsticks.
        factors: Of each condition, as of `sample_frame.read_factors`.
    """
    doses = find_sweeps(factors)
    places = {key[1:] for key in doses}
    named = {key: _OFTEN.get(key[0], key[0]) if len(places) == 1 else " ".join(key) for key in doses}
    looks = style.looks(named.values())
    panels = style.split_settings(table)
    down, _ = style.panel_grid(len(panels))
    baseline = style.label(table["baseline"].iloc[0])
    note = (
        f"Points less {baseline}; lines: {LEVEL} score intervals, adjusted as p is; filled: adjusted p < 0.05. Band: "
        "from the lowest to the highest of the harmless rewordings. Dotted: the baseline run a second time, as far up "
        "as down. Lengths are moved apart a little where lines would cover each other."
    )
    with style.drawing(0.9 + 2.1 * down, note) as figure:
        axes = style.add_panels(figure, len(panels), sharex=True, sharey=True)
        for panel, (name, rows) in zip(axes, panels.items(), strict=True):
            panel.set_title(name)
            _draw_behind(panel, rows)
            arms = style.without_yardsticks(rows).fillna({"difference": 0.0})  # that of the baseline
            found = {row["condition"]: row for row in arms.to_dict("records")}
            widest = max(count for lengths in doses.values() for count in lengths)
            for number, (key, lengths) in enumerate(doses.items()):
                shift = 0.012 * widest * (number - (len(doses) - 1) / 2)
                legend = ", ".join(_spell(part) for part in (key if len(places) > 1 else key[:1]) if part)
                there = {count: found[arm] for count, arm in lengths.items() if arm in found}
                _draw_line(panel, there, shift, looks[named[key]], legend, style.FONT)
            panel.set_xlabel("Tokens of filler")
            panel.tick_params(labelbottom=True)
            style.tidy(panel, grid="y")
        for panel in axes[:: style.panel_grid(len(panels))[1]]:
            panel.set_ylabel(f"Difference from {baseline} (points)")
    return figure


def _spell(filler: str) -> str:
    """A filler in the legend; blanks and breaks, which cannot be seen, by name."""
    return visible(filler, keep="") if filler.strip() else " ".join(map(name_character, filler))


def _draw_behind(panel: Axes, rows: pandas.DataFrame) -> None:
    panel.axhline(0, color=style.MUTED, linewidth=0.6, zorder=1)
    rewordings = rows.loc[rows["verdict"] == "rewording", "difference"]
    if len(rewordings):
        panel.axhspan(rewordings.min(), rewordings.max(), color="#e4e4e4", zorder=0, linewidth=0, label="rewordings")
    again = rows["aa_difference"].abs().max() if "aa_difference" in rows else None
    if again is not None and again == again:
        for place, end in enumerate((-again, again)):
            name = None if place else "A/A"
            panel.axhline(end, color=style.MUTED, linewidth=0.8, linestyle=":", zorder=1, label=name)


def _draw_line(
    panel: Axes, rows: Mapping[int, Mapping[Any, Any]], shift: float, look: style.Look, name: str, size: float
) -> None:
    places = {count: count + shift if count else 0 for count in rows}
    drawn = [row["difference"] for row in rows.values()]
    panel.plot(list(places.values()), drawn, color=look.colour, linestyle=look.dashes, linewidth=1)
    for count, row in rows.items():
        if row["verdict"] == "baseline":
            continue
        place = places[count]
        panel.plot([place, place], [row["low"], row["high"]], color=look.colour, linewidth=0.9)
        panel.plot(
            place,
            row["difference"],
            marker=look.marker,
            color=look.colour,
            markerfacecolor=look.colour if row["verdict"] in PASSED else "white",
            markersize=0.6 * size,
        )
    panel.plot([], [], color=look.colour, marker=look.marker, linestyle=look.dashes, linewidth=1, label=name)
