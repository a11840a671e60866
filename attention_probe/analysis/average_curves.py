"""Curves: the average attention weight of every token, as a mean over prompts.

There are two views. *Aligned*: inserted tokens are left out, and an original token has the same x
in every condition. *Full*: the prompt as it was, with the filler's region. Values are shares of a
query's attention. They are never renormalised, not even where the first token is left out. Bands
are pointwise 95 % percentile bootstrap bands over prompts; prompts of one cluster are resampled
together. Bands show how well the mean over such prompts is known, not how much prompts scatter.

Source: Bogdan et al., "Thought Anchors", 2025 (the average attention weight); Shi et al., arXiv
2510.01032, section 3.
"""

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas

from attention_probe.measure.field_definitions import SHARE_UNIT
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness.array_types import Floats, Integers
from harness.constants import DEFAULT_SEED, CurveDefinition, CurveView
from harness.errors import ConfigError
from harness.experiment.prompts.built_prompts import FILLER_INDEX

BAND_RESAMPLE_COUNT = 2000
"""Bootstrap samples of a curve's band."""
BAND_LEVEL = 0.95
"""Level of a curve's band."""

_SINK_FAMILIES = ("llama", "gemma")
"""Families of models whose first token takes most of the attention: an attention sink. The study
leaves it out of their curves."""


@dataclass(frozen=True, kw_only=True)
class CurveSettings:
    """Which weights are in a curve, and at which x.

    Attributes:
        layer: Its index, from 0.
        head: Its index, from 0.
        view: Over original tokens (`aligned`), or over the prompt as it was (`full`).
        definition: Which queries the average is over.
        exclude_first: Leave the first token out, which in some models takes most of the attention.
            None: leave it out for the families of models for which the study does.
    """

    layer: int
    head: int
    view: CurveView = "aligned"
    definition: CurveDefinition = "common"
    exclude_first: bool | None = False

    def first_x(self, header: TraceHeader) -> int:
        """The first position of the curve: 1 if the first token is left out, else 0."""
        if self.exclude_first is None:
            family = str(header.options.get("model_type", ""))
            return int(family.startswith(_SINK_FAMILIES))
        return int(self.exclude_first)

    def read_weights(self, header: TraceHeader, traces: Sequence[Trace]) -> Floats:
        """The weights [prompt, x] of this layer and head, NaN where a prompt has no token.

        In the aligned view x is the position of the original token, in the full view that in the
        prompt.

        Raises:
            ConfigError: the layer or the head was not recorded.
        """
        layer_index = header.axis_index("layer", self.layer)
        head_index = header.axis_index("head", self.head)
        width = max(len(trace.tokens) for trace in traces)
        table = np.full((len(traces), width), np.nan)
        for row, trace in zip(table, traces, strict=True):
            mean_weights = trace.mean_common if self.definition == "common" else trace.mean_all
            positions = np.arange(len(trace.tokens)) if self.view == "full" else trace.original_pos
            # no x is negative, so inserted tokens, whose aligned position is -1, are left out
            is_in_curve = positions >= self.first_x(header)
            curve = mean_weights[layer_index, head_index]
            row[positions[is_in_curve]] = curve[is_in_curve]
        return table


def average_curve(
    traces: AttentionTraces,
    settings: CurveSettings,
    *,
    condition: str,
    problem_ids: Sequence[str],
) -> pandas.DataFrame:
    """The curve of a head under a condition, one row per point.

    In the full view the mean is over the prompts whose filler stands at the same positions. They
    must be more than half, and the note gives their number.

    Args:
        traces: The traces.
        settings: Layer, head, view and definition.
        condition: The condition whose prompts are averaged.
        problem_ids: The problems whose prompts are averaged. To compare conditions, pass
            `chosen_problems`.

    Returns:
        Of each point:

        - condition, layer and head (from 1), view, definition, unit; first_token_excluded:
          whether x = 0 was left out. Nothing was renormalised.
        - x: the original token's position, or the position in the prompt as it was.
        - mean, low, high: the average weight and the ends of its band, NaN where fewer than two
          prompts contribute.
        - count: the number of prompts that contribute. prompts, clusters: the numbers averaged.
        - in_filler: in the full view, whether the point lies in the filler.
        - note: what a reader must know, or None.

    Raises:
        ConfigError: the traces lack a layer or head, or fewer than half of the prompts share a
            region of the filler.
    """
    condition_traces = [traces.get(problem_id, condition) for problem_id in problem_ids]
    # empty in the aligned view, in which no point lies in the filler
    filler_positions: Integers | tuple[()] = ()
    if settings.view == "full":
        condition_traces = _select_common_region(condition_traces)
        filler_positions = np.flatnonzero(condition_traces[0].roles == FILLER_INDEX)
    note = None
    if len(condition_traces) < len(problem_ids):
        note = (
            f"mean over the {len(condition_traces)} of {len(problem_ids)} prompts whose filler "
            "stands at the shaded positions"
        )
    clusters = traces.clusters([trace.problem_id for trace in condition_traces])
    weights = settings.read_weights(traces.header, condition_traces)
    points = average_columns(weights, clusters).rename_axis("x").reset_index()
    points = points[points["count"] > 0]
    return points.assign(
        condition=condition,
        layer=settings.layer + 1,
        view=settings.view,
        definition=settings.definition,
        first_token_excluded=settings.first_x(traces.header) > 0,
        unit=SHARE_UNIT,
        prompts=len(condition_traces),
        clusters=clusters.max() + 1,
        note=note,
        head=settings.head + 1,
        in_filler=points["x"].isin(filler_positions),
    )


