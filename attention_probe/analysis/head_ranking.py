"""A ranking of all recorded heads by the difference of a measure between two conditions.

With one condition on each side, heads are ordered by t and have no p-value: a single filler says
nothing about other fillers. The prompts' paired differences are averaged. Prompts of
one problem with several draws of examples, or of its twins, are one unit together.

With several strings on either side the string is the unit: a measure's mean over prompts. Under the
null hypothesis every assignment of strings to sides is equally likely, in all heads at once. So the
|t| of each head is compared with the largest |t| of *all* heads under permutations of the labels: p
is adjusted for the number of heads, and the dependence between heads is kept.

Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993 (single-step max-T); Nichols
and Holmes, 2002.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas

from attention_probe.analysis.average_curves import chosen_problems, has_one_filler
from attention_probe.measure.measure_definitions import GUARANTEED, ONLY_OF_A_FILLER
from attention_probe.traces import AttentionTraces, Floats, Integers
from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError

PERMUTATIONS = 10_000
"""Number of permutations that are drawn; if there are not more, all are used. The error of p is
then 0.2 points near HEADS_ALPHA."""
HEADS_ALPHA = 0.05
"""Heads with a smaller adjusted p are counted as significant."""
UNLIKE_SCATTER = 2.0
"""A larger ratio of the sides' standard deviations is noted: with a ratio of 5, a test of 4 strings
against 4 was wrong in 33 of 100 cases."""
GUARANTEE = (
    "is no finding where it is guaranteed: one of the two has no filler, and softmax and the shift "
    "of positions change it whatever is inserted. Contrast two fillers"
)
"""Part of the note on a contrast with a guaranteed difference."""
TIE = 1e-9
"""Relative tolerance: sums of the same numbers in another order must count as equal."""


def rank_heads(
    traces: AttentionTraces,
    measure: str,
    subtracted: Sequence[str],
    compared: Sequence[str],
) -> pandas.DataFrame:
    """All heads by the difference of a measure, `compared` minus `subtracted`.

    The prompts are those that were traced under all conditions, without controls.

    Args:
        traces: The traces.
        measure: A name of `measure_definitions.MEASURES` that was recorded.
        subtracted: The condition that is subtracted, usually another filler; or several, whose mean
            is subtracted.
        compared: The condition that it is subtracted from, or several. With several on either side
            the string is the unit, else the prompt.

    Returns:
        One row per head, the most different first: rank, layer and head (from 1), units,
        mean_difference, standard_error, t, p_adjusted and guaranteed. `guaranteed` is true if one
        side has no filler and the measure is one of GUARANTEED, in Layer 1 or, for measures that
        need a filler, in every layer. The contrast is no finding then: t and p_adjusted are
        missing, and such heads come last, by the size of the mean difference. p_adjusted is also
        missing if both sides are one condition. `attrs` has a `note`, which gives the number of
        significant heads.

    Raises:
        ConfigError: the measure was not recorded, a side is empty or shares a condition with the
            other, or fewer than two problems have all conditions.
    """
    problem_ids = _choose_problems(traces, subtracted, compared)
    without = _read_measure(traces, measure, subtracted, problem_ids)
    with_it = _read_measure(traces, measure, compared, problem_ids)
    if len(subtracted) > 1 or len(compared) > 1:
        numbers, note = _by_string(without, with_it)
    else:
        numbers, note = _by_prompt(with_it[0] - without[0], traces.clusters(problem_ids))
    header = traces.header
    # the order of the heads in `numbers`: the heads of all layers in a row
    heads = pandas.MultiIndex.from_product([header.layers, range(header.head_count)])
    frame = (heads.to_frame(False, ["layer", "head"]) + 1).join(numbers)
    frame["guaranteed"] = _is_guaranteed(traces, measure, subtracted, compared, frame["layer"])
    if frame["guaranteed"].any():
        frame.loc[frame["guaranteed"], ["t", "p_adjusted"]] = np.nan
        sides = f"{','.join(compared)} against {','.join(subtracted)}"
        note = f"{measure} of {sides} {GUARANTEE}; {note}"
    if frame["p_adjusted"].notna().any():
        significant = (frame["p_adjusted"] < HEADS_ALPHA).sum()
        note += f"; heads with adjusted p < {HEADS_ALPHA:g}: {significant} of {len(frame)}"
    # guaranteed heads come last, because they have no t
    magnitudes = frame[["t", "mean_difference"]].abs()
    order = magnitudes.sort_values(["t", "mean_difference"], ascending=False).index
    frame = frame.loc[order].reset_index(drop=True)
    frame.insert(0, "rank", frame.index + 1)
    frame.attrs["note"] = "; ".join([note, *header.stamps])
    return frame


def _choose_problems(
    traces: AttentionTraces, subtracted: Sequence[str], compared: Sequence[str]
) -> list[str]:
    """The problems over which heads are ranked.

    Raises:
        ConfigError: the sides are no contrast, or fewer than two problems have all conditions.
    """
    if not subtracted or not compared or set(subtracted) & set(compared):
        names = [" and ".join(side or ["none"]) for side in (compared, subtracted)]
        raise ConfigError(
            f"Expected a contrast of different conditions, got {names[0]} against {names[1]}."
        )
    problem_ids = chosen_problems(traces, (*subtracted, *compared))
    if traces.clusters(problem_ids).max() < 1:
        raise ConfigError(
            "1 problem cannot rank heads: the problem is the unit. Probe at least two."
        )
    return problem_ids


def _is_guaranteed(
    traces: AttentionTraces,
    measure: str,
    subtracted: Sequence[str],
    compared: Sequence[str],
    layers: pandas.Series[int],
) -> pandas.Series[bool]:
    """Whether softmax or shifted positions guarantee the difference, for heads of these layers."""
    is_guaranteed = measure in GUARANTEED and any(
        has_one_filler(traces, *pair) for pair in itertools.product(compared, subtracted)
    )
    # in deeper layers, other measures may also follow from what changed in the layers before
    return is_guaranteed & ((layers == 1) | (measure in ONLY_OF_A_FILLER))


def _read_measure(
    traces: AttentionTraces, measure: str, conditions: Iterable[str], problem_ids: Sequence[str]
) -> Floats:
    """The measure as [condition, prompt, head], the heads of all layers in a row."""
    values = [traces.measures([measure], name, problem_ids)[0] for name in conditions]
    return np.stack(values).reshape(len(values), len(problem_ids), -1)


def _by_prompt(differences: Floats, clusters: Integers) -> tuple[pandas.DataFrame, str]:
    """One condition against one, paired by prompt: a row per head, without a p-value, and a note.

    The prompts of a cluster are one unit: their sum over the mean size of a cluster. So the mean
    over clusters is the mean over prompts, as in `harness.analysis.paired_tests.average_clusters`.
    """
    grouped = pandas.DataFrame(differences).groupby(clusters)
    table = grouped.sum(min_count=1)
    table *= table.count() / grouped.count().sum()
    difference, error = table.mean(), table.sem()
    numbers = {
        "units": table.count(),
        "mean_difference": difference,
        "standard_error": error,
        "t": _ratio(difference.to_numpy(), error.to_numpy(), table.abs().max().to_numpy()),
        "p_adjusted": np.nan,
    }
    units = f"{len(differences)} prompts"
    if len(table) < len(differences):
        units += f" of {len(table)} problems"
    note = (
        f"{units}, ordered by t, no p: one string says nothing about others like it, name several"
    )
    return pandas.DataFrame(numbers), note


def _by_string(without: Floats, with_it: Floats) -> tuple[pandas.DataFrame, str]:
    """Several strings against several, each a mean over prompts: a row per head, and a note."""
    prompts = without.shape[1]
    without, with_it = (np.nanmean(side, axis=1) for side in (without, with_it))
    test = permute_labels(without, with_it)
    numbers = {
        "units": len(with_it) + len(without),
        "mean_difference": with_it.mean(axis=0) - without.mean(axis=0),
        "standard_error": _pooled_error(without, with_it),
        "t": test.t,
        "p_adjusted": test.p,
    }
    count = f"all {test.permutations}" if test.is_exact else str(test.permutations)
    note = (
        f"{len(with_it)} strings against {len(without)}, each the mean of {prompts} prompts, "
        f"{count} permutations of their labels; p adjusted for all heads (max-T)"
    )
    # with sides of equal size, the mirrored labels have the same |t|
    smallest_count = 2 if len(without) == len(with_it) else 1
    smallest_p = smallest_count / test.permutations
    if test.is_exact and smallest_p > HEADS_ALPHA:
        note += f"; no p below {smallest_p:.2g} is possible, name more strings"
    if min(len(without), len(with_it)) > 1:
        scatter = [np.nanmedian(side.std(axis=0, ddof=1)) for side in (without, with_it)]
        if max(scatter) > UNLIKE_SCATTER * min(scatter):
            note += (
                "; the two sides have very different spreads, and p is then too small in up to "
                "a third of such contrasts"
            )
    return pandas.DataFrame(numbers), note


class LabelTest(NamedTuple):
    """The result of permuting labels: t of each head, and its p adjusted for all heads [head]."""

    t: Floats
    p: Floats
    permutations: int
    is_exact: bool


def permute_labels(without: Floats, with_it: Floats, *, draws: int = PERMUTATIONS) -> LabelTest:
    """Two-sample t of each head, and its p adjusted for all heads.

    Args:
        without: [string, head] The measure on one side.
        with_it: [string, head] The measure on the other side.
        draws: The number of permutations to draw. If there are not more, all are used, and p is
            exact.
    """
    values, size = np.concatenate([with_it, without]), len(with_it)
    count = math.comb(len(values), size)
    is_exact = count <= draws
    if is_exact:
        splits: Iterable[Sequence[int]] = itertools.combinations(range(len(values)), size)
    else:
        count, random = draws, np.random.default_rng(DEFAULT_SEED)
        splits = (random.permutation(len(values))[:size].tolist() for _ in range(draws))
    t = _two_sample_t(values, range(size))
    at_least = sum(
        np.abs(_two_sample_t(values, split)).max() >= np.abs(t) * (1 - TIE) for split in splits
    )
    # The set of all permutations contains the identity; for drawn permutations it is added.
    p = at_least / count if is_exact else (1 + at_least) / (1 + count)
    return LabelTest(t, np.asarray(p), count, is_exact)


def _two_sample_t(values: Floats, chosen: Iterable[int]) -> Floats:
    """[head] t of the chosen strings against the rest."""
    is_chosen = np.zeros(len(values), dtype=bool)
    is_chosen[list(chosen)] = True
    side, rest = values[is_chosen], values[~is_chosen]
    difference = side.mean(axis=0) - rest.mean(axis=0)
    return _ratio(difference, _pooled_error(rest, side), np.abs(values).max(axis=0))


def _ratio(difference: Floats, error: Floats, size: Floats) -> Floats:
    """[head] t; infinite without scatter, 0 without difference, both relative to `size`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(error <= TIE * size, np.sign(difference) * np.inf, difference / error)
    return np.where(np.abs(difference) > TIE * size, t, 0.0)


def _pooled_error(without: Floats, with_it: Floats) -> Floats:
    """[head] Standard error of the difference of two means, with equal variances."""
    squares = sum(np.square(side - side.mean(axis=0)).sum(axis=0) for side in (without, with_it))
    freedom = max(len(without) + len(with_it) - 2, 1)
    return np.asarray(np.sqrt(squares / freedom * (1 / len(without) + 1 / len(with_it))))
