"""A folder of traces as a report shows it: a panel of each head's mean curves in one layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attention_probe.figures.attention_curves import draw_figure, explain_figure
from attention_probe.figures.from_traces import read_layer
from attention_probe.traces import AttentionTraces
from harness.constants import Definition
from harness.display.report.page import AttentionFile


def read_attention(
    path: Path, *, layer: int | None = None, heads: Sequence[int] | None = None, definition: Definition = "common"
) -> AttentionFile:
    """The mean curves of some heads of one layer, over the problems that all conditions have.

    Args:
        path: The folder of traces.
        layer: Counted from 1; by default the first that was recorded.
        heads: Counted from 1; all by default.
        definition: Which queries the average is over.

    Raises:
        JournalError: there is no such folder, or it is damaged.
        ConfigError: no such layer or head, or no problem has traces under all conditions.
    """
    with AttentionTraces.open(path) as traces:
        header = traces.header
        layer = header.layers[0] + 1 if layer is None else layer
        config, curves = read_layer(traces, layer, heads or (), definition)
        return AttentionFile(
            name=path.name,
            model=str(header.fingerprint.get("name", header.model)),
            figure=draw_figure(config, curves, note=False),
            notes=tuple(explain_figure(config, curves)),
            prompts=tuple((one.problem_id, one.condition, one.prompt_sha256) for one in traces.entries()),
            receipt=traces.receipt,
        )
