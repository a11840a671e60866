"""Which heads differ between two conditions: every head of every recorded layer, none chosen.

One condition against one is ordered by t, without a p-value: one string says nothing about other fillers, whatever
differs between the two. The prompts' paired differences are averaged. Prompts of one problem with several draws of
examples, or of its twins, are one unit together.

With several strings on either side the string is the unit: a measure's mean over prompts. If it made no difference
which string is of which side, every way to share them out would be as likely, in all heads at once. So each head's |t|
is held against the largest |t| of *all* heads under the permutations of labels: p is adjusted for having looked at
every head, with the heads' dependence kept.

Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993 (single-step max-T); Nichols and Holmes, 2002.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from attention_probe.analysis.average_curves import chosen_problems, has_one_filler
from attention_probe.measure.measure_definitions import GUARANTEED, ONLY_OF_A_FILLER
from attention_probe.traces import AttentionTraces
from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError

Floats = NDArray[np.float64]
PERMUTATIONS = 10_000
"""Permutations of labels that are drawn; where there are no more than these, all are taken. p is then right to 0.2
points near HEADS_ALPHA."""
HEADS_ALPHA = 0.05
"""Heads with a smaller adjusted p are counted."""
UNLIKE_SCATTER = 2.0
"""Strings of one side scatter unlike those of the other from this ratio of standard deviations on: with 5, a test of 4
against 4 erred in 33 of 100 cases."""
TIE = 1e-9
"""Relative: sums of the same numbers in another order must count as equal."""


def rank_heads(
    traces: AttentionTraces,
    measure: str,
    baseline: str | Sequence[str],
    condition: str | Sequence[str],
) -> pandas.DataFrame:
    """All heads by how far a measure differs between two conditions, `condition` minus `baseline`.

    Over the prompts that were traced under all conditions, without controls.

    Args:
        traces: Where from.
        measure: A name of `measure_definitions.MEASURES` that was recorded.
        baseline: The condition that is subtracted, usually another filler; or several, whose mean is.
        condition: The condition that it is subtracted from, or several. With several on either side the string is the
            unit, else the prompt.

    Returns:
        One row per head, the most different first: rank, layer and head (from 1), units, the mean difference, its
        standard error, t, p_adjusted, and `guaranteed`. The last is true if one of the two sides has no filler and the
        measure is one of GUARANTEED, in Layer 1 or, of what only a filler has, in every layer. The contrast is no
        finding then: t and p_adjusted are missing, and heads come last, by the size of the mean difference.
        p_adjusted is also missing where both sides are one condition. `attrs` has how many heads have a small p
        (`significant`), and a note for readers.

    Raises:
        ConfigError: the measure was not recorded, a side has no condition or one of the other's, or fewer than two
            prompts have all conditions.
    """
    old, new = ((side,) if isinstance(side, str) else tuple(side) for side in (baseline, condition))
    if not (old and new) or set(old) & set(new):
        names = [" and ".join(side) or "none" for side in (new, old)]
        raise ConfigError(
            f"Expected a contrast of different conditions, got {names[0]} against {names[1]}."
        )
    problem_ids = chosen_problems(traces, (*old, *new))
    clusters = traces.clusters(problem_ids)
    if clusters.max() < 1:
        raise ConfigError(
            "1 problem cannot rank heads: the problem is the unit. Probe at least two."
        )
    # [string, prompt, head]
    without, with_it = (
        np.stack(
            [
                traces.measures([measure], name, problem_ids).reshape(len(problem_ids), -1)
                for name in side
            ]
        )
        for side in (old, new)
    )
    if max(len(old), len(new)) > 1:
        numbers, note = _by_string(without, with_it)
    else:
        numbers, note = _by_prompt(with_it[0] - without[0], clusters)
    header = traces.header
    heads = pandas.MultiIndex.from_product([header.layers, range(header.head_count)])
    frame = (heads.to_frame(False, ["layer", "head"]) + 1).join(numbers)  # as people count
    # deeper layers may answer to what changed below them
    is_guaranteed = measure in GUARANTEED and any(
        has_one_filler(traces, *pair) for pair in itertools.product(new, old)
    )
    frame["guaranteed"] = is_guaranteed & ((frame["layer"] == 1) | (measure in ONLY_OF_A_FILLER))
    if frame["guaranteed"].any():
        frame.loc[frame["guaranteed"], ["t", "p_adjusted"]] = np.nan
        note = (
            f"{measure} of {','.join(new)} against {','.join(old)} is no finding where it is guaranteed: one of the "
            "two has no filler, and softmax and the shift of positions change it whatever is inserted. Contrast two "
            f"fillers; {note}"
        )
    order = (
        ["mean_difference"] if frame["guaranteed"].all() else ["guaranteed", "t", "mean_difference"]
    )
    frame = frame.sort_values(
        order, key=_by_size, ascending=False, kind="stable", ignore_index=True
    )
    frame.insert(0, "rank", range(1, len(frame) + 1))
    significant = int((frame["p_adjusted"] < HEADS_ALPHA).sum())
    frame.attrs = {"significant": significant, "note": "; ".join([note, *header.stamps])}
    return frame


def _by_size(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """The size of a number; what is guaranteed comes last."""
    return ~column if column.name == "guaranteed" else column.abs()


def _by_prompt(differences: Floats, clusters: NDArray[np.int64]) -> tuple[pandas.DataFrame, str]:
    """One condition against one, paired by prompt: a row for each head, without a p-value, and a note.

    The prompts of a cluster are one unit: their sum over the mean size of a cluster. So the mean over clusters is that
    over prompts, as in `harness.analysis.paired_tests.average_clusters`.
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
    units = f"{len(differences)} prompts" + (
        f" of {len(table)} problems" if len(table) < len(differences) else ""
    )
    note = (
        f"{units}, ordered by t, no p: one string says nothing about others like it, name several"
    )
    return pandas.DataFrame(numbers), note


