"""From traces to curves: the average attention weight of every token, a mean over prompts.

There are two views. *Aligned*: inserted tokens are left out, and an original token stands at the same x in every
condition. *Full*: the prompt as it was, with the filler's region. Values are shares of a query's attention. They are
never renormalised, not even where the first token is left out. Bands are pointwise 95 % percentile bootstrap bands over
prompts, those of one cluster resampled together: they show how well the mean over such prompts is known, not how much
prompts scatter.

Source: Bogdan et al., "Thought Anchors", 2025 (the average attention weight); Shi et al., arXiv 2510.01032, section 3.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas
from numpy.typing import NDArray

from attention_probe.measure.measure_definitions import SHARE
from attention_probe.prompts.token_roles import FILLER
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness.constants import DEFAULT_SEED, Definition, View
from harness.errors import ConfigError
from harness.experiment.conditions import contrast_name

BAND_DRAWS = 2000
"""Bootstrap draws of a curve's band."""
BAND = 0.95
"""Level of a curve's band."""

_FIRST_TOKEN_SINKS = ("llama", "gemma")
"""Families whose first token takes most of the attention; the study leaves it out."""


def leaves_out_first_token(header: TraceHeader) -> bool:
    """Whether the study leaves the first token out of this family's curves, for the attention that it absorbs."""
    return str(header.options.get("model_type", "")).startswith(_FIRST_TOKEN_SINKS)


_OF_COMPLETIONS = "averaged over the recorded completion's tokens, which differ between conditions in both definitions"


