"""A folder of traces as a report shows it: a panel of each head's mean curves in one layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure

from attention_probe.analysis.curves import Curve, as_frame, average_curves, chosen_problems, leaves_out_first_token
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
        layer: Index from 0; by default the first that was recorded.
        heads: Indices from 0; all by default.
        definition: Which queries the average is over.

    Raises:
        JournalError: there is no such folder, or it is damaged.
        ConfigError: no such layer or head, or no problem has traces under all conditions.
    """
    with AttentionTraces.open(path) as traces:
        header = traces.header
        left_out = leaves_out_first_token(header)
        layer = header.layers[0] if layer is None else layer
        curves = average_curves(
            traces,
            conditions=traces.conditions,
            layer=layer,
            heads=range(header.head_count) if heads is None else heads,
            definition=definition,
            exclude_first=left_out,
            problem_ids=chosen_problems(traces, traces.conditions),
        )
        return AttentionFile(
            name=path.name,
            model=str(header.fingerprint.get("name", header.model)),
            figure=_draw({name: list(found) for name, found in groupby(curves, key=lambda curve: curve.label)}),
            notes=tuple(_notes(header, curves[0], left_out)),
            prompts=tuple((one.problem_id, one.condition, one.prompt_sha256) for one in traces.entries()),
            receipt=traces.receipt,
        )


def _draw(heads: Mapping[str, Sequence[Curve]]) -> Figure:
    """A panel for each head: its curves with their bands."""
    with panels(heads, "", 1.6) as (figure, grid):
        for axes, curves in zip(grid, heads.values(), strict=True):
            for curve, look in zip(curves, looks(curve.condition for curve in curves).values(), strict=True):
                draw_curve(axes, as_frame([curve]), look, label(curve.condition), linewidth=1)
            axes.set_ylim(bottom=0)
        for axes in grid[::3]:
            axes.set_ylabel("Attention")
        for axes in grid[-3:]:
            axes.set_xlabel("Token position (filler left out)")
    return figure


def _notes(header: TraceHeader, curve: Curve, left_out: bool) -> Iterator[str]:
    """Sentences that a reader of these curves needs."""
    yield EXPLAINED["completion" if header.queries == "completion" else curve.definition]
    yield f"Means over {curve.prompts} prompts with 95 % bootstrap intervals, where at least half of them reach."
    if left_out:
        yield "The first token, which takes most of this model's attention, is left out; nothing is rescaled."
    if header.on_outcome:
        yield "Selected on outcome: these problems were chosen by what became of them."
    yield "That inserted tokens take attention from the others is no finding: softmax guarantees it."
