"""The first MLP's activations without and with fillers: their histogram with four numbers, and their token classes.

Every number is a mean over prompts. A change is relative, (with - without) / without, of the same prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attention_probe.analysis.curves import bootstrap_band, chosen_problems
from attention_probe.figures.config import ActivationsConfig, ModelConfig
from attention_probe.figures.draw import STAMPS, stamp
from attention_probe.measure.activations import ACTIVATION_UNITS
from attention_probe.measure.token_classes import CLASSES
from attention_probe.traces import AttentionTraces
from harness.constants import ACTIVATION_BINS, COVERED, NUMBERS_LINE
from harness.display.figures import style
from harness.display.numbers import LEVEL, number, plural, signed
from harness.errors import ConfigError
from harness.experiment.conditions import contrast_name

_HISTOGRAM = "histogram"
_EDGES = np.array([*np.arange(ACTIVATION_BINS + 1) / ACTIVATION_BINS, 1.05])
"""Of the bins as they are drawn: the last, of all that is larger, has room for a name."""


def read_activations(model: ModelConfig, conditions: Sequence[str], traces: AttentionTraces) -> pandas.DataFrame:
    """Every recorded number under each condition, and its change from the first condition: one row for each.

    The rows of the quantity `histogram` are shares of the activations; their `x` is where the bin begins, as a share of
    `histogram_top`. Changes have the condition `mless - wo`.

    Args:
        model: Whose panel it is.
        conditions: The prompt without filler first.
        traces: Of the model.

    Raises:
        ConfigError: the traces hold no activations, or no problem has all conditions.
    """
    header = traces.header
    if not header.options.get("activations"):
        raise ConfigError(
            f"{traces.path} holds no activations: expected traces of `mless probe --activations`. Probe again with "
            "--activations and another --output."
        )
    problems = chosen_problems(traces, conditions)
    about = pandas.DataFrame(
        {
            "quantity": [*ACTIVATION_UNITS, *[_HISTOGRAM] * (ACTIVATION_BINS + 1)],
            "x": [*[np.nan] * len(ACTIVATION_UNITS), *np.arange(ACTIVATION_BINS + 1) / ACTIVATION_BINS],
            "unit": [*ACTIVATION_UNITS.values(), *["share of activations"] * (ACTIVATION_BINS + 1)],
        }
    )
    tables = {}
    for condition in conditions:
        rows = []
        for trace in (traces.get(problem, condition) for problem in problems):
            counts = trace.activation_histogram
            shares = counts / counts.sum() if counts.any() else np.full(len(counts), np.nan)
            rows.append([*(trace.activations[name] for name in ACTIVATION_UNITS), *shares])
        tables[condition] = np.array(rows)
    base, *others = conditions
    parts = [_average(about, condition, table) for condition, table in tables.items()]
    for condition in others:
        change = _relative_change(tables[condition], tables[base])
        parts.append(_average(about.assign(unit="relative change"), contrast_name(condition, base), change))
    return pandas.concat(parts, ignore_index=True).assign(
        panel=model.name,
        model=header.model,
        prompts=len(problems),
        on_outcome=header.on_outcome,
    )


def _average(about: pandas.DataFrame, condition: str, table: NDArray[np.float64]) -> pandas.DataFrame:
    """Means of a [prompt, quantity] table, with bands and the number of prompts that have a value."""
    low, high = bootstrap_band(table)
    return about.assign(
        condition=condition, mean=_mean(table), low=low, high=high, count=np.isfinite(table).sum(axis=0)
    )


def _mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # no prompt may have a value
        mean: NDArray[np.float64] = np.nansum(table, axis=0) / np.isfinite(table).sum(axis=0)
    return mean


def _relative_change(table: NDArray[np.float64], without: NDArray[np.float64]) -> NDArray[np.float64]:
    """A [prompt, quantity] table whose mean is the means' relative change, and that scatters as it does (linearised).

    A mean of each prompt's own relative changes would be ruled by those with next to nothing without filler.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = _mean(table) / _mean(without)
        change: NDArray[np.float64] = ratio - 1 + (table - ratio * without) / _mean(without)
    return np.where(np.isfinite(change), change, np.nan)


