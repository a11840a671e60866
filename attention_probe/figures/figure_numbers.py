"""The numbers of a figure of attention curves: points, and accuracies of bars."""

import numpy as np
import pandas

from attention_probe.analysis.average_curves import CurveSettings, average_curve, chosen_problems
from attention_probe.figures.figure_config import BarsConfig, FigureConfig
from attention_probe.traces import AttentionTraces
from harness.analysis.result_tables import make_leaderboard
from harness.display.value_texts import label
from harness.errors import ConfigError
from harness.runs.run_reader import Run

BAR_CONDITIONS = ("wo", "mless", "mful")
"""Conditions whose accuracies are shown as bars, as in the study."""


def read_curves(config: FigureConfig, model: str, traces: AttentionTraces) -> pandas.DataFrame:
    """The curves of the panels of one model, one row per point.

    All conditions of a panel have the same problems.

    Args:
        config: The figure.
        model: The model.
        traces: Its traces. By default the first token is left out of the curves of Llama and Gemma.

    Raises:
        ConfigError: the traces lack the layer, the head or a condition, or no problem has all
            conditions.
    """
    curves = []
    for panel in config.panels:
        # the panels of other models are read from other traces
        if panel.model != model:
            continue
        conditions = panel.row_config.series
        problem_ids = chosen_problems(traces, conditions)
        settings = CurveSettings(
            layer=panel.head.layer - 1,
            head=panel.head.head - 1,
            view=panel.row_config.view,
            definition=config.definition,
            exclude_first=config.exclude_first_token,
        )
        for condition in conditions:
            curve = average_curve(traces, settings, condition=condition, problem_ids=problem_ids)
            curves.append(
                curve.assign(
                    row=panel.row_index,
                    kind="curve",
                    on_outcome=traces.header.flip is not None,
                    legend=panel.line_name(condition),
                    model=model,
                    panel=panel.title,
                    column=panel.column_index,
                )
            )
    return pandas.concat(curves, ignore_index=True)


def read_bars(config: BarsConfig) -> pandas.DataFrame:
    """The accuracies that a figure's bars show, one row per bar, with the columns of `read_curves`.

    Published numbers have the kind `published bar` and no interval.

    Raises:
        ConfigError: a run has no accuracies.
        RunError: a run is missing or unfinished.
        ComparisonError: the runs do not go into one table.
    """
    table = _read_accuracies(config) if config.runs else _list_published(config)
    # in the order of BAR_CONDITIONS, in which they are drawn
    bars = pandas.concat([table[table["condition"] == condition] for condition in BAR_CONDITIONS])
    return bars.assign(panel=config.title, legend=bars["condition"].map(label), unit="percent")


def _read_accuracies(config: BarsConfig) -> pandas.DataFrame:
    """The accuracies of runs with their intervals, one row for each model and condition."""
    runs = list(map(Run.load, config.runs))
    for run in runs:
        if run.endpoint != "accuracy":
            raise ConfigError(
                f"bars: {run.name} has the endpoint {run.endpoint}, expected accuracy."
            )
    new_name_by_column = {
        "accuracy": "mean",
        "accuracy_low": "low",
        "accuracy_high": "high",
        "problems": "count",
    }
    comparison = make_leaderboard(runs).comparison[["model", "condition", *new_name_by_column]]
    return comparison.rename(columns=new_name_by_column).assign(kind="bar")


def _list_published(config: BarsConfig) -> pandas.DataFrame:
    """The published accuracies, one row for each model and condition. No interval is known."""
    rows = []
    for model, accuracies in config.published.items():
        rows += [(model, condition, accuracy) for condition, accuracy in accuracies.items()]
    return pandas.DataFrame(rows, columns=["model", "condition", "mean"]).assign(
        low=np.nan, high=np.nan, count=0, kind="published bar"
    )
