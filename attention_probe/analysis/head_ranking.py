"""Which heads differ between two conditions: every head of every recorded layer, none chosen.

The prompt is the unit: a measure's paired difference between two conditions, averaged over prompts. Prompts of one
problem with several draws of examples, or of its twins, are one unit together. If the conditions were exchangeable,
each prompt's difference would be as likely with the other sign, in all heads at once. So where every prompt has a
filler of its own the signs are flipped prompt by prompt, and each head's |t| is held against the largest |t| of *all*
heads under the flips: p is adjusted for having looked at every head, with the heads' dependence kept.

One string against one other says nothing about fillers: whatever differs between the two differs. Heads are then only
ordered, by t. With several strings on either side the string is the unit: a measure's mean over prompts, and the
strings' labels are permuted.

Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993 (single-step max-T); Nichols and Holmes, 2002.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from attention_probe.analysis.curves import chosen_problems, has_one_filler
from attention_probe.measure.definitions import GUARANTEED, ONLY_OF_A_FILLER
from attention_probe.prompts.token_roles import FILLER
from attention_probe.traces import AttentionTraces
from harness.constants import DEFAULT_SEED, FLIPS_AT_ONCE, HEADS_ALPHA, RANKING_DRAWS, TIE, UNLIKE_SCATTER
from harness.errors import ConfigError

Floats = NDArray[np.float64]


def rank_heads(
    traces: AttentionTraces,
    measure: str,
    baseline: str | Sequence[str],
    condition: str | Sequence[str],
    *,
    draws: int = RANKING_DRAWS,
) -> pandas.DataFrame:
    """All heads by how far a measure differs between two conditions, `condition` minus `baseline`.

    Over the prompts that were traced under all conditions, without controls.

    Args:
        traces: Where from.
        measure: A name of `definitions.MEASURES` that was recorded.
        baseline: The condition that is subtracted, usually another filler; or several, whose mean is.
        condition: The condition that it is subtracted from, or several. With several on either side the string is the
            unit, else the prompt.
        draws: How many sign flips or permutations are drawn. If there are no more than that, all are taken.

    Returns:
        One row per head, the most different first: rank, layer and head (from 1), n (units), the mean difference, its
        standard error, t, p_adjusted, and `guaranteed`. The last is true if one of the two sides has no filler and the
        measure is one of GUARANTEED, in Layer 1 or, of what only a filler has, in every layer. The contrast is no
        finding then: t and p_adjusted are missing, and heads come last, by the size of the mean difference.
        p_adjusted is also missing where a side is one string, the same in all prompts. `attrs` has how many heads have
        a small p (`found`), and a note for readers.

    Raises:
        ConfigError: the measure was not recorded, a side has no condition or one of the other's, or fewer than two
            prompts have all conditions.
    """
    old, new = ((one,) if isinstance(one, str) else tuple(one) for one in (baseline, condition))
    if not (old and new) or set(old) & set(new):
        named = [" and ".join(side) or "none" for side in (new, old)]
        raise ConfigError(f"Expected a contrast of different conditions, got {named[0]} against {named[1]}.")
    chosen = chosen_problems(traces, (*old, *new))
    clusters = traces.clusters(chosen)
    if clusters.max() < 1:
        raise ConfigError("1 problem cannot rank heads: the problem is the unit. Probe at least two.")
    guaranteed = measure in GUARANTEED and any(has_one_filler(traces, one, other) for one in new for other in old)
    # [string, prompt, head]
    without, with_it = (
        np.stack([traces.measures([measure], name, chosen).reshape(len(chosen), -1) for name in names])
        for names in (old, new)
    )
    if max(len(old), len(new)) > 1:
        found, note = _by_string(without, with_it, draws)
    else:
        one_string = any(_is_one_string(traces, name, chosen) for name in (*old, *new))
        found, note = _by_prompt(with_it[0] - without[0], clusters, 0 if one_string else draws)
    header = traces.header
    places = pandas.MultiIndex.from_product([header.layers, range(header.head_count)])
    frame = (places.to_frame(False, ["layer", "head"]) + 1).join(found)  # as people count
    # deeper layers may answer to what changed below them
    frame["guaranteed"] = guaranteed & ((frame["layer"] == 1) | (measure in ONLY_OF_A_FILLER))
    if frame["guaranteed"].any():
        frame.loc[frame["guaranteed"], ["t", "p_adjusted"]] = np.nan
        note = (
            f"{measure} of {','.join(new)} against {','.join(old)} is no finding where it is guaranteed: one of the "
            "two has no filler, and softmax and the shift of positions change it whatever is inserted. Contrast two "
            f"fillers; {note}"
        )
    order = ["mean_difference"] if frame["guaranteed"].all() else ["guaranteed", "t", "mean_difference"]
    frame = frame.sort_values(order, key=_by_size, ascending=False, kind="stable", ignore_index=True)
    frame.insert(0, "rank", range(1, len(frame) + 1))
    frame.attrs = {"found": int((frame["p_adjusted"] < HEADS_ALPHA).sum()), "note": "; ".join([note, *header.stamps])}
    return frame


def _by_size(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """The size of a number; what is guaranteed comes last."""
    return ~column if column.name == "guaranteed" else column.abs()


def _is_one_string(traces: AttentionTraces, condition: str, chosen: Sequence[str]) -> bool:
    """Whether a condition has the same filler in most prompts: at its ends a tokenizer may merge other tokens."""
    records = (traces.get(problem_id, condition) for problem_id in chosen)
    fillers = Counter(one.token_ids[one.roles == FILLER].tobytes() for one in records if one.filler_span)
    return any(2 * count > len(chosen) for count in fillers.values())


class Adjusted(NamedTuple):
    """What all permutations say of each head [head]: its t, its p adjusted for all heads; how many, and whether all."""

    t: Floats
    p: Floats
    permutations: int
    exact: bool

    def told(self, what: str, least: float, more: str) -> str:
        """How p was come by; `least` is the smallest share of permutations that can reach the observed t."""
        said = f"{'all ' if self.exact else ''}{self.permutations} {what}; p adjusted for all heads (max-T)"
        out_of_reach = self.exact and least > HEADS_ALPHA
        return f"{said}; no p below {least:.2g} is possible, {more}" if out_of_reach else said


def _by_prompt(differences: Floats, clusters: NDArray[np.int64], draws: int) -> tuple[pandas.DataFrame, str]:
    """One condition against one, paired by prompt: a row for each head, and a note. With no draws, no p.

    The prompts of a cluster are one unit: their sum over the mean size of a cluster. So the mean over clusters is that
    over prompts, as in `harness.analysis.tests.by_cluster`.
    """
    prompts, grouped = len(differences), pandas.DataFrame(differences).groupby(clusters)
    table = grouped.sum(min_count=1)
    table *= table.count() / grouped.count().sum()
    differences = table.to_numpy()
    numbers = pandas.DataFrame({"n": table.count(), "mean_difference": table.mean(), "standard_error": table.sem()})
    numbers = numbers.assign(t=t_values(differences), p_adjusted=np.nan)
    how = "ordered by t, no p: one string says nothing about others like it, name several"
    if draws:
        found = flip_signs(differences, draws=draws)
        numbers["p_adjusted"] = found.p
        how = found.told("sign flips", 1 / found.permutations, "probe at least 6")
    units = f"{prompts} prompts" + (f" of {len(table)} problems" if len(table) < prompts else "")
    return numbers, f"{units}, {how}"


def _by_string(without: Floats, with_it: Floats, draws: int) -> tuple[pandas.DataFrame, str]:
    """Several strings against several, each the mean of the same prompts."""
    prompts = without.shape[1]
    without, with_it = (np.nanmean(side, axis=1) for side in (without, with_it))
    found = permute_labels(without, with_it, draws=draws)
    least = (1 + (len(without) == len(with_it))) / found.permutations  # the mirrored labels have the same |t|
    how = found.told("permutations of their labels", least, "name more strings")
    numbers = {
        "n": len(with_it) + len(without),
        "mean_difference": with_it.mean(axis=0) - without.mean(axis=0),
        "standard_error": _pooled_error(without, with_it),
        "t": found.t,
        "p_adjusted": found.p,
    }
    note = f"{len(with_it)} strings against {len(without)}, each the mean of {prompts} prompts, {how}"
    if min(len(without), len(with_it)) > 1:
        one, other = (float(np.nanmedian(side.std(axis=0, ddof=1))) for side in (without, with_it))
        if max(one, other) > UNLIKE_SCATTER * min(one, other):
            note += "; the sides scatter unlike, and p is then too small in up to a third of such contrasts"
    return pandas.DataFrame(numbers), note


def _adjust(t: Floats, largest: Iterable[Floats], count: int, exact: bool) -> Adjusted:
    """Hold each head's t against the largest |t| of all heads under every permutation, which come in blocks."""
    beaten = sum((block[:, None] >= np.abs(t) * (1 - TIE)).sum(axis=0) for block in largest)
    # among all permutations is the one that changes nothing; among drawn ones it is counted once more
    return Adjusted(t, np.asarray(beaten / count if exact else (1 + beaten) / (1 + count)), count, exact)


