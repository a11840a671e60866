"""Figures of a folder of traces: the mean curves of each layer's heads, all conditions."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from attention_probe.analysis.average_curves import shared_problems
from attention_probe.figures.curve_figures import draw_figure, explain_figure
from attention_probe.figures.figure_config import FigureConfig
from attention_probe.figures.figure_numbers import figure_table, read_curves
from attention_probe.figures.trace_views import NO_FINDING, read_view
from attention_probe.traces import AttentionTraces
from harness.constants import Definition
from harness.display.figures.figure_style import write_figure
from harness.display.report.attention_view import PAGE_BYTES
from harness.runs import versions_and_hashes
from harness.runs.attention_file import AttentionFile


def read_layer(
    traces: AttentionTraces,
    layer: int,
    heads: Sequence[int] = (),
    definition: Definition = "common",
) -> tuple[FigureConfig, pandas.DataFrame]:
    """The figure of one layer, and its curves, over the problems that all conditions have.

    Args:
        traces: The folder.
        layer: Counted from 1.
        heads: Counted from 1; all by default.
        definition: Which queries the average is over.

    Raises:
        ConfigError: no such layer or head, or no problem has traces under all conditions.
    """
    shared_problems(traces, traces.conditions)  # refuses an empty folder
    head_numbers = heads or range(1, traces.header.head_count + 1)
    config = FigureConfig.model_validate(
        {
            # the figure's name is also that of its files
            "name": re.sub(r"[^\w.-]", "-", f"{traces.path.stem}-layer-{layer}", flags=re.ASCII),
            "model": traces.header.model,
            "prompts": {"run": traces.path},
            "definition": definition,
            "heads": [{"layer": layer, "head": head} for head in head_numbers],
            "rows": [
                {"view": "aligned", "series": {condition: {} for condition in traces.conditions}}
            ],
            "note": NO_FINDING,
        }
    )
    return config, read_curves(config.panels, config, traces)


def draw_traces(
    path: Path, folder: Path, layers: Sequence[int] = (), heads: Sequence[int] = ()
) -> list[Path]:
    """Draw a figure of each layer, by default of all recorded layers, and return the files.

    Raises:
        JournalError: the folder does not exist, or is damaged.
        ConfigError: no such layer or head, or no problem has traces under all conditions.
    """
    files = []
    with AttentionTraces.open(path) as traces:
        for layer in layers or [index + 1 for index in traces.header.layers]:
            config, curves = read_layer(traces, layer, heads)
            receipt = figure_receipt(config, [traces.receipt])
            files += write_figure(
                draw_figure(config, curves),
                figure_table(config, curves, None),
                folder,
                config.name,
                receipt,
            )
    return files


def figure_receipt(config: FigureConfig, probes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The receipt of a figure: its config, the receipts of its probes, and versions."""
    return {
        "figure": config.model_dump(mode="json"),
        "probes": probes,
        **versions_and_hashes.software(),
    }


def read_attention(
    path: Path,
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    definition: Definition = "common",
) -> AttentionFile:
    """The mean curves of some heads of one layer, over the problems that all conditions have.

    Args:
        path: The folder of traces.
        layer: Counted from 1; by default the first that was recorded.
        heads: Counted from 1; all by default.
        definition: Which queries the average is over.

    Raises:
        JournalError: the folder does not exist, or is damaged.
        ConfigError: no such layer or head, or no problem has traces under all conditions.
    """
    view = read_view(path, most_bytes=PAGE_BYTES)
    with AttentionTraces.open(path) as traces:
        header = traces.header
        layer = header.layers[0] + 1 if layer is None else layer
        config, curves = read_layer(traces, layer, heads or (), definition)
        return AttentionFile(
            name=view.facts["name"],
            model=str(header.fingerprint["name"]),
            figure=draw_figure(config, curves, note=False),
            view=view,
            notes=tuple(explain_figure(config, curves)),
            prompts=tuple(
                (entry.problem_id, entry.condition, entry.prompt_sha256)
                for entry in traces.entries()
            ),
            receipt=traces.receipt,
        )