def average_curves(
    traces: AttentionTraces,
    *,
    conditions: Iterable[str],
    layer: int,
    heads: Sequence[int],
    problem_ids: Sequence[str],
    view: View = "aligned",
    baseline: str | None = None,
    definition: Definition = "common",
    exclude_first: bool | None = False,
) -> pandas.DataFrame:
    """Curves of several heads under several conditions: a row for each point. Every trace is read once.

    In the full view the mean is over the prompts whose filler stands at the same positions. They must be more than
    half, and the note says how many they are. Against a baseline without filler the attention summed over all tokens
    always drops, because of the softmax. That is no finding, and the note of the difference says so.

    Args:
        traces: Where from.
        conditions: Whose prompts are averaged.
        layer: Counted from 1.
        heads: Counted from 1.
        problem_ids: Whose prompts. To set conditions side by side, give those of `chosen_problems`.
        view: Over original tokens (`aligned`), or over the prompt as it was (`full`).
        baseline: A condition that is subtracted prompt by prompt, in the aligned view.
        definition: Which queries the average is over.
        exclude_first: Leave the first token out, which in some models takes most of the attention. None: leave it
            out for the families of models for which the study does.

    Returns:
        Of each point:

        - condition (`mless - wo` for a difference), layer and head (from 1), view, definition, unit;
          first_token_excluded: whether x = 0 was left out. Nothing was renormalised.
        - x: the original token's position, or the position in the prompt as it was.
        - mean, low, high: the average weight and the ends of its band, NaN where fewer than two prompts contribute.
        - count: how many prompts contribute. prompts, clusters: how many went in.
        - in_filler: full view: whether the point lies in the filler, which is the same for every prompt in the mean.
        - note: what a reader must be told. Else None.

    Raises:
        ConfigError: no such layer or head in the traces, or no region is shared by more than half of the prompts.
    """
    header = traces.header
    selection = _Weights(
        layer_index=header.axis_index("layer", layer),
        head_indices=[header.axis_index("head", head) for head in heads],
        view=view,
        definition=definition,
        first_position=int(
            leaves_out_first_token(header) if exclude_first is None else exclude_first
        ),
    )
    curves = []
    for condition in conditions:
        records = [traces.get(problem_id, condition) for problem_id in problem_ids]
        if view == "full":
            records = _sharing_one_region(records)
        chosen = [record.problem_id for record in records]
        weights = selection.of(records)
        if baseline is not None:
            subtracted = selection.of([traces.get(problem_id, baseline) for problem_id in chosen])
            width = min(weights.shape[-1], subtracted.shape[-1])
            weights = weights[..., :width] - subtracted[..., :width]
        clusters = traces.clusters(chosen)
        filler = np.flatnonzero(records[-1].roles == FILLER) if view == "full" else ()
        notes = _notes(traces, condition, baseline, len(chosen), len(problem_ids))
        facts = {
            "condition": condition if baseline is None else contrast_name(condition, baseline),
            "layer": layer,
            "view": view,
            "definition": "completion" if header.queries == "completion" else definition,
            "first_token_excluded": bool(selection.first_position),
            "unit": SHARE,
            "prompts": len(chosen),
            "clusters": clusters.max() + 1,
            "note": "; ".join(notes) or None,
        }
        for head, table in zip(heads, weights, strict=True):
            points = _average_points(table, clusters)
            curves.append(points.assign(**facts, head=head, in_filler=points["x"].isin(filler)))
    return pandas.concat(curves, ignore_index=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Which weights of a trace stand in a curve, and at which x."""

    layer_index: int
    head_indices: list[int]
    view: View
    definition: Definition
    first_position: int

    def of(self, records: Sequence[Trace]) -> NDArray[np.float64]:
        """The weights [head, prompt, x], NaN where a prompt has none."""
        width = max(len(record.tokens) for record in records)
        table = np.full((len(self.head_indices), len(records), width), np.nan)
        for prompt_index, record in enumerate(records):
            means = record.mean_common if self.definition == "common" else record.mean_all
            positions = (
                np.arange(len(record.tokens)) if self.view == "full" else record.original_pos
            )
            is_visible = (
                positions >= self.first_position
            )  # inserted tokens have no aligned position: -1
            columns = positions[is_visible]
            table[:, prompt_index, columns] = means[self.layer_index, self.head_indices][
                :, is_visible
            ]
        return table


def _average_points(table: NDArray[np.float64], clusters: NDArray[np.int64]) -> pandas.DataFrame:
    """Mean, band and number of prompts of each x of a [prompt, x] table at which a prompt has a value."""
    counts = np.isfinite(table).sum(axis=0)
    x = np.flatnonzero(counts)
    low, high = bootstrap_band(table[:, x], clusters)
    points = {
        "x": x,
        "mean": np.nanmean(table[:, x], axis=0),
        "low": low,
        "high": high,
        "count": counts[x],
    }
    return pandas.DataFrame(points)


def _notes(
    traces: AttentionTraces, condition: str, baseline: str | None, averaged: int, requested: int
) -> Iterator[str]:
    """What a reader of a curve must be told."""
    if traces.header.queries == "completion":
        yield _OF_COMPLETIONS
    if averaged < requested:
        yield f"mean over the {averaged} of {requested} prompts whose filler stands at the shaded positions"
    if baseline is not None and has_one_filler(traces, condition, baseline):
        yield "all tokens' sum differs by the filler's mass: softmax guarantees it, whatever is inserted"


def shared_problems(traces: AttentionTraces, conditions: Iterable[str]) -> list[str]:
    """The problems traced under all of these conditions, in the order in which they were added.

    Raises:
        ConfigError: there is none.
    """
    names = list(conditions)
    shared = [
        name
        for name in traces.problem_ids
        if all(traces.has(name, condition) for condition in names)
    ]
    if not shared:
        there = ", ".join(traces.conditions) or "no trace yet"
        raise ConfigError(
            f"{traces.path} has no problem under all of {', '.join(names)}; it has {there}."
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
        raise ConfigError(f"{traces.path} holds only controls.")
    return chosen


def has_one_filler(traces: AttentionTraces, one: str, other: str) -> bool:
    """Whether only one of two conditions has a filler: softmax then guarantees differences between them."""
    return (
        len({one, other} & {entry.condition for entry in traces.entries() if entry.filler_span})
        == 1
    )


def _sharing_one_region(records: Sequence[Trace]) -> list[Trace]:
    """The prompts whose filler's tokens, in one place or before each example, stand where most have them."""
    places = [np.flatnonzero(one.roles == FILLER).tobytes() for one in records]
    ((common, most),) = Counter(places).most_common(1)
    if 2 * most <= len(records):
        raise ConfigError(
            f"the filler of {records[0].condition} stands at different positions: none is shared by more than half of "
            f"the {len(records)} prompts. Use the aligned view."
        )
    return [one for one, place in zip(records, places, strict=True) if place == common]


def bootstrap_band(
    table: NDArray[np.float64],
    clusters: NDArray[np.int64],
    *,
    draws: int = BAND_DRAWS,
    seed: int = DEFAULT_SEED,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile bootstrap band of the columns' means, clusters of rows (prompts) resampled whole.

    Args:
        table: [prompt, x]; NaN where a prompt has no value.
        clusters: [prompt] The number of its cluster, from 0 without gaps.
        draws: How often the clusters are drawn anew.
        seed: Seed of the draws.

    Returns:
        Lower and upper end [x], NaN where fewer than two clusters have a value.
    """
    there = np.isfinite(table)
    size = int(clusters.max()) + 1
    weights = (
        np.random.default_rng(seed)
        .multinomial(size, np.full(size, 1 / size), size=draws)
        .astype(np.float64)
    )
    weights = weights[:, clusters]
    counts = weights @ there
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered")
        means = (weights @ np.where(there, table, 0.0)) / counts
        ends = np.nanquantile(
            means, [(1 - BAND) / 2, (1 + BAND) / 2], axis=0
        )  # some draws have no prompt here
    low, high = ends.reshape(2, -1)  # also without any position, where numpy gives one axis only
    few = [len(np.unique(clusters[column])) < 2 for column in there.T]
    low[few] = high[few] = np.nan
    return low, high
