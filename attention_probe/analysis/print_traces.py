"""Traces in a screenful: where the heads look under each condition, and what the self-check found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_probe.analysis.average_curves import chosen_problems, shared_problems
from attention_probe.traces import AttentionTraces
from harness.display.format_table import Column, Table, render
from harness.smollm2_model import label_model

MASSES = (
    "mass_first",
    "mass_instruction",
    "mass_filler",
    "mass_problem",
    "mass_completion",
    "mass_other",
)


def summary(traces: AttentionTraces) -> str:
    """Masses for each layer and condition, means over all heads: a table of 80 columns.

    Raises:
        ConfigError: no problem has every condition.
    """
    header = traces.header
    problems = chosen_problems(traces, traces.conditions)
    masses = {name: traces.measures(MASSES, name, problems) for name in traces.conditions}
    rows = []
    for place, layer in enumerate(header.layers):
        for name in traces.conditions:
            row: dict[str, Any] = {"layer": f"Layer {layer + 1}", "condition": name}
            for mass, values in zip(MASSES, masses[name][:, :, place], strict=True):
                there = values[
                    ~np.isnan(values).all(1)
                ]  # an empty completion has no queries, in any head
                row[mass] = there.mean() if there.size else np.nan
            rows.append(row)
    asked = "problem" if header.queries == "prompt" else "completion"
    title = f"{label_model(header.model)}, {len(problems)} problems; shares of the attention of the {asked}'s tokens"
    if controls := len(shared_problems(traces, traces.conditions)) - len(problems):
        title += f"; {controls} controls were traced and are left out here"
    columns = [
        *(Column(name, name, str, numeric=False) for name in ("layer", "condition")),
        *(
            Column(mass, mass.removeprefix("mass_"), "{:.4f}".format)
            for mass in MASSES
            if mass != "mass_completion" or header.queries == "completion"
        ),
    ]
    return "\n".join([*header.stamps, render([Table(title, rows, columns)])])


def describe_checks(checks: Mapping[str, Any]) -> str:
    """The self-check in one line."""
    names = {"eager_error": "eager", "dtype_error": "dtype"}
    errors = [f"{name} {checks[key]:.1e}" for key, name in names.items() if key in checks]
    return f"self-check (largest error): {', '.join(errors)}"
