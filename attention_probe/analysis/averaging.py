"""From traces to curves: the average attention weight of every token, of one prompt or the mean over prompts.

*Aligned*: inserted tokens are left out and the same original token stands at the same x in every condition. *Full*:
the prompt as it was, with the filler's region. Values are shares of a query's attention and are never renormalised,
also not where the first token is left out. Bands are pointwise 95 % percentile bootstrap bands over prompts: they say
how well the mean over such prompts is known, not how prompts scatter.

Source: Bogdan et al., "Thought Anchors", 2025 (the average attention weight); Shi et al., arXiv 2510.01032, section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attention_probe.analysis.curve import DRAWS, SEED, Curve, as_frame, bootstrap_band
from attention_probe.choices import View
from attention_probe.traces import AttentionTraces, Trace
from harness.choices import Definition
from harness.errors import ConfigError

__all__ = [
    "Curve",
    "aligned_curve",
    "aligned_curves",
    "as_frame",
    "bootstrap_band",
    "chosen_problems",
    "difference_curve",
    "full_curve",
    "shared_problems",
]

_OF_COMPLETIONS = "over the recorded completion's tokens, which are others in every condition, whatever the definition"


def aligned_curve(
    traces: AttentionTraces,
    *,
    condition: str,
    layer: int,
    head: int,
    definition: Definition = "common",
    exclude_first: bool = False,
    problem_ids: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Curve:
    """The curve over original tokens, whatever was inserted between them.

    Args:
        traces: Where from.
        condition: Which.
        layer: From 0.
        head: From 0.
        definition: Over which queries.
        exclude_first: Leave the first token out, which in some models takes most of the attention.
        problem_ids: Which prompts; all of the condition by default. To set two conditions side by side, give both the
            same, from `chosen_problems`.
        draws: Bootstrap draws for the band.
        seed: Of the bootstrap. The same seed resamples the same prompts in every condition.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces.
    """
    (curve,) = aligned_curves(
        traces,
        condition=condition,
        layer=layer,
        heads=[head],
        definition=definition,
        exclude_first=exclude_first,
        problem_ids=problem_ids,
        draws=draws,
        seed=seed,
    )
    return curve


def aligned_curves(
    traces: AttentionTraces,
    *,
    condition: str,
    layer: int,
    heads: Sequence[int],
    definition: Definition = "common",
    exclude_first: bool = False,
    problem_ids: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> list[Curve]:
    """`aligned_curve` of several heads, for which every trace is read but once.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces.
    """
    chosen = _chosen(traces, condition, problem_ids)
    asks = [
        _Ask(layer=layer, head=head, definition=definition, view="aligned", exclude_first=exclude_first)
        for head in heads
    ]
    texts = _texts(asks[0], traces.get(chosen[0], condition)) if len(chosen) == 1 else None
    note = _OF_COMPLETIONS if traces.header.queries == "completion" else None
    tables = _tables(asks, traces, condition, chosen)
    return [
        _curve(ask, condition, table, draws, seed, texts=texts, note=note)
        for ask, table in zip(asks, tables, strict=True)
    ]


def full_curve(
    traces: AttentionTraces,
    *,
    condition: str,
    layer: int,
    head: int,
    definition: Definition = "common",
    exclude_first: bool = False,
    problem_ids: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Curve:
    """The curve over the prompt as it was, with the region to shade; arguments as for `aligned_curve`.

    Where the filler does not stand at the same positions in all prompts, the mean is over those prompts (more than
    half of them) that share one region, and the note says so.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces, or no region is shared by more than half
            of the prompts.
    """
    chosen = _chosen(traces, condition, problem_ids)
    wanted = set(chosen)
    spans = {
        entry.problem_id: entry.filler_span
        for entry in traces.entries()
        if entry.condition == condition and entry.problem_id in wanted
    }
    (span, most), *_ = Counter(spans.values()).most_common(1)
    notes = [_OF_COMPLETIONS] if traces.header.queries == "completion" else []
    if most < len(chosen):
        if 2 * most <= len(chosen):
            raise ConfigError(
                f"the filler of {condition} stands at different positions: no region is shared by more than half of "
                f"the {len(chosen)} prompts (the commonest by {most}). Draw one prompt, or use the aligned view."
            )
        notes.append(f"mean over the {most} of {len(chosen)} prompts whose filler stands at the shaded positions")
        chosen = [problem_id for problem_id in chosen if spans[problem_id] == span]
    ask = _Ask(layer=layer, head=head, definition=definition, view="full", exclude_first=exclude_first)
    texts = _texts(ask, traces.get(chosen[0], condition)) if len(chosen) == 1 else None
    region = None if span is None else (span[0] - 0.5, span[1] - 0.5)
    (table,) = _tables([ask], traces, condition, chosen)
    return _curve(ask, condition, table, draws, seed, texts=texts, region=region, note="; ".join(notes) or None)


def difference_curve(
    traces: AttentionTraces,
    *,
    condition: str,
    baseline: str,
    layer: int,
    head: int,
    definition: Definition = "common",
    exclude_first: bool = False,
    problem_ids: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> Curve:
    """The paired difference, condition minus baseline, of every original token; arguments as for `aligned_curve`.

    Against a baseline without filler a drop summed over all tokens is guaranteed by the softmax and is no finding; the
    note says so.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces.
    """
    chosen = chosen_problems(traces, (condition, baseline)) if problem_ids is None else problem_ids
    ask = _Ask(layer=layer, head=head, definition=definition, view="aligned", exclude_first=exclude_first)
    (with_filler,), (without,) = (
        _tables([ask], traces, name, _chosen(traces, name, chosen)) for name in (condition, baseline)
    )
    width = min(with_filler.shape[1], without.shape[1])
    table = with_filler[:, :width] - without[:, :width]
    filled = {entry.condition for entry in traces.entries() if entry.filler_span is not None}
    notes = [_OF_COMPLETIONS] if traces.header.queries == "completion" else []
    if (condition in filled) != (baseline in filled):
        notes.append("all tokens' sum differs by the filler's mass: softmax guarantees it, whatever is inserted")
    return _curve(ask, f"{condition} - {baseline}", table, draws, seed, note="; ".join(notes) or None)


def shared_problems(traces: AttentionTraces, conditions: Iterable[str]) -> list[str]:
    """The problems traced under all of these conditions, in the order in which they were added.

    Raises:
        ConfigError: there is none.
    """
    names = list(conditions)
    known = {(entry.problem_id, entry.condition) for entry in traces.entries()}
    shared = [name for name in traces.problem_ids if all((name, condition) in known for condition in names)]
    if not shared:
        raise ConfigError(
            f"{traces.path} has no problem under all of {', '.join(names)}; it has traces under "
            f"{', '.join(traces.conditions) or 'no condition'}. Probe the missing ones, or ask for others."
        )
    return shared


def chosen_problems(traces: AttentionTraces, conditions: Iterable[str]) -> list[str]:
    """The shared problems without the controls, which are matched to them and never averaged with them.

    Raises:
        ConfigError: there is none.
    """
    controls = {entry.problem_id for entry in traces.entries() if entry.control}
    chosen = [name for name in shared_problems(traces, conditions) if name not in controls]
    if not chosen:
        raise ConfigError(f"{traces.path} holds only controls. Probe the problems that they are matched to, too.")
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """Which numbers of a trace a curve is made of."""

    layer: int
    head: int
    definition: Definition
    view: View
    exclude_first: bool

    def places(self, trace: Trace) -> NDArray[np.int64]:
        """The x of every token; -1 for those left out."""
        positions = np.arange(len(trace.tokens), dtype=np.int64)
        places = positions if self.view == "full" else trace.original_pos.astype(np.int64)
        return np.where(places == 0, -1, places) if self.exclude_first else places


def _chosen(traces: AttentionTraces, condition: str, problem_ids: Sequence[str] | None) -> list[str]:
    """The prompts to draw, each once."""
    known = [entry.problem_id for entry in traces.entries() if entry.condition == condition]
    if not known:
        raise ConfigError(
            f"{traces.path} holds no trace under {condition}; it has {', '.join(traces.conditions) or 'none at all'}. "
            "Ask for one of these, or probe that condition too."
        )
    wanted = list(dict.fromkeys(known if problem_ids is None else problem_ids))
    missing = set(wanted) - set(known)
    if missing or not wanted:
        first = f", first {next(name for name in wanted if name in missing)}" if missing else ""
        raise ConfigError(
            f"{len(missing)} of the {len(wanted)} problems asked for have no trace under {condition} in {traces.path}"
            f"{first}. Ask for some that have, or probe these too."
        )
    return wanted


def _tables(
    asks: Sequence[_Ask], traces: AttentionTraces, condition: str, chosen: Sequence[str]
) -> NDArray[np.float64]:
    """[head, prompt, x] values, NaN where a prompt has none. What is asked differs in the head alone."""
    ask = asks[0]
    index, heads = traces.header.layer_index(ask.layer), [traces.header.check_head(one.head) for one in asks]
    rows = []
    for problem_id in chosen:
        trace = traces.get(problem_id, condition)
        means = trace.mean_common if ask.definition == "common" else trace.mean_all
        places = ask.places(trace)
        row = np.full((len(heads), max(len(places), int(places.max(initial=0)) + 1)), np.nan)
        row[:, places[places >= 0]] = means[index, heads][:, places >= 0]
        rows.append(row)
    tables = np.full((len(heads), len(rows), max(row.shape[1] for row in rows)), np.nan)
    for number, row in enumerate(rows):
        tables[:, number, : row.shape[1]] = row
    return tables


def _texts(ask: _Ask, trace: Trace) -> dict[int, str]:
    return {int(place): text for place, text in zip(ask.places(trace), trace.tokens, strict=True) if place >= 0}


def _curve(
    ask: _Ask,
    condition: str,
    table: NDArray[np.float64],
    draws: int,
    seed: int,
    *,
    texts: dict[int, str] | None = None,
    region: tuple[float, float] | None = None,
    note: str | None = None,
) -> Curve:
    counts = np.isfinite(table).sum(axis=0)
    x = np.flatnonzero(counts)
    low, high = bootstrap_band(table[:, x], draws=draws, seed=seed) if len(table) > 1 else (None, None)
    return Curve(
        condition=condition,
        layer=ask.layer,
        head=ask.head,
        definition=ask.definition,
        view=ask.view,
        first_token_excluded=ask.exclude_first,
        x=x,
        mean=np.nanmean(table[:, x], axis=0),
        low=low,
        high=high,
        count=counts[x],
        prompts=len(table),
        filler_region=region,
        tokens=None if texts is None else tuple(texts[place] for place in x.tolist()),
        note=note,
    )
