"""The numbers of a figure of attention curves: points, and accuracies of bars."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas

from attention_probe.analysis.average_curves import (
    CurveSettings,
    average_curves,
    chosen_problems,
    shared_problems,
)
from attention_probe.figures.figure_config import BarsConfig, FigureConfig, Panel
from attention_probe.traces import AttentionTraces
from harness.analysis.result_tables import make_leaderboard
from harness.display.format_values import label
from harness.display.published_numbers import read_reference
from harness.errors import ConfigError
from harness.experiment.conditions import contrast_name
from harness.runs.read_runs import Run

BARS = ("wo", "mless", "mful")
"""Conditions whose accuracies are shown as bars, as in the study."""


def read_curves(
    panels: Sequence[Panel], config: FigureConfig, traces: AttentionTraces
) -> pandas.DataFrame:
    """The curves of panels of one model, one row per point.

    All conditions of a panel have the same problems. Rows of the kind `control` are the curves of
    matched problems that did not flip; they are averaged separately.

    Args:
        panels: The panels, sorted by row.
        config: The figure.
        traces: The traces of the panels' model. By default the first token is left out of the
            curves of Llama and Gemma.

    Raises:
        ConfigError: the traces lack the layer, the head or a condition, or no problem has all
            conditions.
    """
    # `groupby` joins neighbours only; the panels are sorted by row
    groups = itertools.groupby(panels, lambda panel: (panel.row, panel.head.layer))
    tables: list[pandas.DataFrame] = []
    for _, group in groups:
        tables += _layer_curves(list(group), config, traces)
    return pandas.concat(tables, ignore_index=True)


def _layer_curves(
    panels: Sequence[Panel], config: FigureConfig, traces: AttentionTraces
) -> Iterator[pandas.DataFrame]:
    """The points of panels of one row and one layer, so that every trace is read once for all."""
    first = panels[0]
    row_config, subtracted = first.row_config, first.row_config.subtracted
    conditions = [*row_config.series]
    if subtracted:
        conditions.append(subtracted)
    shared, chosen = shared_problems(traces, conditions), chosen_problems(traces, conditions)
    problems = {"curve": chosen, "control": [name for name in shared if name not in chosen]}
    legends = {curve_name(first, condition): first.name(condition) for condition in first.looks}
    settings = CurveSettings(
        layer=first.head.layer,
        heads=list(dict.fromkeys(panel.head.head for panel in panels)),
        view="full" if row_config.view == "full" else "aligned",
        definition=config.definition,
        exclude_first=config.exclude_first_token,
    )
    for kind, problem_ids in problems.items():
        if not problem_ids:
            continue
        curves = average_curves(
            traces,
            settings,
            conditions=row_config.series,
            problem_ids=problem_ids,
            baseline=subtracted,
        )
        curves = curves.assign(
            row=first.row,
            kind=kind,
            on_outcome=traces.header.flip is not None,
            legend=curves["condition"].map(legends),
            model=first.head.model,
        )
        for panel in panels:
            points = curves[curves["head"] == panel.head.head]
            yield points.assign(panel=panel.title, column=panel.column)


def curve_name(panel: Panel, condition: str) -> str:
    """The name of a curve in the column `condition`: `mless - wo` for a difference."""
    subtracted = panel.row_config.subtracted
    return contrast_name(condition, subtracted) if subtracted else condition


def read_bars(config: BarsConfig) -> pandas.DataFrame:
    """The accuracies that a figure's bars show, one row per bar, with the columns of `read_curves`.

    Published numbers have the kind `reference bar`, no interval, and their source as the note.

    Raises:
        ConfigError: the reference file is missing, or not of the form of results/reference/; or a
            run has no accuracies.
        RunError: a run is missing or unfinished.
        ComparisonError: the runs do not go into one table.
    """
    if config.reference is None:
        columns = {
            "accuracy": "mean",
            "accuracy_low": "low",
            "accuracy_high": "high",
            "problems": "count",
        }
        runs = list(map(Run.load, config.runs))
        for run in runs:
            if run.endpoint != "accuracy":
                raise ConfigError(
                    f"bars: {run.name} has the endpoint {run.endpoint}, expected accuracy."
                )
        table = make_leaderboard(runs).comparison
        table = table[["model", "condition", *columns]].rename(columns=columns)
        table = table.assign(note=None, kind="bar")
    else:
        published = read_reference(str(config.reference))
        rows = []
        for entry in published.accuracies:
            rows += [(entry.model, *accuracy) for accuracy in entry.conditions.items()]
        table = pandas.DataFrame(rows, columns=["model", "condition", "mean"]).assign(
            low=np.nan, high=np.nan, count=0, note=published.source, kind="reference bar"
        )
    bars = pandas.concat([table[table["condition"] == name] for name in BARS])
    return bars.assign(panel=config.title, legend=bars["condition"].map(label), unit="percent")
