"""A folder of traces as a report shows it: mean curves of one layer's heads, and the curves of single prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attention_probe.analysis.averaging import average_curves, chosen_problems
from attention_probe.analysis.curve import Curve, leaves_out_first_token
from attention_probe.prompts.token_roles import ROLES
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness.choices import Definition
from harness.display.report.attention import AttentionFile, MeanCurve, PromptCurves

_EXPLAINED = {
    "common": "Mean attention that each token gets from later tokens of the prompt without filler (common queries).",
    "published": "Mean attention that each token gets from all later tokens, inserted ones too (as published).",
    "completion": "Mean attention that each token gets from the tokens of the recorded completion.",
}


def read_attention(
    path: Path, *, layer: int | None = None, heads: Sequence[int] | None = None, definition: Definition = "common"
) -> AttentionFile:
    """The curves of some heads of one layer, of single prompts and averaged.

    Means are over the problems that all conditions have. Controls are in no mean.

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
        index = header.layer_index(layer)
        chosen = [header.check_head(head) for head in (range(header.head_count) if heads is None else heads)]
        curves = average_curves(
            traces,
            conditions=traces.conditions,
            layer=layer,
            heads=chosen,
            definition=definition,
            exclude_first=left_out,
            problem_ids=chosen_problems(traces, traces.conditions),
        )
        return AttentionFile(
            name=path.name,
            model=str(header.fingerprint.get("name", header.model)),
            layout=header.layout,
            heads=tuple(dict.fromkeys(curve.label for curve in curves)),
            notes=tuple(_notes(header, layer, definition, left_out)),
            means=tuple(map(_mean, curves)),
            prompts=tuple(_prompt(trace, index, chosen, definition, left_out) for trace in traces.select()),
            receipt=traces.receipt,
        )


def _mean(curve: Curve) -> MeanCurve:
    """A curve where at least half of its prompts have a value."""
    kept = 2 * curve.count >= curve.prompts
    return MeanCurve(
        head=curve.label,
        condition=curve.condition,
        x=tuple(curve.x[kept].tolist()),
        mean=tuple(curve.mean[kept].tolist()),
        low=_to_numbers(curve.low[kept]),
        high=_to_numbers(curve.high[kept]),
        prompts=curve.prompts,
    )


def _prompt(trace: Trace, index: int, heads: Sequence[int], definition: Definition, left_out: bool) -> PromptCurves:
    """One prompt's curves in the layer of this place, without the first token if that is left out."""
    weights = (trace.mean_common if definition == "common" else trace.mean_all)[index, heads]
    shown = np.where(left_out & (trace.original_pos == 0), np.nan, weights)
    return PromptCurves(
        problem_id=trace.problem_id,
        condition=trace.condition,
        prompt_sha256=trace.prompt_sha256,
        tokens=trace.tokens,
        roles=tuple(ROLES[role] for role in trace.roles.tolist()),
        original_pos=tuple(trace.original_pos.tolist()),
        values=tuple(map(_to_numbers, shown)),
    )


def _to_numbers(values: NDArray[np.floating]) -> tuple[float | None, ...]:
    """Numbers, None for what is not defined."""
    return tuple(None if value != value else float(value) for value in values.tolist())


def _notes(header: TraceHeader, layer: int, definition: Definition, left_out: bool) -> Iterator[str]:
    """Sentences that a reader of these curves needs."""
    yield _EXPLAINED["completion" if header.queries == "completion" else definition]
    if left_out:
        yield "The first token, which takes most of this model's attention, is left out; nothing is rescaled."
    if len(header.layers) > 1:
        recorded = ", ".join(str(number + 1) for number in header.layers)
        yield f"Recorded were the layers {recorded}; shown is Layer {layer + 1}."
    if header.random_weights:
        yield "Random weights: these curves say nothing about a trained model."
    if header.on_outcome:
        yield "Selected on outcome: these problems were chosen by what became of them."
    yield "That inserted tokens take attention from the others is no finding: softmax guarantees it."