def average_columns(table: Floats, clusters: Integers) -> pandas.DataFrame:
    """Mean, ends of the band, and number of prompts with a value of each column: a row for each.

    Args:
        table: See `bootstrap_band`.
        clusters: See `bootstrap_band`.
    """
    frame = pandas.DataFrame(table)
    low, high = bootstrap_band(table, clusters)
    return pandas.DataFrame(
        {"mean": frame.mean(), "low": low, "high": high, "count": frame.count()}
    )


def shared_problems(traces: AttentionTraces, conditions: Collection[str]) -> list[str]:
    """The problems with traces under all of these conditions, in the order of adding.

    Raises:
        ConfigError: there is none.
    """
    shared_ids = [
        problem_id
        for problem_id in traces.problem_ids
        if all(traces.has(problem_id, condition) for condition in conditions)
    ]
    if not shared_ids:
        raise ConfigError(
            f"{traces.path} has no problem under all of {', '.join(conditions)}; it has "
            f"{', '.join(traces.conditions) or 'no trace yet'}."
        )
    return shared_ids


def chosen_problems(traces: AttentionTraces, conditions: Collection[str]) -> list[str]:
    """The shared problems without controls, which are matched to them.

    Raises:
        ConfigError: there is none.
    """
    control_ids = {entry.problem_id for entry in traces.entries() if entry.control}
    chosen_ids = [
        problem_id
        for problem_id in shared_problems(traces, conditions)
        if problem_id not in control_ids
    ]
    if not chosen_ids:
        raise ConfigError(f"{traces.path} holds only controls.")
    return chosen_ids


def _select_common_region(traces: Sequence[Trace]) -> list[Trace]:
    """The prompts whose filler tokens stand at the most common positions.

    Raises:
        ConfigError: these are not more than half of the prompts.
    """
    # as bytes, because a Counter counts values with a hash, and arrays have none
    regions = [np.flatnonzero(trace.roles == FILLER_INDEX).tobytes() for trace in traces]
    ((common_region, count),) = Counter(regions).most_common(1)
    if 2 * count <= len(traces):
        raise ConfigError(
            f"the filler of {traces[0].condition} stands at different positions: none is shared "
            f"by more than half of the {len(traces)} prompts. Use the aligned view."
        )
    return [trace for trace, region in zip(traces, regions, strict=True) if region == common_region]


def bootstrap_band(
    table: Floats, clusters: Integers, resample_count: int = BAND_RESAMPLE_COUNT
) -> tuple[Floats, Floats]:
    """Percentile bootstrap band of the columns' means, with clusters of rows (prompts) resampled.

    Args:
        table: [prompt, x]; NaN where a prompt has no value.
        clusters: [prompt] The number of its cluster, from 0 without gaps.
        resample_count: The number of bootstrap samples.

    Returns:
        Lower and upper end [x], NaN where fewer than two clusters have a value.
    """
    has_value = np.isfinite(table)
    cluster_count = int(clusters.max()) + 1
    generator = np.random.default_rng(DEFAULT_SEED)
    # The mean of a bootstrap sample depends only on how often each cluster is drawn.
    cluster_draws = generator.multinomial(
        cluster_count, np.full(cluster_count, 1 / cluster_count), size=resample_count
    )
    prompt_draws = cluster_draws.astype(np.float64)[:, clusters]
    # [resample, x] the number of drawn prompts that have a value
    prompt_counts = prompt_draws @ has_value
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered")
        means = (prompt_draws @ np.where(has_value, table, 0.0)) / prompt_counts
        # a bootstrap sample without a prompt at an x has the mean NaN there, and is left out
        low, high = np.nanquantile(means, [(1 - BAND_LEVEL) / 2, (1 + BAND_LEVEL) / 2], axis=0)
    has_few_clusters = [len(np.unique(clusters[is_present])) < 2 for is_present in has_value.T]
    low[has_few_clusters] = high[has_few_clusters] = np.nan
    return low, high
