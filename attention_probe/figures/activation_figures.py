"""The first MLP's activations without and with Mless: their histogram, and their token classes.

Every number is a mean over prompts. A change is relative, (with - without) / without, of the same
prompts.
"""

from collections.abc import Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention_probe.analysis.average_curves import average_columns, chosen_problems
from attention_probe.figures.figure_config import FigureConfig
from attention_probe.measure.activations import (
    ACTIVATION_BINS,
    CLASSES,
    COVERED,
    activation_unit,
)
from attention_probe.traces import AttentionTraces, Trace
from harness.array_types import Floats
from harness.constants import BASELINE, STUDY_CONDITION
from harness.display.figures import figure_style
from harness.display.value_texts import LEVEL_TEXT
from harness.experiment.conditions import contrast_name

WITHOUT, WITH = _PAIR = (BASELINE, STUDY_CONDITION)
_CHANGE = contrast_name(WITH, WITHOUT)
_EDGES = np.array([*np.arange(ACTIVATION_BINS + 1) / ACTIVATION_BINS, 1.05])
"""Edges of the bins in the figure. The last bin, of all larger values, has room for a name."""


def read_activations(config: FigureConfig, model: str, traces: AttentionTraces) -> pandas.DataFrame:
    """Every recorded number without filler and with Mless, and its change: one row for each.

    The rows of the quantity `histogram` are shares of the activations; their `x` is where the bin
    begins, as a share of `histogram_top`. Changes have the condition `mless - wo`.

    Args:
        config: The figure.
        model: The model.
        traces: Its traces.

    Raises:
        ConfigError: no problem has both conditions.
    """
    problems = chosen_problems(traces, _PAIR)
    clusters = traces.clusters(problems)
    names = list(traces.get(problems[0], WITHOUT).activations)
    bins = _EDGES[:-1]
    quantities = pandas.DataFrame(
        {
            "quantity": names + ["histogram"] * len(bins),
            "x": [np.nan] * len(names) + bins.tolist(),
            "unit": list(map(activation_unit, names)) + ["share of activations"] * len(bins),
        }
    )
    # [prompt, quantity] by condition
    tables = {
        condition: pandas.DataFrame(
            [_read_numbers(traces.get(problem, condition)) for problem in problems]
        )
        for condition in _PAIR
    }
    tables[_CHANGE] = _relative_change(tables[WITH], tables[WITHOUT])
    averages = []
    for condition, table in tables.items():
        points = average_columns(table.to_numpy(), clusters)
        averages.append(quantities.assign(condition=condition).join(points))
    frame = pandas.concat(averages, ignore_index=True)
    frame.loc[frame["condition"] == _CHANGE, "unit"] = "relative change"
    titles = [panel.title for panel in config.models if panel.model == model]
    panels = pandas.concat([frame.assign(panel=title) for title in titles])
    return panels.assign(model=traces.header.model, prompts=len(problems))


def _read_numbers(trace: Trace) -> list[float]:
    """The numbers of the activations, then the shares of the histogram's bins."""
    counts = trace.activation_histogram
    shares = counts / counts.sum() if counts.any() else np.full(len(counts), np.nan)
    return [*trace.activations.values(), *shares]


def _relative_change(table: pandas.DataFrame, without: pandas.DataFrame) -> pandas.DataFrame:
    """The relative change of the means, linearised to one value per prompt: [prompt, quantity].

    Prompts with values near zero without filler would dominate a mean of relative changes.
    """
    ratio = table.mean() / without.mean()
    # the delta method for a ratio of two means
    change = ratio - 1 + (table - ratio * without) / without.mean()
    return change.where(np.isfinite(change))


