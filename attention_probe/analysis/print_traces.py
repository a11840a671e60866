"""Traces in a screenful: where the heads look under each condition, and what the self-check found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attention_probe.analysis.curves import average_curves, chosen_problems, leaves_out_first_token, shared_problems
from attention_probe.traces import AttentionTraces
from harness.constants import Definition
from harness.display.table import Column, Table, render

MASSES = ("mass_first", "mass_instruction", "mass_filler", "mass_problem", "mass_completion", "mass_other")


def summary(traces: AttentionTraces, *, heads: Sequence[int] | None = None, definition: Definition = "common") -> str:
    """Masses and the highest point of the aligned curve, for each layer, head and condition: a table of 80 columns.

    Args:
        traces: Where from.
        heads: Indices from 0. None: the mean over all heads, without a curve.
        definition: Which queries the curve averages over.

    Raises:
        ConfigError: there is no such head, or no problem has every condition.
    """
    header = traces.header
    problems = chosen_problems(traces, traces.conditions)
    left_out = leaves_out_first_token(header)
    masses = {name: traces.measures(MASSES, name, problems) for name in traces.conditions}
    rows = []
    for place, layer in enumerate(header.layers):
        curves = average_curves(
            traces,
            conditions=traces.conditions if heads else (),
            layer=layer,
            heads=heads or (),
            definition=definition,
            exclude_first=left_out,
            problem_ids=problems,
        )
        by_head = {(curve.head, curve.condition): curve for curve in curves}
        for head in [None] if heads is None else heads:
            for name in traces.conditions:
                row: dict[str, Any] = {"layer": f"Layer {layer + 1}", "head": "mean", "condition": name}
                for mass, values in zip(MASSES, masses[name][:, :, place], strict=True):
                    there = values[~np.isnan(values).all(1)]  # an empty completion has no queries, in any head
                    there = there if head is None else there[:, head]
                    row[mass] = there.mean() if there.size else np.nan
                if head is not None:
                    curve = by_head[head, name]
                    peak = curve.mean.argmax() if len(curve.x) else None
                    row["head"] = f"Head {head + 1}"
                    row["peak"], row["at"] = (np.nan, np.nan) if peak is None else (curve.mean[peak], curve.x[peak])
                rows.append(row)
    queries = "the problem's tokens" if header.queries == "prompt" else "the completion's tokens"
    title = f"{header.model}, {len(problems)} problems; shares of the attention of {queries}"
    if heads is not None:
        over = f"{definition} queries" if header.queries == "prompt" else "the completion's"
        title += f"; peak of the aligned curve ({over}{', first token left out' if left_out else ''}) and its position"
    if controls := len(shared_problems(traces, traces.conditions)) - len(problems):
        title += f"; {controls} controls were traced and are left out here"
    seen = [mass for mass in MASSES if mass != "mass_completion" or header.queries == "completion"]
    columns = [
        *(Column(name, name, str, numeric=False) for name in ("layer", "head", "condition")),
        *(Column(mass, mass.removeprefix("mass_"), "{:.4f}".format) for mass in seen),
        *([Column("peak", "peak", "{:.4f}".format), Column("at", "at", "{:.0f}".format)] if heads else []),
    ]
    return "\n".join([*header.stamps, render([Table(title, rows, columns)])])


def describe_checks(checks: Mapping[str, Any]) -> str:
    """The self-check in one line, and one for each thing that must be known of the architecture."""
    names = {"eager_error": "eager", "identity_error": "Layer 1 identity", "dtype_error": "dtype"}
    parts = [f"{name} {checks[key]:.1e}" for key, name in names.items() if checks.get(key) is not None]
    line = f"self-check (largest error): {', '.join(parts) or 'nothing to compare with'}"
    return "\n".join([line, *(f"note: {notice}" for notice in checks.get("notices", ()))])
