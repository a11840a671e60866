"""What a figure shows, as tables: the curves of each panel, the accuracies of its bars, and both together."""

from __future__ import annotations

import numpy as np
import pandas

from attention_probe.analysis.curves import as_frame, average_curves, chosen_problems, shared_problems
from attention_probe.figures.config import BarsConfig, FigureConfig, Panel
from attention_probe.traces import AttentionTraces
from harness.analysis.outcomes import accuracy_table
from harness.analysis.reference import read_reference
from harness.display.numbers import label
from harness.errors import ConfigError
from harness.runs.sample_frame import load_run


def read_curves(panel: Panel, traces: AttentionTraces, *, problem: str | None = None) -> pandas.DataFrame:
    """The curves of one panel, one row per point, every condition over the same problems.

    Rows of the kind `control` are the curves of matched problems that did not flip; they are never averaged with the
    problems chosen. `problem` is the id of a single problem; it is missing in a mean over several.

    Args:
        panel: Which layer, head, conditions, view and definition.
        traces: Of the panel's model. The first token is left out of Llama's and Gemma's curves unless the config says.
        problem: Only this one.

    Raises:
        ConfigError: the traces lack the layer, the head or a condition, or no problem has all conditions.
    """
    shows, subtracted = panel.shows, panel.shows.subtracted
    needed = [*shows.series, *([subtracted] if subtracted else [])]
    chosen = chosen_problems(traces, needed)
    matched = [name for name in shared_problems(traces, needed) if name not in set(chosen)]
    if problem is not None:
        chosen, matched = [problem], []
    tables = []
    for kind, problems in (("curve", chosen), ("control", matched)):
        curves = average_curves(
            traces,
            conditions=shows.series if problems else (),
            layer=panel.head.layer,
            heads=[panel.head.head],
            view="full" if shows.view == "full" else "aligned",
            baseline=subtracted,
            definition=panel.definition,
            exclude_first=panel.head.exclude_first_token,
            problem_ids=problems,
        )
        for condition, curve in zip(shows.series, curves, strict=False):
            tables.append(as_frame([curve]).assign(kind=kind, legend=panel.name(condition)))
    return pandas.concat(tables, ignore_index=True).assign(
        panel=panel.title,
        row=panel.row,
        column=panel.column,
        model=panel.head.model,
        on_outcome=traces.header.on_outcome,
        problem=chosen[0] if len(chosen) == 1 else None,
    )


def choose_one_prompt(config: FigureConfig, traces: AttentionTraces) -> str:
    """The problem whose prompt ends nearest to the end of the first row's axis, as the study's seem to.

    Raises:
        ConfigError: no problem has all conditions.
    """
    row = config.rows[0]
    lengths = {
        name: len(traces.get(name, next(iter(row.series))).tokens)
        for name in chosen_problems(traces, config.conditions)
    }
    return min(lengths, key=lambda name: abs(lengths[name] - row.limits[1]))


def read_bars(config: BarsConfig) -> pandas.DataFrame:
    """The accuracies that a figure's bars show: rows as of `outcomes.accuracy_table`.

    The column `reference` names the source of published numbers; it is missing where runs of ours are shown.

    Raises:
        ConfigError: the reference file is missing or not of the form that results/reference/ has, or a condition has
            no accuracy.
        RunError: a run is missing or unfinished.
    """
    if config.reference is not None:
        published = read_reference(str(config.reference))
        rows = [
            {"model": entry.model, "layout": "", "condition": condition, "accuracy": accuracy}
            for entry in published.accuracies
            for condition, accuracy in entry.conditions.items()
        ]
        unknown = {"accuracy_low": np.nan, "accuracy_high": np.nan, "n": 0}
        table = pandas.DataFrame(rows).assign(**unknown, reference=published.source)
    else:
        table = accuracy_table(pandas.concat([load_run(run) for run in config.runs])).assign(reference=None)
    where = config.reference or ", ".join(map(str, config.runs))
    missing = [condition for condition in config.conditions if condition not in set(table["condition"])]
    if missing:
        raise ConfigError(
            f"{where}: no accuracy for {', '.join(missing)}, expected {', '.join(config.conditions)}. "
            "Run the missing conditions, or leave them out of the config's bars.conditions."
        )
    return pandas.concat([table[table["condition"] == name] for name in config.conditions], ignore_index=True)


def figure_table(
    config: FigureConfig, curves: pandas.DataFrame, bars: pandas.DataFrame | None = None
) -> pandas.DataFrame:
    """Every number that the figure shows, one row per point; layer and head are indices from 0, `label` from 1.

    Args:
        config: The figure.
        curves: From `read_curves`, of all panels.
        bars: From `read_bars`.
    """
    tables = [curves.drop(columns="problem")]
    if bars is not None and config.bars is not None:
        names = {"accuracy": "mean", "accuracy_low": "low", "accuracy_high": "high", "n": "count", "reference": "note"}
        shown = bars[["model", "layout", "condition", *names]].rename(columns=names)
        kinds = shown["note"].isna().map({True: "bar", False: "reference bar"})
        legends = shown["condition"].map(label)
        tables.append(shown.assign(kind=kinds, panel=config.bars.title, legend=legends, unit="percent"))
    table = pandas.concat(tables, ignore_index=True).assign(figure=config.name)
    leading = ["figure", "kind", "panel", "row", "column", "model", "condition", "legend"]
    return table[[*leading, *table.columns.difference(leading, sort=False)]]