def draw_activations(config: ActivationsConfig, table: pandas.DataFrame) -> Figure:
    """One panel for each model: levels above, below them the change from the prompt without filler.

    Args:
        config: What is shown.
        table: From `read_activations`, of all models.
    """
    if config.activations == _HISTOGRAM:
        draw, heights = _draw_histogram, [2.0, 1.1, NUMBERS_LINE * (1 + 4 * (len(config.conditions) - 1))]
    else:
        draw, heights = _draw_token_classes, [1.6, 1.1]
    down, across = style.panel_grid(len(config.models))
    with style.drawing(0.6 + down * (sum(heights) + 0.6), _note(config, table)) as figure:
        grid = figure.subplots(down * len(heights), across, squeeze=False, height_ratios=heights * down)
        for place in range(down * across):
            row = place // across * len(heights)
            panel = list(grid[row : row + len(heights), place % across])
            if place >= len(config.models):
                for axes in panel:
                    axes.set_visible(False)
                continue
            model = config.models[place]
            shown = table[table["panel"] == model.name]
            draw(panel, shown, config, model)
            for axes in panel if place % across else ():
                axes.set_ylabel("")  # the panel to the left says it
            stamps = [said for column, said in STAMPS.items() if shown[column].any()]
            stamp(panel[0], model.name, stamps, style.FONT)
    return figure


def _draw_histogram(
    panel: Sequence[Axes], table: pandas.DataFrame, config: ActivationsConfig, model: ModelConfig
) -> None:
    """The histogram on a logarithmic axis, each bin's change with its band, and the four numbers."""
    above, below, numbers = panel
    base, *others = config.conditions
    looks = style.looks(config.conditions)
    for condition, look in looks.items():
        mean, _, _ = _percent(table, _HISTOGRAM, condition)
        above.stairs(mean, _EDGES, color=look.colour, linestyle=look.dashes, label=style.label(condition))
    for condition in others:
        mean, low, high = _percent(table, _HISTOGRAM, contrast_name(condition, base))
        below.stairs(mean, _EDGES, baseline=None, color=looks[condition].colour, linewidth=0.8)
        below.stairs(high, _EDGES, baseline=low, color=looks[condition].colour, alpha=0.2, linewidth=0, fill=True)
    if (table.loc[table["quantity"] == _HISTOGRAM, "mean"] > 0).any():  # else a logarithmic axis has no ends
        above.set_yscale("log")
    above.yaxis.set_major_formatter("{x:g}")
    above.set_ylabel("Activations per bin (%)")
    _label_changes(below, base)
    top = table.loc[(table["quantity"] == "histogram_top") & (table["condition"] == base), "mean"].item()
    below.set_xlabel(f"Activation |a|\n(1 = {100 * COVERED:g} % quantile {style.label(base)} = {top:.3g})")
    for axes in (above, below):
        axes.set_xlim(0, _EDGES[-1])
        axes.axvspan(1, _EDGES[-1], color=style.GRID, alpha=0.6, linewidth=0, zorder=0)
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, _EDGES[-2:].mean()], ["0", "0.2", "0.4", "0.6", "0.8", "all\nlarger"])
        style.tidy(axes, grid="y")
    above.tick_params(labelbottom=False)
    rows = {f"near_zero_c{model.c:g}": "Near 0 (%)", "l1": "L1", "l2": "L2", "gini": "Gini"}
    single = len(others) == 1
    shown = [
        ("", f"{style.label(base)} \N{RIGHTWARDS ARROW} {style.label(others[0]) if single else 'with'}", "change (%)")
    ]
    colours = [style.INK]
    for quantity, name in rows.items():
        scale = 1 if quantity.startswith("near_zero") else 0.01
        for condition in others:
            levels = [_three_digits(scale * _percent(table, quantity, which)[0].item()) for which in (base, condition)]
            ends = _percent(table, quantity, contrast_name(condition, base)).ravel()
            mean, low, high = (signed(end) for end in ends)
            change = f"{mean} [{low.removeprefix('+')}, {high.removeprefix('+')}]"
            what = name if single else f"{name}, {style.label(condition)}"
            shown.append((what, "\N{RIGHTWARDS ARROW}".join(levels), change))
            colours.append(looks[condition].colour)
    small = matplotlib.rcParams["ytick.labelsize"]
    for line, ((_, level, change), colour) in enumerate(zip(shown, colours, strict=True)):
        for place, text, side in ((0, level, "left"), (1, change, "right")):
            numbers.text(place, line, text, ha=side, va="center_baseline", color=colour, size=small)
    numbers.set(ylim=(len(shown) - 0.5, -0.5), xticks=[])
    numbers.set_yticks(range(len(shown)), [name for name, _, _ in shown])
    numbers.tick_params(length=0)
    numbers.spines[:].set_visible(False)