def permute_labels(without: Floats, with_it: Floats, *, draws: int = RANKING_DRAWS) -> Adjusted:
    """Two-sample t of each head, and its p adjusted for all heads.

    If it made no difference which strings are called what, every way to call as many of them so would be as likely.

    Args:
        without: [string, head] Of one side.
        with_it: [string, head] Of the other.
        draws: How many permutations are drawn. If there are no more than that, all are taken, and p is exact.
    """
    values, size = np.concatenate([with_it, without]), len(with_it)
    count = math.comb(len(values), size)
    exact = count <= draws
    random = np.random.default_rng(DEFAULT_SEED)
    splits: Iterable[Sequence[int]] = (
        itertools.combinations(range(len(values)), size)
        if exact
        else (random.permutation(len(values))[:size].tolist() for _ in range(draws))
    )
    largest = (np.abs(_two_sample_t(values, split)).max(keepdims=True) for split in splits)
    return _adjust(_two_sample_t(values, range(size)), largest, count if exact else draws, exact)


def _two_sample_t(values: Floats, chosen: Iterable[int]) -> Floats:
    """[head] t of the chosen strings against the rest; infinite where neither side scatters, 0 where all are equal."""
    mask = np.zeros(len(values), dtype=bool)
    mask[list(chosen)] = True
    one, other = values[mask], values[~mask]
    difference, error = one.mean(axis=0) - other.mean(axis=0), _pooled_error(other, one)
    size = np.abs(values).max(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(error > TIE * size, difference / error, np.sign(difference) * np.inf)
    return np.where(np.abs(difference) > TIE * size, t, 0.0)


def _pooled_error(one: Floats, other: Floats) -> Floats:
    """[head] Standard error of the difference of two means, the scatter taken for the same on both sides."""
    squares = sum(np.square(side - side.mean(axis=0)).sum(axis=0) for side in (one, other))
    freedom = max(len(one) + len(other) - 2, 1)
    return np.asarray(np.sqrt(squares / freedom * (1 / len(one) + 1 / len(other))))


def t_values(differences: Floats) -> Floats:
    """One-sample t of each column [head] of a [prompt, head] array, NaN left out.

    Infinite where all differences are the same, 0 where all are 0 or fewer than two are there.
    """
    return np.asarray(_one_sample_t(differences, np.ones((1, len(differences))))[0])


def flip_signs(differences: Floats, *, draws: int = RANKING_DRAWS, seed: int = DEFAULT_SEED) -> Adjusted:
    """T of each column [head] of a [prompt, head] array of paired differences, and its p adjusted for all heads.

    Args:
        differences: NaN where a prompt has no value for a head.
        draws: How many sign flips are drawn. If there are no more than that, all 2^(n-1) distinct ones are taken, and
            p is exact: a flip and its opposite have the same |t|.
        seed: Seed of the flips.
    """
    size, random = len(differences), np.random.default_rng(seed)
    exact = size <= 40 and 2 ** (size - 1) <= draws
    count = 2 ** (size - 1) if exact else draws

    def largest(start: int) -> Floats:
        rows = min(FLIPS_AT_ONCE, count - start)
        if exact:  # the bits of the flip's number; the last prompt keeps its sign
            bits = (np.arange(start, start + rows)[:, None] >> np.arange(size)) & 1
        else:
            bits = random.integers(0, 2, size=(rows, size))
        return np.asarray(np.abs(_one_sample_t(differences, np.where(bits, -1.0, 1.0))).max(axis=1))

    return _adjust(t_values(differences), map(largest, range(0, count, FLIPS_AT_ONCE)), count, exact)


def _one_sample_t(differences: Floats, signs: Floats) -> Floats:
    """[flip, head] t under each row of signs, from the sum and the sum of squares, which no flip changes."""
    there, n = np.nan_to_num(differences), np.isfinite(differences).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # the cosine with the constant vector
        cosine = np.clip(np.nan_to_num((signs @ there) / np.sqrt(n * np.square(there).sum(axis=0))), -1.0, 1.0)
        rest = 1 - np.square(cosine)
        t = np.where(rest > TIE, cosine * np.sqrt(np.maximum(n - 1, 0) / rest), np.sign(cosine) * np.inf)
        return np.asarray(np.where(n > 1, t, 0.0))