def draw_activations(config: FigureConfig, table: pandas.DataFrame) -> Figure:
    """Two panels for each model: levels, below them the change from the prompt without filler.

    Args:
        config: The figure.
        table: From `read_activations`, of all models.
    """
    if config.kind == "histogram":
        heights, y_label = (2.0, 1.4), "Activations per bin (%)"
        explanation = f"{ACTIVATION_BINS} equal bins from 0 to 1, and on grey one for all larger."
    else:
        heights, y_label = (1.6, 1.2), "Activations near zero (%)"
        factors = ", ".join(f"{model.c:g} ({model.title})" for model in config.models)
        explanation = (
            f"Near zero: |a| below 1.4826 MAD c of the prompt without filler, c = {factors}."
        )
    note = (
        f"n = {table['prompts'].min()} prompts a panel. a: activations in the first layer's MLP "
        f"after its non-linearity, over the problem's tokens. {LEVEL_TEXT} bootstrap intervals "
        f"over prompts. Changes are relative, of the same prompts. {explanation}"
    )
    all_heights = heights * len(config.models)
    with figure_style.drawing(0.6 + sum(all_heights), note) as figure:
        panels = figure.subplots(len(all_heights), height_ratios=all_heights)
        for model, above, below in zip(config.models, panels[::2], panels[1::2], strict=True):
            points = table[table["panel"] == model.title]
            if config.kind == "histogram":
                _draw_histogram((above, below), points)
            else:
                _draw_token_classes((above, below), points, model.c)
            above.set_title(model.title, pad=3)
            above.set_ylabel(y_label)
            below.set_ylabel(f"Relative change\nfrom {figure_style.wrapped_label(WITHOUT)} (%)")
            below.axhline(0, color=figure_style.MUTED, linewidth=0.6)
            for axes in (above, below):
                figure_style.tidy(axes, grid="y")
    return figure


def _draw_marks(
    panel: Sequence[Axes], table: pandas.DataFrame, quantities: list[str], x: Floats, shift: float
) -> None:
    """Marks with intervals at x: the levels, moved apart by the shift, and the change."""
    above, below = panel
    without, with_filler = figure_style.looks(_PAIR).values()
    for axes, condition, look, positions in (
        (above, WITHOUT, without, x - shift),
        (above, WITH, with_filler, x + shift),
        (below, _CHANGE, with_filler, x),
    ):
        mean, low, high = 100 * _read_intervals(table, quantities, condition)
        name = figure_style.wrapped_label(condition) if axes is above else None
        axes.vlines(positions, low, high, color=look.colour, linewidth=0.9)
        axes.plot(positions, mean, look.marker, color=look.colour, markersize=2, label=name)


def _draw_histogram(panel: Sequence[Axes], table: pandas.DataFrame) -> None:
    """The share of each bin on a logarithmic axis, and its change."""
    above, below = panel
    _draw_marks(panel, table, ["histogram"], (_EDGES[:-1] + _EDGES[1:]) / 2, 0)
    # without positive values a logarithmic axis has no ends
    if (table.loc[table["quantity"] == "histogram", "mean"] > 0).any():
        above.set_yscale("log")
    above.yaxis.set_major_formatter("{x:g}")
    end, _, _ = _read_intervals(table, ["histogram_top"], WITHOUT)
    quantile = f"{100 * COVERED:g} % quantile {figure_style.wrapped_label(WITHOUT)}"
    below.set_xlabel(f"Activation |a|\n(1 = {quantile} = {end.item():.3g})")
    for axes in panel:
        axes.set_xlim(0, _EDGES[-1])
        axes.axvspan(1, _EDGES[-1], color=figure_style.GRID, alpha=0.6, linewidth=0, zorder=0)
        axes.set_xticks(
            [0, 0.2, 0.4, 0.6, 0.8, _EDGES[-2:].mean()],
            ["0", "0.2", "0.4", "0.6", "0.8", "all\nlarger"],
        )
    above.tick_params(labelbottom=False)


def _draw_token_classes(panel: Sequence[Axes], table: pandas.DataFrame, c: float) -> None:
    """The near-zero share of each class, and its change."""
    names = [f"near_zero_{name}_c{c:g}" for name in CLASSES]
    positions = np.arange(len(CLASSES), dtype=np.float64)
    _draw_marks(panel, table, names, positions, 0.1)
    for axes, labels in zip(panel, ([], CLASSES), strict=True):
        axes.set_xticks(positions, labels)
        axes.set_xlim(-0.5, len(CLASSES) - 0.5)


def _read_intervals(table: pandas.DataFrame, quantities: list[str], condition: str) -> Floats:
    """Mean, low and high of quantities, [3, row]. A histogram has a row for each bin."""
    rows = table[table["condition"] == condition].set_index("quantity").loc[quantities]
    values: Floats = rows[["mean", "low", "high"]].to_numpy(dtype=np.float64)
    return values.T
