"""A summary of traces: the attention on each region under each condition, and the self-check."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_probe.analysis.average_curves import chosen_problems, shared_problems
from attention_probe.measure.measure_definitions import MEASURES
from attention_probe.traces import AttentionTraces
from harness.display.format_table import Column, Table, render
from harness.smollm2_model import label_model

MASSES = tuple(name for name in MEASURES if name.startswith("mass_"))


def summary(traces: AttentionTraces) -> str:
    """Masses for each layer and condition, means over all heads: a table of 80 columns.

    Raises:
        ConfigError: no problem has every condition.
    """
    header = traces.header
    problems = chosen_problems(traces, traces.conditions)
    masses = {name: traces.measures(MASSES, name, problems) for name in traces.conditions}
    rows = []
    for layer_index, layer in enumerate(header.layers):
        for condition in traces.conditions:
            row: dict[str, Any] = {"layer": f"Layer {layer + 1}", "condition": condition}
            for mass, values in zip(MASSES, masses[condition][:, :, layer_index], strict=True):
                # an empty completion has no queries, and so no number in any head
                recorded_values = values[~np.isnan(values).all(1)]
                row[mass] = recorded_values.mean() if recorded_values.size else np.nan
            rows.append(row)
    query_segment = "problem" if header.queries == "prompt" else "completion"
    title = (
        f"{label_model(header.model)}, {len(problems)} problems; shares of the attention of the "
        f"{query_segment}'s tokens"
    )
    if controls := len(shared_problems(traces, traces.conditions)) - len(problems):
        title += f"; {controls} controls were traced and are left out here"
    columns = [Column(name, name, str, numeric=False) for name in ("layer", "condition")]
    for mass in MASSES:
        if mass != "mass_completion" or header.queries == "completion":
            columns.append(Column(mass, mass.removeprefix("mass_"), "{:.4f}".format))
    return "\n".join([*header.stamps, render([Table(title, rows, columns)])])


def describe_checks(checks: Mapping[str, Any]) -> str:
    """The self-check in one line."""
    errors = [
        f"{name.removesuffix('_error')} {check:.1e}"
        for name, check in checks.items()
        if name.endswith("_error")
    ]
    return f"self-check (largest error): {', '.join(errors) or 'none in an engine'}"
