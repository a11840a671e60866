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
from typing import Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from attention_probe.analysis.curve import DRAWS, SEED, Curve, bootstrap_band
from attention_probe.choices import View
from attention_probe.traces import AttentionTraces, Trace
from harness.choices import Definition
from harness.errors import ConfigError

_OF_COMPLETIONS = "over the recorded completion's tokens, which are others in every condition, whatever the definition"


class CurveOptions(TypedDict, total=False):
    """What every function of a curve takes beside the traces and its heads, by keyword.

    Attributes:
        condition: Which.
        layer: From 0.
        definition: Over which queries; `common` by default.
        exclude_first: Leave the first token out, which in some models takes most of the attention.
        problem_ids: Which prompts; all of the condition by default. To set two conditions side by side, give both the
            same, from `chosen_problems`.
        draws: Bootstrap draws for the band.
        seed: Of the bootstrap. The same seed resamples the same prompts in every condition.
    """

    condition: Required[str]
    layer: Required[int]
    definition: Definition
    exclude_first: bool
    problem_ids: Sequence[str] | None
    draws: int
    seed: int


def aligned_curve(traces: AttentionTraces, *, head: int, **options: Unpack[CurveOptions]) -> Curve:
    """The curve over original tokens, whatever was inserted between them.

    Args:
        traces: Where from.
        head: From 0.
        options: See `CurveOptions`.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces.
    """
    (curve,) = aligned_curves(traces, heads=[head], **options)
    return curve


def aligned_curves(traces: AttentionTraces, *, heads: Sequence[int], **options: Unpack[CurveOptions]) -> list[Curve]:
    """`aligned_curve` of several heads, for which every trace is read but once.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces.
    """
    return _draw(traces, "aligned", heads, **options)


def full_curve(traces: AttentionTraces, *, head: int, **options: Unpack[CurveOptions]) -> Curve:
    """The curve over the prompt as it was, with the region to shade; arguments as for `aligned_curve`.

    Where the filler does not stand at the same positions in all prompts, the mean is over those prompts (more than
    half of them) that share one region, and the note says so.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces, or no region is shared by more than half
            of the prompts.
    """
    condition, note = options["condition"], None
    chosen = _chosen(traces, condition, options.get("problem_ids"))
    spans = {entry.problem_id: entry.filler_span for entry in traces.entries() if entry.condition == condition}
    (span, most), *_ = Counter(spans[problem_id] for problem_id in chosen).most_common(1)
    if most < len(chosen):
        if 2 * most <= len(chosen):
            raise ConfigError(
                f"the filler of {condition} stands at different positions: no region is shared by more than half of "
                f"the {len(chosen)} prompts (the commonest by {most}). Draw one prompt, or use the aligned view."
            )
        note = f"mean over the {most} of {len(chosen)} prompts whose filler stands at the shaded positions"
    options["problem_ids"] = [problem_id for problem_id in chosen if spans[problem_id] == span]
    region = None if span is None else (span[0] - 0.5, span[1] - 0.5)
    (curve,) = _draw(traces, "full", [head], region=region, note=note, **options)
    return curve


def difference_curve(traces: AttentionTraces, *, baseline: str, head: int, **options: Unpack[CurveOptions]) -> Curve:
    """The paired difference, condition minus baseline, of every original token; arguments as for `aligned_curve`.

    Against a baseline without filler a drop summed over all tokens is guaranteed by the softmax and is no finding; the
    note says so.

    Raises:
        ConfigError: no such layer, head, condition or problem in the traces.
    """
    pair = (options["condition"], baseline)
    if options.get("problem_ids") is None:
        options["problem_ids"] = chosen_problems(traces, pair)
    filled = filled_conditions(traces)
    lone = (pair[0] in filled) != (pair[1] in filled)
    note = "all tokens' sum differs by the filler's mass: softmax guarantees it, whatever is inserted" if lone else None
    (curve,) = _draw(traces, "aligned", [head], baseline=baseline, note=note, **options)
    return curve


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


def filled_conditions(traces: AttentionTraces) -> set[str]:
    """The conditions whose prompts have a filler."""
    return {entry.condition for entry in traces.entries() if entry.filler_span is not None}


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


def _draw(
    traces: AttentionTraces,
    view: View,
    heads: Sequence[int],
    *,
    condition: str,
    layer: int,
    definition: Definition = "common",
    exclude_first: bool = False,
    problem_ids: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
    baseline: str | None = None,
    region: tuple[float, float] | None = None,
    note: str | None = None,
) -> list[Curve]:
    """A curve for each head: of a condition, or of its difference from a baseline."""
    header = traces.header
    checked = [header.check_head(head) for head in heads]

    def read(name: str) -> tuple[NDArray[np.float64], Trace, NDArray[np.integer]]:
        """[head, prompt, x] values, NaN where a prompt has none, and the last prompt with its tokens' x."""
        rows = []
        for problem_id in _chosen(traces, name, problem_ids):
            trace = traces.get(problem_id, name)
            means = (trace.mean_common if definition == "common" else trace.mean_all)[header.layer_index(layer)]
            places = np.arange(len(trace.tokens)) if view == "full" else trace.original_pos
            shown = places >= int(exclude_first)  # inserted tokens have no place in the aligned view: -1
            row = np.full((len(checked), places.max() + 1), np.nan)
            row[:, places[shown]] = means[checked][:, shown]
            rows.append(row)
        width = max(row.shape[1] for row in rows)
        padded = [np.pad(row, ((0, 0), (0, width - row.shape[1])), constant_values=np.nan) for row in rows]
        return np.stack(padded, axis=1), trace, places

    tables, trace, places = read(condition)
    name, texts = condition, dict(zip(places.tolist(), trace.tokens, strict=True))
    if baseline is not None:
        name = f"{condition} - {baseline}"
        others, *_ = read(baseline)
        width = min(tables.shape[2], others.shape[2])
        tables = tables[:, :, :width] - others[:, :, :width]
    of_completions = _OF_COMPLETIONS if header.queries == "completion" else None
    curves = []
    for head, table in zip(checked, tables, strict=True):
        counts = np.isfinite(table).sum(axis=0)
        x = np.flatnonzero(counts)
        low, high = bootstrap_band(table[:, x], draws=draws, seed=seed)
        curves.append(
            Curve(
                condition=name,
                layer=layer,
                head=head,
                definition=definition,
                view=view,
                first_token_excluded=exclude_first,
                x=x,
                mean=np.nanmean(table[:, x], axis=0),
                low=low,
                high=high,
                count=counts[x],
                prompts=len(table),
                filler_region=region,
                tokens=tuple(texts[place] for place in x.tolist()) if len(table) == 1 and baseline is None else None,
                note="; ".join(filter(None, [of_completions, note])) or None,
            )
        )
    return curves