def _draw_token_classes(
    panel: Sequence[Axes], table: pandas.DataFrame, config: ActivationsConfig, model: ModelConfig
) -> None:
    """The near-zero share of each class as bars, and its change as dots, both with their bands."""
    above, below = panel
    base, *others = config.conditions
    looks = style.looks(config.conditions)
    places, bar = np.arange(len(CLASSES)), 0.8 / len(looks)
    names = [f"near_zero_{name}_c{model.c:g}" for name in CLASSES]

    def read(condition: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean, low, high = np.concatenate([_percent(table, name, condition) for name in names], axis=1)
        return mean, np.array([mean - low, high - mean])

    for place, (condition, look) in enumerate(looks.items()):
        mean, reach = read(condition)
        above.bar(
            places + (place - (len(looks) - 1) / 2) * bar,
            mean,
            0.92 * bar,
            yerr=reach,
            color=look.colour,
            label=style.label(condition),
            error_kw={"elinewidth": 0.9, "ecolor": style.INK, "capsize": 2},
        )
    for place, condition in enumerate(others):
        look, shift = looks[condition], (place - (len(others) - 1) / 2) * 0.15
        mean, reach = read(contrast_name(condition, base))
        marks: Any = {"color": look.colour, "markersize": 4, "capsize": 2, "elinewidth": 0.9}
        below.errorbar(places + shift, mean, reach, fmt=look.marker, **marks)
    above.set_ylabel("Activations near zero (%)")
    _label_changes(below, base)
    tokens = table[table["condition"] == base].set_index("quantity")
    said = []
    for name, quantity in zip(CLASSES, names, strict=True):
        count = tokens["count"][quantity]
        some = f"{tokens['mean'][f'tokens_{name}']:.1f} tokens\n{count} {plural('prompt', count)}"
        said.append(f"{name}\n{some if count else 'none'}")
    above.set_xticks(places, [])
    below.set_xticks(places, said)
    for axes in panel:
        axes.set_xlim(-0.5, len(CLASSES) - 0.5)
        style.tidy(axes, grid="y")


def _percent(table: pandas.DataFrame, quantity: str, condition: str) -> NDArray[np.float64]:
    """Mean, low and high of a quantity, [3, bin], times 100."""
    rows = table[(table["quantity"] == quantity) & (table["condition"] == condition)]
    return 100 * rows[["mean", "low", "high"]].to_numpy(dtype=np.float64).T


def _three_digits(value: float) -> str:
    """The number with three significant digits, or whole."""
    return number(value, max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0)


def _label_changes(axes: Axes, base: str) -> None:
    axes.axhline(0, color=style.MUTED, linewidth=0.6)
    axes.set_ylabel(f"Relative change\nfrom {style.label(base)} (%)")


def _note(config: ActivationsConfig, table: pandas.DataFrame) -> str:
    """What the numbers stand on."""
    counts = dict.fromkeys(table.loc[table["panel"] == one.name, "prompts"].iloc[0] for one in config.models)
    factors = dict.fromkeys(f"{one.c:g}" for one in config.models)
    if len(factors) > 1:
        factors = dict.fromkeys(f"{one.c:g} ({one.name})" for one in config.models)
    drawn = "Bands and brackets" if config.activations == _HISTOGRAM else "Error bars"
    said = [
        f"n = {', '.join(map(str, counts))} {plural('prompt', max(counts))} a panel.",
        "a: activations in the first layer's MLP after its non-linearity, over the problem's tokens.",
        f"Near zero: |a| below 1.4826 MAD c of the prompt without filler, c = {', '.join(factors)}.",
        f"{drawn}: {LEVEL} bootstrap intervals over prompts. Changes are relative, of the same prompts.",
    ]
    if config.activations == _HISTOGRAM:
        said.append(
            f"{ACTIVATION_BINS} equal bins from 0 to 1, and on grey one for all that is larger; "
            "Gini: of these bins' counts."
        )
    else:
        said.append("Tokens: the mean of a prompt; prompts: those that have any.")
    return " ".join(said)
