"""The first MLP's activations without and with Mless: their histogram, and their token classes.

Mless is the filler of the study, and its prompts are compared with those without filler. Every
number is a mean over prompts. A change is relative, (with - without) / without, of the same
prompts. The classes divide the problem's tokens, such as digits or words. `c` is one of
NEAR_ZERO_FACTORS: it scales the threshold below which an activation is near zero.
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
    COVERED_QUANTILE,
    TOKEN_CLASSES,
    activation_unit,
)
from attention_probe.traces import AttentionTraces, Trace
from harness.array_types import Floats
from harness.constants import BASELINE, STUDY_CONDITION
from harness.display.figures import figure_style
from harness.display.value_texts import LEVEL_TEXT
from harness.experiment.conditions import contrast_name

_CONDITIONS = (BASELINE, STUDY_CONDITION)
_CONTRAST_NAME = contrast_name(STUDY_CONDITION, BASELINE)
_BIN_EDGES = np.array([*np.arange(ACTIVATION_BINS + 1) / ACTIVATION_BINS, 1.05])
"""Edges of the bins in the figure: equal bins from 0 to 1, and a bin for all larger values that is
as wide as its label."""


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
    problem_ids = chosen_problems(traces, _CONDITIONS)
    clusters = traces.clusters(problem_ids)
    first_trace = traces.get(problem_ids[0], BASELINE)
    quantity_rows = [(name, np.nan, activation_unit(name)) for name in first_trace.activations]
    quantity_rows += [
        ("histogram", bin_start, "share of activations") for bin_start in _BIN_EDGES[:-1]
    ]
    # row i describes the quantity of column i of the numbers below, whose rows are prompts
    quantity_table = pandas.DataFrame(quantity_rows, columns=["quantity", "x", "unit"])
    numbers_by_condition = {
        condition: pandas.DataFrame(
            [_read_numbers(traces.get(problem_id, condition)) for problem_id in problem_ids]
        )
        for condition in _CONDITIONS
    }
    numbers_by_condition[_CONTRAST_NAME] = _relative_change(
        numbers_by_condition[STUDY_CONDITION], numbers_by_condition[BASELINE]
    )
    averages = []
    for condition, numbers in numbers_by_condition.items():
        # a row for each column of the numbers, so it is joined to the quantity of the same index
        points = average_columns(numbers.to_numpy(), clusters)
        averages.append(quantity_table.assign(condition=condition).join(points))
    # the contrast is the last condition, and its numbers are changes
    averages[-1]["unit"] = "relative change"
    all_averages = pandas.concat(averages, ignore_index=True)
    # a model may have several panels, with different c
    return pandas.concat(
        all_averages.assign(panel=panel.title) for panel in config.models if panel.model == model
    ).assign(model=traces.header.model, prompts=len(problem_ids))


def _read_numbers(trace: Trace) -> list[float]:
    """The numbers of the activations, then the shares of the bins; NaN if no bin has a count."""
    bin_counts = trace.activation_histogram
    shares = bin_counts / bin_counts.sum() if bin_counts.any() else np.full(len(bin_counts), np.nan)
    return [*trace.activations.values(), *shares]


def _relative_change(
    with_filler: pandas.DataFrame, without_filler: pandas.DataFrame
) -> pandas.DataFrame:
    """The relative change of the means, linearised to one value per prompt: [prompt, quantity].

    The mean of these values is the relative change of the means, and their scatter gives its
    interval. A mean of the prompts' own relative changes would be dominated by prompts with values
    near zero without filler.
    """
    ratio = with_filler.mean() / without_filler.mean()
    # The delta method for a ratio r of two means: r - 1 + (with - r * without) / mean(without). The
    # last term has the mean 0.
    change = ratio - 1 + (with_filler - ratio * without_filler) / without_filler.mean()
    return change.where(np.isfinite(change))


def draw_activations(config: FigureConfig, table: pandas.DataFrame) -> Figure:
    """Draw two panels for each model: levels, and below them the change from no filler.

    Args:
        config: The figure.
        table: From `read_activations`, of all models.
    """
    if config.kind == "histogram":
        heights = (2.0, 1.4)
        y_label = "Activations per bin (%)"
        explanation = f"{ACTIVATION_BINS} equal bins from 0 to 1, and on grey one for all larger."
    else:
        heights = (1.6, 1.2)
        y_label = "Activations near zero (%)"
        factors = ", ".join(f"{model.c:g} ({model.title})" for model in config.models)
        explanation = (
            f"Near zero: |a| below 1.4826 MAD c of the prompt without filler, c = {factors}."
        )
    note = (
        f"n = {table['prompts'].min()} prompts a panel. a: activations in the first layer's MLP "
        f"after its non-linearity, over the problem's tokens. {LEVEL_TEXT} bootstrap intervals "
        f"over prompts. Changes are relative, of the same prompts. {explanation}"
    )
    # each model has two axes, one below the other, of these heights in inches
    all_heights = heights * len(config.models)
    with figure_style.drawing(0.6 + sum(all_heights), note) as figure:
        all_axes = figure.subplots(len(all_heights), height_ratios=all_heights)
        for model, axes_pair in zip(config.models, all_axes.reshape(-1, 2).tolist(), strict=True):
            points = table[table["panel"] == model.title]
            if config.kind == "histogram":
                _draw_histogram(axes_pair, points)
            else:
                _draw_token_classes(axes_pair, points, model.c)
            level_axes, change_axes = axes_pair
            level_axes.set_title(model.title, pad=3)
            level_axes.set_ylabel(y_label)
            change_axes.set_ylabel(
                f"Relative change\nfrom {figure_style.wrapped_label(BASELINE)} (%)"
            )
            change_axes.axhline(0, color=figure_style.MUTED, linewidth=0.6)
            for axes in axes_pair:
                figure_style.tidy(axes, grid="y")
    return figure


def _draw_marks(
    axes_pair: Sequence[Axes],
    table: pandas.DataFrame,
    quantity_names: list[str],
    x: Floats,
    shift: float,
) -> None:
    """Draw marks with intervals in both axes of a model.

    In the upper axes are the levels of the two conditions, moved apart from x by the shift. In the
    lower axes is the change, at x.
    """
    level_axes, change_axes = axes_pair
    baseline_style, studied_style = figure_style.choose_styles(_CONDITIONS).values()
    for axes, condition, style, positions in (
        (level_axes, BASELINE, baseline_style, x - shift),
        (level_axes, STUDY_CONDITION, studied_style, x + shift),
        (change_axes, _CONTRAST_NAME, studied_style, x),
    ):
        mean, low, high = 100 * _read_intervals(table, quantity_names, condition)
        label = figure_style.wrapped_label(condition) if axes is level_axes else None
        axes.vlines(positions, low, high, color=style.colour, linewidth=0.9)
        axes.plot(positions, mean, style.marker, color=style.colour, markersize=2, label=label)


def _draw_histogram(axes_pair: Sequence[Axes], table: pandas.DataFrame) -> None:
    """Draw the share of each bin on a logarithmic axis, and its change."""
    level_axes, change_axes = axes_pair
    _draw_marks(axes_pair, table, ["histogram"], (_BIN_EDGES[:-1] + _BIN_EDGES[1:]) / 2, 0)
    # without positive values a logarithmic axis has no ends
    if (table.loc[table["quantity"] == "histogram", "mean"] > 0).any():
        level_axes.set_yscale("log")
    level_axes.yaxis.set_major_formatter("{x:g}")
    # the activation at x = 1, where the last bin begins
    last_bin_start, _, _ = _read_intervals(table, ["histogram_top"], BASELINE)
    quantile_text = f"{100 * COVERED_QUANTILE:g} % quantile {figure_style.wrapped_label(BASELINE)}"
    change_axes.set_xlabel(f"Activation |a|\n(1 = {quantile_text} = {last_bin_start.item():.3g})")
    for axes in axes_pair:
        axes.set_xlim(0, _BIN_EDGES[-1])
        axes.axvspan(1, _BIN_EDGES[-1], color=figure_style.GRID, alpha=0.6, linewidth=0, zorder=0)
        axes.set_xticks(
            [0, 0.2, 0.4, 0.6, 0.8, _BIN_EDGES[-2:].mean()],
            ["0", "0.2", "0.4", "0.6", "0.8", "all\nlarger"],
        )
    level_axes.tick_params(labelbottom=False)


def _draw_token_classes(axes_pair: Sequence[Axes], table: pandas.DataFrame, c: float) -> None:
    """Draw the share of activations near zero of each token class, and its change."""
    quantity_names = [f"near_zero_{name}_c{c:g}" for name in TOKEN_CLASSES]
    positions = np.arange(len(TOKEN_CLASSES), dtype=np.float64)
    _draw_marks(axes_pair, table, quantity_names, positions, 0.1)
    # only the lower axes name the classes
    for axes, labels in zip(axes_pair, ([], TOKEN_CLASSES), strict=True):
        axes.set_xticks(positions, labels)
        axes.set_xlim(-0.5, len(TOKEN_CLASSES) - 0.5)


def _read_intervals(table: pandas.DataFrame, quantity_names: list[str], condition: str) -> Floats:
    """Mean, low and high of quantities, [3, row]. A histogram has a row for each bin."""
    rows = table[table["condition"] == condition].set_index("quantity").loc[quantity_names]
    intervals: Floats = rows[["mean", "low", "high"]].to_numpy(dtype=np.float64)
    return intervals.T
