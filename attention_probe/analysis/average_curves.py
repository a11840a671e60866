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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas

from attention_probe.measure.field_definitions import SHARE
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness.array_types import Floats, Integers
from harness.constants import DEFAULT_SEED, CurveDefinition, CurveView
from harness.errors import ConfigError
from harness.experiment.prompts.built_prompts import FILLER_INDEX

BAND_RESAMPLES = 2000
"""Bootstrap samples of a curve's band."""
BAND_LEVEL = 0.95
"""Level of a curve's band."""

_FIRST_TOKEN_SINKS = ("llama", "gemma")
"""Families whose first token takes most of the attention. The study leaves it out of their curves.
"""


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
            return int(family.startswith(_FIRST_TOKEN_SINKS))
        return int(self.exclude_first)

    def read_weights(self, header: TraceHeader, records: Sequence[Trace]) -> Floats:
        """The weights [prompt, x], NaN where a prompt has no token.

        Raises:
            ConfigError: the layer or the head was not recorded.
        """
        layer_index = header.axis_index("layer", self.layer)
        head_index = header.axis_index("head", self.head)
        width = max(len(record.tokens) for record in records)
        table = np.full((len(records), width), np.nan)
        for weights, record in zip(table, records, strict=True):
            means = record.mean_common if self.definition == "common" else record.mean_all
            positions = record.original_pos
            if self.view == "full":
                positions = np.arange(len(record.tokens))
            # inserted tokens have no aligned position: -1
            is_visible = positions >= self.first_x(header)
            curve = means[layer_index, head_index]
            weights[positions[is_visible]] = curve[is_visible]
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
    header = traces.header
    records = [traces.get(problem_id, condition) for problem_id in problem_ids]
    filler: Integers | tuple[()] = ()
    if settings.view == "full":
        records = _records_with_common_region(records)
        filler = np.flatnonzero(records[0].roles == FILLER_INDEX)
    note = None
    if len(records) < len(problem_ids):
        note = (
            f"mean over the {len(records)} of {len(problem_ids)} prompts whose filler stands at "
            "the shaded positions"
        )
    clusters = traces.clusters([record.problem_id for record in records])
    weights = settings.read_weights(header, records)
    points = average_columns(weights, clusters).rename_axis("x").reset_index()
    points = points[points["count"] > 0]
    return points.assign(
        condition=condition,
        layer=settings.layer + 1,
        view=settings.view,
        definition=settings.definition,
        first_token_excluded=settings.first_x(header) > 0,
        unit=SHARE,
        prompts=len(records),
        clusters=clusters.max() + 1,
        note=note,
        head=settings.head + 1,
        in_filler=points["x"].isin(filler),
    )


def average_columns(table: Floats, clusters: Integers) -> pandas.DataFrame:
    """Mean, ends of the band, and number of prompts with a value of each column: a row for each.

    Args:
        table: See `bootstrap_band`.
        clusters: See `bootstrap_band`.
    """
    columns = pandas.DataFrame(table)
    low, high = bootstrap_band(table, clusters)
    averages = {"mean": columns.mean(), "low": low, "high": high, "count": columns.count()}
    return pandas.DataFrame(averages)


def shared_problems(traces: AttentionTraces, conditions: Iterable[str]) -> list[str]:
    """The problems with traces under all of these conditions, in the order of adding.

    Raises:
        ConfigError: there is none.
    """
    names = list(conditions)
    shared = [
        problem_id
        for problem_id in traces.problem_ids
        if all(traces.has(problem_id, condition) for condition in names)
    ]
    if not shared:
        available = ", ".join(traces.conditions) or "no trace yet"
        raise ConfigError(
            f"{traces.path} has no problem under all of {', '.join(names)}; it has {available}."
        )
    return shared


def chosen_problems(traces: AttentionTraces, conditions: Iterable[str]) -> list[str]:
    """The shared problems without controls, which are matched to them.

    Raises:
        ConfigError: there is none.
    """
    controls = {entry.problem_id for entry in traces.entries() if entry.control}
    chosen = [name for name in shared_problems(traces, conditions) if name not in controls]
    if not chosen:
        raise ConfigError(f"{traces.path} holds only controls.")
    return chosen


def _records_with_common_region(records: Sequence[Trace]) -> list[Trace]:
    """The prompts whose filler tokens stand at the most common positions."""
    # as bytes, which can be counted
    regions = [np.flatnonzero(record.roles == FILLER_INDEX).tobytes() for record in records]
    ((common_region, count),) = Counter(regions).most_common(1)
    if 2 * count <= len(records):
        raise ConfigError(
            f"the filler of {records[0].condition} stands at different positions: none is shared "
            f"by more than half of the {len(records)} prompts. Use the aligned view."
        )
    return [
        record for record, region in zip(records, regions, strict=True) if region == common_region
    ]


def bootstrap_band(
    table: Floats, clusters: Integers, resamples: int = BAND_RESAMPLES
) -> tuple[Floats, Floats]:
    """Percentile bootstrap band of the columns' means, with clusters of rows (prompts) resampled.

    Args:
        table: [prompt, x]; NaN where a prompt has no value.
        clusters: [prompt] The number of its cluster, from 0 without gaps.
        resamples: The number of bootstrap samples.

    Returns:
        Lower and upper end [x], NaN where fewer than two clusters have a value.
    """
    has_value = np.isfinite(table)
    size = int(clusters.max()) + 1
    random = np.random.default_rng(DEFAULT_SEED)
    # How often each cluster is drawn: the mean of a bootstrap sample needs nothing else.
    cluster_weights = random.multinomial(size, np.full(size, 1 / size), size=resamples)
    weights = cluster_weights.astype(np.float64)[:, clusters]
    # [resample, x] the drawn prompts that have a value
    counts = weights @ has_value
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered")
        means = (weights @ np.where(has_value, table, 0.0)) / counts
        # some samples have no prompt at an x, so their mean is NaN
        low, high = np.nanquantile(means, [(1 - BAND_LEVEL) / 2, (1 + BAND_LEVEL) / 2], axis=0)
    is_lone = [len(np.unique(clusters[column])) < 2 for column in has_value.T]
    low[is_lone] = high[is_lone] = np.nan
    return low, high