def _by_string(without: Floats, with_it: Floats) -> tuple[pandas.DataFrame, str]:
    """Several strings against several, each the mean of the same prompts: a row for each head, and a note."""
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
    note = (
        f"{len(with_it)} strings against {len(without)}, each the mean of {prompts} prompts, "
        f"{'all ' if test.is_exact else ''}{test.permutations} permutations of their labels; p adjusted for all heads "
        "(max-T)"
    )
    smallest_p = (
        1 + (len(without) == len(with_it))
    ) / test.permutations  # the mirrored labels have the same |t|
    if test.is_exact and smallest_p > HEADS_ALPHA:
        note += f"; no p below {smallest_p:.2g} is possible, name more strings"
    if min(len(without), len(with_it)) > 1:
        scatter = sorted(
            float(np.nanmedian(side.std(axis=0, ddof=1))) for side in (without, with_it)
        )
        if scatter[1] > UNLIKE_SCATTER * scatter[0]:
            note += "; the sides scatter unlike, and p is then too small in up to a third of such contrasts"
    return pandas.DataFrame(numbers), note


class LabelTest(NamedTuple):
    """What the permutations of labels say of each head [head]: its t, and its p adjusted for all heads."""

    t: Floats
    p: Floats
    permutations: int
    is_exact: bool


def permute_labels(without: Floats, with_it: Floats, *, draws: int = PERMUTATIONS) -> LabelTest:
    """Two-sample t of each head, and its p adjusted for all heads.

    Args:
        without: [string, head] Of one side.
        with_it: [string, head] Of the other.
        draws: How many permutations are drawn. If there are no more than that, all are taken, and p is exact.
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
    # among all permutations is the one that changes nothing; among drawn ones it is counted once more
    p = at_least / count if is_exact else (1 + at_least) / (1 + count)
    return LabelTest(t, np.asarray(p), count, is_exact)


def _two_sample_t(values: Floats, chosen: Iterable[int]) -> Floats:
    """[head] t of the chosen strings against the rest."""
    mask = np.zeros(len(values), dtype=bool)
    mask[list(chosen)] = True
    one, other = values[mask], values[~mask]
    difference, error = one.mean(axis=0) - other.mean(axis=0), _pooled_error(other, one)
    return _ratio(difference, error, np.abs(values).max(axis=0))


def _ratio(difference: Floats, error: Floats, size: Floats) -> Floats:
    """[head] t; infinite where nothing scatters, 0 where there is no difference, both relative to the values' size."""
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(error <= TIE * size, np.sign(difference) * np.inf, difference / error)
    return np.where(np.abs(difference) > TIE * size, t, 0.0)


def _pooled_error(one: Floats, other: Floats) -> Floats:
    """[head] Standard error of the difference of two means, the scatter taken for the same on both sides."""
    squares = sum(np.square(side - side.mean(axis=0)).sum(axis=0) for side in (one, other))
    freedom = max(len(one) + len(other) - 2, 1)
    return np.asarray(np.sqrt(squares / freedom * (1 / len(one) + 1 / len(other))))
