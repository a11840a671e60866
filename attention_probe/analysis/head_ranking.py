"""A ranking of all recorded heads by the difference of a measure between two conditions.

The prompts' paired differences are averaged. Prompts of one problem with several draws of examples,
or of its twins, are one unit together. Heads are ordered by t and have no p-value: a single filler
says nothing about other fillers.
"""

from __future__ import annotations

import numpy as np
import pandas

from attention_probe.analysis.average_curves import chosen_problems, has_one_filler
from attention_probe.measure.measure_definitions import ONLY_OF_A_FILLER
from attention_probe.traces import AttentionTraces, Floats, Integers
from harness.errors import ConfigError

GUARANTEE = (
    "is no finding where it is guaranteed: one of the two has no filler, and softmax and the shift "
    "of positions change it whatever is inserted. Contrast two fillers"
)
"""Part of the note on a contrast with a guaranteed difference."""
ONE_FILLER = "one filler says nothing about others like it"
"""Why no head has a p-value."""
TIE = 1e-9
"""Relative tolerance: sums of the same numbers in another order must count as equal."""


def rank_heads(
    traces: AttentionTraces, measure: str, subtracted: str, compared: str
) -> pandas.DataFrame:
    """All heads by the difference of a measure, `compared` minus `subtracted`.

    The prompts are those that were traced under both conditions, without controls.

    Args:
        traces: The traces.
        measure: A name of `measure_definitions.MEASURES` that was recorded.
        subtracted: The condition that is subtracted, usually another filler.
        compared: The condition that it is subtracted from.

    Returns:
        One row per head, the most different first: rank, layer and head (from 1), units,
        mean_difference, standard_error, t and guaranteed. `guaranteed` is true if one of the two
        has no filler, in Layer 1 or, for measures that need a filler, in every layer. The contrast
        is no finding then: t is missing, and such heads come last, by the size of the mean
        difference. `attrs` has a `note`.

    Raises:
        ConfigError: the measure was not recorded, the conditions are the same, or fewer than two
            problems have both.
    """
    differences, clusters = _read_differences(traces, measure, subtracted, compared)
    numbers = _average_differences(differences, clusters)
    header = traces.header
    # [layer x head], the order of the rows of `numbers`
    heads = pandas.MultiIndex.from_product([header.layers, range(header.head_count)])
    frame = (heads.to_frame(False, ["layer", "head"]) + 1).join(numbers)
    # in deeper layers, other measures may also follow from what changed in the layers before
    is_affected = (frame["layer"] == 1) | (measure in ONLY_OF_A_FILLER)
    frame["guaranteed"] = has_one_filler(traces, compared, subtracted) & is_affected
    note = f"{_count_units(clusters)}, ordered by t, no p: {ONE_FILLER}"
    if frame["guaranteed"].any():
        frame.loc[frame["guaranteed"], "t"] = np.nan
        note = f"{measure} of {compared} against {subtracted} {GUARANTEE}; {note}"
    # guaranteed heads come last, because they have no t
    magnitudes = frame[["t", "mean_difference"]].abs()
    order = magnitudes.sort_values(["t", "mean_difference"], ascending=False).index
    frame = frame.loc[order].reset_index(drop=True)
    frame.insert(0, "rank", frame.index + 1)
    frame.attrs["note"] = "; ".join([note, *header.stamps])
    return frame


def _read_differences(
    traces: AttentionTraces, measure: str, subtracted: str, compared: str
) -> tuple[Floats, Integers]:
    """The paired differences [prompt, head], the heads of all layers in a row, and the clusters.

    Raises:
        ConfigError: the conditions are no contrast, or fewer than two problems have both.
    """
    if subtracted == compared:
        raise ConfigError(
            f"Expected a contrast of different conditions, got {compared} against {subtracted}."
        )
    problem_ids = chosen_problems(traces, (subtracted, compared))
    clusters = traces.clusters(problem_ids)
    if clusters.max() < 1:
        raise ConfigError(
            "1 problem cannot rank heads: the problem is the unit. Probe at least two."
        )
    before = traces.measure(measure, subtracted, problem_ids)
    after = traces.measure(measure, compared, problem_ids)
    return (after - before).reshape(len(problem_ids), -1), clusters


def _count_units(clusters: Integers) -> str:
    """The number of prompts, and of problems if they are fewer."""
    prompts, problems = len(clusters), clusters.max() + 1
    if problems < prompts:
        return f"{prompts} prompts of {problems} problems"
    return f"{prompts} prompts"


def _average_differences(differences: Floats, clusters: Integers) -> pandas.DataFrame:
    """The mean of paired differences [prompt, head], and its t: a row per head.

    The prompts of a cluster are one unit: their sum over the mean size of a cluster. So the mean
    over clusters is the mean over prompts, as in `harness.analysis.paired_tests.average_clusters`.
    """
    grouped = pandas.DataFrame(differences).groupby(clusters)
    table = grouped.sum(min_count=1)
    table *= table.count() / grouped.count().sum()
    difference, error, size = table.mean(), table.sem(), table.abs().max()
    # A division by an error of rounding would give any t. Without scatter t is infinite, and
    # without a difference it is 0.
    t = (difference / error).mask(error <= TIE * size, np.sign(difference) * np.inf)
    return pandas.DataFrame(
        {
            "units": table.count(),
            "mean_difference": difference,
            "standard_error": error,
            "t": t.where(difference.abs() > TIE * size, 0.0),
        }
    )
