"""A folder of traces as a report shows it: a panel of each head's mean curves in one layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas
from matplotlib.figure import Figure

from attention_probe.analysis.curves import average_curves, chosen_problems, leaves_out_first_token
from attention_probe.figures.attention_curves import EXPLAINED
from attention_probe.traces import AttentionTraces, TraceHeader
from harness.constants import Definition
from harness.display.figures.lines import draw_curve
from harness.display.figures.style import label, looks, panels
from harness.display.report.page import AttentionFile


def read_attention(
    path: Path, *, layer: int | None = None, heads: Sequence[int] | None = None, definition: Definition = "common"
) -> AttentionFile:
    """The mean curves of some heads of one layer, over the problems that all conditions have, without the controls.

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
        left_out = leaves_out_first_token(header)
        layer = header.layers[0] + 1 if layer is None else layer
        problems = chosen_problems(traces, traces.conditions)
        curves = average_curves(
            traces,
            conditions=traces.conditions,
            layer=layer,
            heads=range(1, header.head_count + 1) if heads is None else heads,
            definition=definition,
            exclude_first=left_out,
            problem_ids=problems,
        )
        return AttentionFile(
            name=path.name,
            model=str(header.fingerprint.get("name", header.model)),
            figure=_draw(curves),
            notes=tuple(_notes(header, definition, len(problems), left_out)),
            prompts=tuple((one.problem_id, one.condition, one.prompt_sha256) for one in traces.entries()),
            receipt=traces.receipt,
        )


def _draw(table: pandas.DataFrame) -> Figure:
    """A panel for each head: its curves with their bands."""
    shown = looks(table["condition"].unique())
    heads = {
        f"Layer {layer} Head {head}": points for (layer, head), points in table.groupby(["layer", "head"], sort=False)
    }
    with panels(heads, "", 1.6) as (figure, grid):
        for axes, points in zip(grid, heads.values(), strict=True):
            for condition, look in shown.items():
                draw_curve(axes, points[points["condition"] == condition], look, label(condition), linewidth=1)
            axes.set_ylim(bottom=0)
        for axes in grid[::3]:
            axes.set_ylabel("Attention")
        for axes in grid[-3:]:
            axes.set_xlabel("Token position (filler left out)")
    return figure


def _notes(header: TraceHeader, definition: Definition, prompts: int, left_out: bool) -> Iterator[str]:
    """Sentences that a reader of these curves needs."""
    yield EXPLAINED["completion" if header.queries == "completion" else definition]
    yield f"Means over {prompts} prompts with 95 % bootstrap intervals, where at least half of them reach."
    if left_out:
        yield "The first token, which takes most of this model's attention, is left out; nothing is rescaled."
    if header.on_outcome:
        yield "Selected on outcome: these problems were chosen by what became of them."
    yield "That inserted tokens take attention from the others is no finding: softmax guarantees it."
